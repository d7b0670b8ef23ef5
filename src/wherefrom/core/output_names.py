"""The names of a model's outputs: classes by label, tokens by text."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from wherefrom.core.runner import ModelRunner
from wherefrom.errors import ModelError, TargetError, nearest

_LARGE = 1 << 62  # a tensor holds no larger index
_MOST_CLASSES = 1 << 20
_DIGITS = 40
_SUM = 1e-5  # by which probabilities may miss 1
ToProbability = Literal["softmax", "sigmoid", "identity", "none"]
# by model and forward function: whether the outputs are probabilities already
_ARE_PROBABILITIES: weakref.WeakKeyDictionary[nn.Module, dict[int, bool]] = (
    weakref.WeakKeyDictionary()
)
TargetSpec = int | str | None  # an index, a label or the text of a token; None: the most likely


def ordered_labels(labels: Any, owner: str) -> list[str]:
    """The labels in class order, from a list or a dict with class indices as keys.

    A class without a label is named by its index.

    >>> ordered_labels({"2": "good", "0": "bad"}, "labels=")
    ['bad', '1', 'good']
    """
    if isinstance(labels, Mapping):
        by_class: dict[int, str] = {}
        for key, label in labels.items():
            is_index = isinstance(key, (int, str)) and str(key).isdecimal()
            if not is_index or int(key) >= _MOST_CLASSES or int(key) in by_class:
                raise ModelError(
                    f"the keys of {owner} must be class indices, each at most once, got {key!r}."
                )
            by_class[int(key)] = str(label)
        return [by_class.get(i, str(i)) for i in range(max(by_class, default=-1) + 1)]
    if isinstance(labels, (str, bytes, Set)) or not isinstance(labels, Iterable):
        raise ModelError(
            f"{owner} must be a list of labels in the order of the classes, or a dict from class "
            f"number to label, got a {type(labels).__name__}."
        )
    return [str(label) for label in labels]


@dataclass(frozen=True)
class OutputNames:
    """Maps names of outputs to indices, and indices to names.

    `labels_override` replaces the labels of the model's config.
    """

    runner: ModelRunner
    tokenizer: Any = None
    labels_override: tuple[str, ...] | None = None

    @property
    def is_language_model(self) -> bool:
        """Whether the outputs are the tokens of a vocabulary."""
        if self.labels_override is not None:
            return False
        head = getattr(self.runner.model, "get_output_embeddings", None)
        try:
            return callable(head) and head() is not None
        except NotImplementedError:
            return False

    @property
    def generates(self) -> bool:
        """Whether the model generates text, token by token."""
        can_generate = getattr(self.runner.model, "can_generate", None)
        # before transformers 4.50, masked language models claim that they can generate
        masked = type(self.runner.model).__name__.endswith("ForMaskedLM")
        return callable(can_generate) and bool(can_generate()) and not masked

    @property
    def labels(self) -> list[str]:
        """The labels of the classes; empty if the model has none."""
        if self.labels_override is not None:
            return list(self.labels_override)
        if self.runner.forward is not None:  # a forward function may return other outputs
            return []
        labels = getattr(getattr(self.runner.model, "config", None), "id2label", None)
        if not labels or self.is_language_model:
            return []
        return ordered_labels(labels, "config.id2label")

    def to_probability(self, outputs: int, per_position: bool = False) -> ToProbability:
        """The function that turns outputs into probabilities; "none" if there is none.

        "identity" if the outputs of an explained input were found to be probabilities already.
        The config's `problem_type` decides: a sigmoid for each multi-label output, "none" for
        regression. A single output gets "none" unless the config says multi-label. Outputs for
        each token always get a softmax.
        """
        config = getattr(self.runner.model, "config", None)
        kind = None if per_position else getattr(config, "problem_type", None)
        if self.runner.forward is not None:  # a forward function may return something else
            kind = kind if getattr(config, "num_labels", None) == outputs else None
        if kind == "multi_label_classification" and not self._known.get(id(self.runner.forward)):
            return "sigmoid"
        if kind == "regression" or outputs == 1:
            return "none"
        return "identity" if self._known.get(id(self.runner.forward)) else "softmax"

    @property
    def _known(self) -> dict[int, bool]:
        return _ARE_PROBABILITIES.setdefault(self.runner.model, {})

    def learn(self, rows: Tensor, ends_in_probabilities: Callable[[], bool]) -> None:
        """Finds out from the outputs (B, C) of some inputs whether they are probabilities.

        They are if they sum to 1, or lie between 0 and 1 and a softmax or sigmoid gives them.
        """
        known, key = self._known, id(self.runner.forward)
        if rows.shape[1] == 1 or bool(((rows < 0) | (rows > 1)).any()):
            known[key] = False
        elif bool(((rows.sum(-1) - 1).abs() < _SUM).all()):
            known[key] = True
        elif key not in known:
            known[key] = ends_in_probabilities()

    def probabilities(self, logits: Tensor, per_position: bool = False) -> Tensor | None:
        """The probabilities (…, outputs) of logits; None if the outputs are not probabilities."""
        function = self.to_probability(logits.shape[-1], per_position)
        if function == "none":
            return None
        if function == "identity":
            return logits
        return logits.sigmoid() if function == "sigmoid" else logits.softmax(-1)

    def index(self, target: TargetSpec) -> int:
        """The index of a class or token.

        A string is a name first: "1" is the class labelled "1" if there is one, else the class
        with index 1. An integer is always an index.
        """
        if isinstance(target, str):
            index = self._token_id(target) if self.is_language_model else self._label_index(target)
            if index is not None:
                return index
            target = _number(target)
        try:
            index = operator.index(target)  # type: ignore[arg-type]
        except TypeError:
            raise TargetError(f"a target must be an index or a name, got {target!r}.") from None
        count = len(self.labels)  # 0: the number of outputs is unknown here
        if count and not 0 <= index < count:
            raise TargetError(f"there is no class {index}: the model has 0 to {count - 1}.")
        if not -_LARGE < index < _LARGE:
            raise TargetError(f"there is no class {index}: the index is too large.")
        return index

    def name(self, index: int, outputs: int | None = None) -> str:
        """The name of the output with this index; `outputs` is the number of outputs.

        Outputs are tokens only if there is one for each token of the vocabulary: a user's forward
        function may return others.
        """
        labels = self.labels
        if index < len(labels):
            return labels[index]
        others = self.runner.forward is not None and outputs is not None
        if others and self.tokenizer is not None and (outputs or 0) < len(self.tokenizer):
            return str(index)
        if self.is_language_model and self.tokenizer is not None:
            return str(self.tokenizer.decode([index]))
        return str(index)

    def _label_index(self, text: str) -> int | None:
        """The index of a label, case-insensitive; None for a number that is not a label."""
        labels, lower = self.labels, text.lower()
        matches = [i for i, label in enumerate(labels) if label == text]
        matches = matches or [i for i, label in enumerate(labels) if label.lower() == lower]
        if len(matches) > 1:
            raise TargetError(
                f'"{text}" is the label of classes {", ".join(map(str, matches))}: pass an index.'
            )
        index = matches[0] if matches else None
        if index is None and not text.isdecimal():
            known = nearest(text, labels) if labels else "the model has no labels; pass an index."
            raise TargetError(f'there is no label "{text}"; {known}')
        return index

    def _token_id(self, text: str) -> int | None:
        """The id of the token with this text; None for a number that is not a token."""
        if self.tokenizer is None:
            if text.isdecimal():
                return None
            raise TargetError(
                "naming a target token by its text needs a tokenizer; pass its id instead."
            )
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        if len(ids) == 1 and (ids[0] != unknown or text == self.tokenizer.unk_token):
            return int(ids[0])
        if text.isdecimal():
            return None
        if len(ids) == 1:
            raise TargetError(f"{text!r} is not in the vocabulary of this model.")
        pieces = self.tokenizer.convert_ids_to_tokens(ids)
        raise TargetError(
            f"{text!r} is {len(ids)} tokens for this model ({', '.join(map(repr, pieces))}); "
            "a target must be a single token. A leading space can matter."
        )


def _number(digits: str) -> int:
    """The number that these digits spell; Python parses no integer of thousands of digits."""
    if len(digits) > _DIGITS:
        raise TargetError(
            f"there is no class {digits[:_DIGITS]}… (a number of {len(digits):,} digits)."
        )
    return int(digits)
