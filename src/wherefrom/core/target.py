"""What is explained: a scalar of the outputs (a class, a contrast, tokens), and their names."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.errors import ModelError, TargetError, nearest


@dataclass(frozen=True)
class Target:
    """One number for each sample: a logit, or the difference of two.

    `index` None means the most likely class of each sample. `position` selects the row of the
    logits if the model has one for each token.
    """

    index: Tensor | None = None  # (B,)
    against: Tensor | None = None  # (B,)
    position: Tensor | None = None  # (B,)

    def row(self, logits: Tensor) -> Tensor:
        """The logits at the position, (B, classes)."""
        if logits.ndim == 2:
            return logits
        if logits.shape[1] == 1:  # only the row at the position was computed
            return logits[:, 0]
        samples = torch.arange(logits.shape[0])
        positions = -1 if self.position is None else self.position
        if self.position is not None and int(self.position.max()) >= logits.shape[1]:
            raise TargetError(
                f"there is no position {int(self.position.max())}: the model's output has "
                f"{logits.shape[1]}."
            )
        return logits[samples, positions]

    def resolved(self, logits: Tensor) -> Target:
        """The same target, with the most likely class if it has none."""
        if self.index is not None:
            return self
        return replace(self, index=self.row(logits.detach()).argmax(-1))

    def __call__(self, logits: Tensor) -> Tensor:
        row = self.row(logits)  # (B, C)
        for classes in (self.index, self.against):
            if classes is None:
                continue
            beyond = classes[(classes < 0) | (classes >= row.shape[1])]
            if len(beyond):
                raise TargetError(
                    f"there is no class {int(beyond[0])}: the model has 0 to {row.shape[1] - 1}."
                )
        index = self.index if self.index is not None else row.detach().argmax(-1)
        out = row.gather(1, index.unsqueeze(1)).squeeze(1)
        if self.against is not None:
            out = out - row.gather(1, self.against.unsqueeze(1)).squeeze(1)
        return out  # (B,)

    def offset(self, logits: Tensor) -> Tensor | None:
        """What the target adds to a weighted sum of logits, (B,); None for nothing."""
        return None

    def take(self, rows: list[int]) -> Self:
        """The target of some of the samples."""
        at = torch.tensor(rows)
        return self._mapped(lambda tensor: tensor[at])

    def to(self, device: torch.device) -> Self:
        """The target with its tensors on a device."""
        return self._mapped(lambda tensor: tensor.to(device))

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> Self:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return replace(self, **{k: change(v) for k, v in values if isinstance(v, Tensor)})


@dataclass(frozen=True)
class SpanTarget(Target):
    """A weighted sum of logits, contrasts or log-probabilities at several positions.

    Σ_r w_r z_r[y_r], Σ_r w_r (z_r[y_r] − z_r[a_r]), or with `log` Σ_r w_r log p_r[y_r]. All
    tensors are (B, R), and so is `position`: the rows of the logits, in increasing order.
    """

    weights: Tensor | None = None  # (B, R); None: all one
    log: bool = False

    @property
    def first(self) -> Target:
        """The target at the first of its positions."""
        first = self._mapped(lambda tensor: tensor[:, 0])
        return Target(first.index, first.against, first.position)

    def row(self, logits: Tensor) -> Tensor:
        """The logits at the first position, (B, classes)."""
        return self.rows(logits)[:, 0]

    def rows(self, logits: Tensor) -> Tensor:
        """The logits at the positions, (B, R, classes)."""
        assert self.position is not None
        if logits.ndim != 3:
            raise TargetError(
                f"the model has outputs of shape {tuple(logits.shape)}: it is not a language model "
                "with outputs for each token."
            )
        if logits.shape[1] == self.position.shape[1]:  # only these rows were computed
            return logits
        samples = torch.arange(len(logits), device=logits.device).unsqueeze(1)
        return logits[samples, self.position.to(logits.device)]

    def resolved(self, logits: Tensor) -> SpanTarget:
        """The target itself, since its tokens are known."""
        return self

    def within(self, first: int, last: int) -> SpanTarget:
        """The same target at its positions `first` to `last` − 1 only."""
        assert self.index is not None
        weights = torch.zeros(self.index.shape, dtype=torch.float64)
        own = 1 if self.weights is None else self.weights[:, first:last].double()
        weights[:, first:last] = own
        return replace(self, weights=weights)

    def _counted(self, samples: int) -> slice:
        """The positions with a weight; for several samples all positions.

        The others stay out of the graph: most of them, if a single token is explained.
        """
        if self.weights is None or samples > 1:
            return slice(None)
        counted = self.weights[0].nonzero().flatten()
        return slice(int(counted[0]), int(counted[-1]) + 1) if len(counted) else slice(0, 1)

    def __call__(self, logits: Tensor) -> Tensor:
        return self.terms(logits).sum(1)  # (B,)

    def terms(self, logits: Tensor) -> Tensor:
        """The terms of the sum, one for each position with a weight, (B, R)."""
        assert self.index is not None
        rows = self.rows(logits)  # (B, R, C)
        counted = self._counted(len(rows))
        rows = rows[:, counted]
        out = _chosen(rows, self.index[:, counted])
        if self.log:
            out = out - rows.logsumexp(-1)
        elif self.against is not None:
            out = out - _chosen(rows, self.against[:, counted])
        if self.weights is not None:
            out = out * self.weights[:, counted].to(out)
        return out

    def offset(self, logits: Tensor) -> Tensor | None:
        """For log-probabilities −Σ_r w_r H_r, with the entropy H of each row's softmax.

        log p_y = z_y − log Σ_v exp z_v = Σ_v (1[v = y] − p_v) z_v − H(p): the gradient distributes
        the first term; the second one remains.
        """
        if not self.log:
            return None
        rows = self.rows(logits.detach())
        counted = self._counted(len(rows))
        logs = rows[:, counted].double().log_softmax(-1)
        entropies = -(logs.exp() * logs).nan_to_num(nan=0.0).sum(-1)  # (B, R)
        weights = 1 if self.weights is None else self.weights[:, counted].to(entropies)
        return -(weights * entropies).sum(1)


@dataclass(frozen=True)
class AnswerTarget(SpanTarget):
    """The start and the end of an answer in its context: z_start[s] + z_end[e], or one of them.

    The logits of a question answering model are (B, 2, tokens); `index` (B, 2) has s and e.
    """

    def rows(self, logits: Tensor) -> Tensor:
        """The logits themselves: one row for the start, one for the end."""
        return logits


def _chosen(rows: Tensor, index: Tensor) -> Tensor:
    """The logits (B, R) of these classes."""
    return rows.gather(2, index.to(rows.device).unsqueeze(2)).squeeze(2)


@dataclass(frozen=True)
class Case:
    """What a method explains: a model, a batch of inputs, and an output for each of them."""

    runner: ModelRunner
    batch: Batch
    target: Target = field(default_factory=Target)

    def take(self, rows: list[int]) -> Case:
        """Some of the samples."""
        return replace(self, batch=self.batch.take(rows), target=self.target.take(rows))

    def with_target(self, target: Target) -> Case:
        """The same samples with another target."""
        return replace(self, target=target)

    def resolved(self, logits: Tensor) -> Case:
        """The case with the most likely class as the target, if it has none."""
        return self.with_target(self.target.resolved(logits))


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
    if hasattr(labels, "to_dict"):  # a pandas Series, by its index
        labels = labels.to_dict()
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
        with index 1. So is "1.0": pandas writes it for 1 into columns with gaps. An integer is
        always an index.
        """
        if isinstance(target, str):
            index = self._token_id(target) if self.is_language_model else self._label_index(target)
            if index is not None:
                return index
            target = _number(target.removesuffix(".0"))
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
        if index is None and not text.removesuffix(".0").isdecimal():
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
