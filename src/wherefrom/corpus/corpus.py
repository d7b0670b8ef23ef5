"""An explained corpus: the relevance of every word of every text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.core.explanation import Explanation, TargetInfo, Unit

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
NO_LABEL = -1
_BY_TEXT = ("rows", "labels", "predicted", "outputs")
_BY_WORD = ("starts", "ends", "scores")


@dataclass(frozen=True, eq=False)
class Corpus:
    """Texts with the relevance of their words in flat arrays; `words(i)` is the slice of text i.

    `target` is the same for all texts (with two classes, the difference of their outputs), or None
    if the class predicted for each text was explained. The words of a text do not add up to its
    output: special tokens and biases contribute, too.
    """

    texts: tuple[str, ...]
    rows: Ints  # the row of each text in the data
    labels: Ints  # the true class, or NO_LABEL
    predicted: Ints
    outputs: Floats
    bounds: Ints  # (texts + 1,)
    starts: Ints  # (words,)
    ends: Ints
    scores: NDArray[np.float32]
    classes: tuple[str, ...]
    target: TargetInfo | None
    method: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(
        default_factory=dict
    )  # counts of rows that were left out, by reason
    rejected: Mapping[int, str] = field(default_factory=dict)  # the reasons, by row
    cut: int = 0  # truncated texts
    complete: bool = True
    rows_read: int = 0  # including skipped ones
    rows_total: int = 0
    others: int = 0  # explained texts that are not included here

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def explained(self) -> int:
        """The number of explained texts, including those not included here."""
        return len(self) + self.others

    def words(self, i: int) -> slice:
        """The words of text i, as a slice of the flat arrays."""
        return slice(int(self.bounds[i]), int(self.bounds[i + 1]))

    @cached_property
    def owners(self) -> Ints:
        """The text of each word."""
        return np.repeat(np.arange(len(self)), np.diff(self.bounds))

    @cached_property
    def keys(self) -> list[str]:
        """Each word, case-folded for counting."""
        texts = self.texts
        return [
            texts[i][a:b].casefold()
            for i, a, b in zip(
                self.owners.tolist(), self.starts.tolist(), self.ends.tolist(), strict=True
            )
        ]

    def name(self, index: int) -> str:
        """The name of a class; see `class_name`."""
        return class_name(self.classes, index)

    def label(self, i: int) -> str | None:
        """The true class of text i, if known."""
        index = int(self.labels[i])
        return None if index == NO_LABEL else self.name(index)

    def span_relevance(self, i: int, start: int, end: int) -> float:
        """Σ relevance over the words of text i that overlap a span."""
        words = self.words(i)
        inside = (self.starts[words] < end) & (self.ends[words] > start)
        return float(self.scores[words][inside].sum(dtype=np.float64))

    def chosen(self, indices: Ints) -> Corpus:
        """The corpus reduced to these texts."""
        words = [np.r_[self.words(i)] for i in indices]
        positions = np.concatenate([np.zeros(0, dtype=np.int64), *words])
        counts = np.diff(self.bounds)[indices]
        return replace(
            self,
            texts=tuple(self.texts[i] for i in indices),
            bounds=np.concatenate([[0], np.cumsum(counts)]),
            **{name: getattr(self, name)[indices] for name in _BY_TEXT},
            **{name: getattr(self, name)[positions] for name in _BY_WORD},
        )

    @staticmethod
    def joined(parts: Sequence[Corpus]) -> Corpus:
        """Concatenates parts; metadata comes from the first."""
        counts = np.concatenate([np.diff(part.bounds) for part in parts])
        arrays: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in (*_BY_TEXT, *_BY_WORD)
        }
        return replace(
            parts[0],
            texts=tuple(text for part in parts for text in part.texts),
            bounds=np.concatenate([[0], np.cumsum(counts)]),
            **arrays,
        )

    def explanation(self, i: int) -> Explanation:
        """Text i as an explanation of its words."""
        text, words = self.texts[i], self.words(i)
        spans = zip(self.starts[words].tolist(), self.ends[words].tolist(), strict=True)
        index = int(self.predicted[i])
        return Explanation(
            units=tuple(Unit(text[a:b], a, b, word=k) for k, (a, b) in enumerate(spans)),
            scores=self.scores[words],
            target=self.target or TargetInfo(index, self.name(index)),
            output=float(self.outputs[i]),
            probability=None,
            method=self.method,
            settings=self.settings,
            text=text,
            model=self.model,
        )

    @property
    def interruption(self) -> str:
        """A sentence about how far an interrupted run came; empty for a complete one."""
        if self.complete:
            return ""
        return f"interrupted: {self.rows_read:,} of {self.rows_total:,} texts were read"

    @property
    def question(self) -> str:
        """A description of the target."""
        return "the predicted class" if self.target is None else str(self.target)


def class_name(classes: Sequence[str], index: int) -> str:
    """The name of a class, with its index if other classes have the same name.

    >>> [class_name(["good", "bad", "bad"], index) for index in (0, 1, 2, 3)]
    ['good', 'bad (1)', 'bad (2)', '3']
    """
    if not 0 <= index < len(classes):
        return str(index)
    name = classes[index]
    return name if classes.count(name) == 1 else f"{name} ({index})"


def concatenated(arrays: Sequence[NDArray[Any]], dtype: type) -> NDArray[Any]:
    """Concatenates arrays; no arrays give an empty one."""
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)
