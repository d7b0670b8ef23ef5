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
    output: special tokens and biases have the rest.
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
    skipped: Mapping[str, int] = field(default_factory=dict)
    cut: int = 0  # truncated texts
    complete: bool = True
    rows_read: int = 0  # those skipped too
    rows_total: int = 0
    others: int = 0  # texts that were explained and are not kept here

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def explained(self) -> int:
        """The number of texts that were explained, those not kept here too."""
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
        """Each word case-folded, as it is counted."""
        texts = self.texts
        return [
            texts[i][a:b].casefold()
            for i, a, b in zip(
                self.owners.tolist(), self.starts.tolist(), self.ends.tolist(), strict=True
            )
        ]

    def name(self, index: int) -> str:
        """The name of a class."""
        return self.classes[index] if 0 <= index < len(self.classes) else str(index)

    def label(self, i: int) -> str | None:
        """The true class of text i, if known."""
        index = int(self.labels[i])
        return None if index == NO_LABEL else self.name(index)

    def span_relevance(self, i: int, start: int, end: int) -> float:
        """Σ relevance over the words of text i that overlap a span."""
        at = self.words(i)
        inside = (self.starts[at] < end) & (self.ends[at] > start)
        return float(self.scores[at][inside].sum(dtype=np.float64))

    def chosen(self, numbers: Ints) -> Corpus:
        """The corpus with these of its texts only."""
        at = np.concatenate([np.zeros(0, dtype=np.int64), *(np.r_[self.words(i)] for i in numbers)])
        counts = np.diff(self.bounds)[numbers]
        return replace(
            self,
            texts=tuple(self.texts[i] for i in numbers),
            bounds=np.concatenate([[0], np.cumsum(counts)]),
            **{name: getattr(self, name)[numbers] for name in _BY_TEXT},
            **{name: getattr(self, name)[at] for name in _BY_WORD},
        )

    @staticmethod
    def joined(parts: Sequence[Corpus]) -> Corpus:
        """Parts of one corpus as one; what is said of the whole is that of the first."""
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
        text, at = self.texts[i], self.words(i)
        spans = zip(self.starts[at].tolist(), self.ends[at].tolist(), strict=True)
        index = int(self.predicted[i])
        return Explanation(
            units=tuple(Unit(text[a:b], a, b, word=k) for k, (a, b) in enumerate(spans)),
            scores=self.scores[at],
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
        """What an interrupted run has read, in words; empty for a complete one."""
        if self.complete:
            return ""
        return f"interrupted: {self.rows_read:,} of {self.rows_total:,} texts were read"

    @property
    def question(self) -> str:
        """What was explained, in words."""
        return "the predicted class" if self.target is None else str(self.target)


def word_sums(explanation: Explanation) -> tuple[list[int], list[int], NDArray[np.float32]]:
    """Starts, ends and summed scores of the words of a text.

    The same as `Explanation.words` without special tokens and words without a span, but fast.
    """
    starts: list[int] = []
    ends: list[int] = []
    owners: list[int] = []  # the word of each unit; −1 for special tokens
    previous: int | None = None
    for unit in explanation.units:
        continues = unit.word is not None and unit.word == previous and not unit.special
        previous = None if unit.special else unit.word
        if unit.special:
            owners.append(-1)
            continue
        if not continues:
            starts.append(-1)
            ends.append(-1)
        if unit.start is not None and unit.end is not None:
            starts[-1] = unit.start if starts[-1] < 0 else starts[-1]
            ends[-1] = unit.end
        owners.append(len(starts) - 1)
    sums = np.bincount(np.array(owners) + 1, explanation.scores, len(starts) + 1)[1:]
    if -1 in starts:  # some tokenizers make a word of a blank, without a span
        real = [k for k, start in enumerate(starts) if start >= 0]
        starts, ends, sums = [starts[k] for k in real], [ends[k] for k in real], sums[real]
    return starts, ends, sums.astype(np.float32)


def concatenated(arrays: Sequence[NDArray[Any]], dtype: type) -> NDArray[Any]:
    """Arrays end to end; of no arrays, an empty one."""
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)
