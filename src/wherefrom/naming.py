"""What a model's outputs are called: classes by label, tokens by text."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from wherefrom.errors import TargetError, nearest
from wherefrom.subject import Subject

Asked = int | str | None


@dataclass(frozen=True)
class Naming:
    """Finds the number of an output by its name, and the name by its number."""

    subject: Subject
    tokenizer: Any = None
    given: tuple[str, ...] | None = None

    @property
    def speaks(self) -> bool:
        """Whether the outputs are the tokens of a vocabulary."""
        if self.given is not None:
            return False
        head = getattr(self.subject.model, "get_output_embeddings", None)
        try:
            return callable(head) and head() is not None
        except NotImplementedError:
            return False

    @property
    def writes(self) -> bool:
        """Whether the model is made to write text, token by token."""
        can = getattr(self.subject.model, "can_generate", None)
        return bool(can()) if callable(can) else False

    @property
    def labels(self) -> list[str]:
        """The names of the classes, where the model has any."""
        if self.given is not None:
            return list(self.given)
        named = getattr(getattr(self.subject.model, "config", None), "id2label", None)
        return [named[i] for i in sorted(named)] if named and not self.speaks else []

    def index(self, asked: Asked) -> int:
        """The number of the class or token that was asked for."""
        labels = self.labels
        if isinstance(asked, str) and self.speaks:
            return self._token(asked)
        if isinstance(asked, str):
            by_name = {name: i for i, name in enumerate(labels)}
            folded = {name.lower(): i for name, i in by_name.items()}
            index = by_name.get(asked, folded.get(asked.lower()))
            if index is None:
                raise TargetError(f'there is no label "{asked}"; {nearest(asked, labels)}')
            return index
        try:
            index = operator.index(asked)  # type: ignore[arg-type]
        except TypeError:
            raise TargetError(f"{asked!r} is no class: give its number or its name.") from None
        self.check(index, len(labels))
        return index

    def check(self, index: int, known: int) -> None:
        """Refuses a number that no output has; `known` 0 means that their number is not known."""
        if known and not 0 <= index < known:
            raise TargetError(f"there is no class {index}: the model has 0 to {known - 1}.")

    def name(self, index: int) -> str:
        """What the output of this number is called."""
        labels = self.labels
        if index < len(labels):
            return labels[index]
        if self.speaks and self.tokenizer is not None:
            return str(self.tokenizer.decode([index]))
        return str(index)

    def _token(self, text: str) -> int:
        if self.tokenizer is None:
            raise TargetError("a next token by text needs a tokenizer; give its id instead.")
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) != 1:
            pieces = self.tokenizer.convert_ids_to_tokens(ids)
            raise TargetError(
                f"{text!r} is {len(ids)} tokens for this model ({', '.join(map(repr, pieces))}), "
                "and one next token can be asked about. Mind the leading blank."
            )
        return int(ids[0])
