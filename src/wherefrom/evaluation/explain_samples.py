"""Explains the samples of an evaluation by all methods, whatever single ones of them do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from wherefrom.errors import InputError, ModelError, NothingIntercepted, TargetError, TooLong
from wherefrom.explanation import Explanation
from wherefrom.inputs.reader import Reader
from wherefrom.methods import Method
from wherefrom.subject import Subject

Failure = InputError | ModelError
_TOGETHER = 16  # texts that are explained in one call: between two of them progress is told


class Explains(Protocol):
    """What an evaluation needs of an explainer."""

    subject: Subject

    def __call__(self, inputs: Any, method: Any = ..., **options: Any) -> Any: ...
    def reader(self, inputs: Any, /) -> Reader[Any, Any]: ...
    def index_of(self, label: str | int) -> int: ...


class Elsewhere(InputError):
    """The prediction explained is not that of the text's last place."""


@dataclass
class Explaining:
    """Explains many texts by many methods, few at a time.

    A method that fails on all it is first given is `unable`, and not tried again. A text that one
    method fails on is left out for all of them, so that they are compared on the same texts.
    """

    explainer: Explains
    methods: list[Method]
    truncate: bool
    unable: dict[str, str]
    seconds: float = 0.0
    able: set[str] = field(default_factory=set)

    def __call__(
        self,
        texts: Sequence[Any],
        targets: Sequence[int] | None,
        order: Sequence[int],
        tell: Callable[[float, str], None],
    ) -> tuple[dict[str, list[Explanation]], dict[int, Failure]]:
        """The explanations by method of the texts that have all, and why others have not.

        `order` is the one in which texts are taken; `tell` hears how many methods are done.
        """
        began = time.perf_counter()
        pieces = [order[at : at + _TOGETHER] for at in range(0, len(order), _TOGETHER)]
        found: dict[str, dict[int, Explanation]] = {}
        failed: dict[int, Failure] = {}
        for place, each in enumerate(self.methods):
            if each.name in self.unable:
                continue
            own: dict[int, Explanation] = {}
            errors: dict[int, Failure] = {}
            for number, piece in enumerate(pieces):
                tell(place + number / len(pieces), each.name)
                self._explain(each, piece, texts, targets, own, errors)
                if not own and each.name not in self.able:
                    break
            broken = next((e for e in errors.values() if isinstance(e, ModelError)), None)
            if broken is not None and not own and each.name not in self.able:
                if len(self.methods) == 1:
                    raise broken
                self.unable[each.name] = str(broken)
                continue
            self.able.add(each.name)
            found[each.name] = own
            failed.update(errors)
        self.seconds += time.perf_counter() - began
        if not found:
            raise ModelError(f"no method works on this model: {next(iter(self.unable.values()))}")
        there = [at for at in range(len(texts)) if all(at in own for own in found.values())]
        return {name: [own[at] for at in there] for name, own in found.items()}, failed

    def _explain(
        self,
        method: Method,
        piece: Sequence[int],
        texts: Sequence[Any],
        targets: Sequence[int] | None,
        own: dict[int, Explanation],
        errors: dict[int, Failure],
    ) -> None:
        """Some texts at once; one by one if one of them makes that fail."""
        asked = None if targets is None else [targets[at] for at in piece]
        try:
            found = self.explainer(
                [texts[at] for at in piece], method, target=asked, truncate=self.truncate
            )
            for at, each in zip(piece, found, strict=True):
                place = each.target.position
                if place is None or place == len(each.units) - 1:
                    own[at] = each
                else:  # metrics look at the output of the last place
                    errors[at] = Elsewhere(f"the prediction is that of place {place}, a hole.")
        except (InputError, ModelError) as error:
            if len(piece) == 1 or isinstance(error, NothingIntercepted):
                errors.update(dict.fromkeys(piece, error))
                return
            for at in piece:
                self._explain(method, [at], texts, targets, own, errors)


def why(error: Exception) -> str:
    """The reason for leaving a sample out, as the counts name it."""
    if isinstance(error, TooLong):
        return "too long"
    if isinstance(error, Elsewhere):
        return "with a hole to fill"
    if isinstance(error, TargetError):
        return "of no such class"
    return "unreadable" if isinstance(error, InputError) else "that a method fails on"


def check_kind(subject: Subject) -> None:
    """Refuses what has a decoder that writes: its input is more than the text."""
    config = getattr(subject.model, "config", None)
    writes = getattr(subject.model, "can_generate", None)
    if getattr(config, "is_encoder_decoder", False) and callable(writes) and writes():
        raise ModelError(
            f"{subject.name} writes with a decoder; evaluation is for models that read one text: "
            "classifiers, and decoders that write on."
        )
