"""A corpus that has been explained: the relevance of every word of every text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.explanation import Explanation, TargetInfo, Unit

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
NONE = -1  # the class of a text that has no label


@dataclass(frozen=True, eq=False)
class Corpus:
    """Texts with the relevance of their words, held flat: those of text i lie in `words(i)`.

    `target` is what was explained in all texts, a difference of two outputs where there are two;
    None if it was the class predicted for each. Special tokens and biases are what the words of a
    text leave of its output.
    """

    texts: tuple[str, ...]
    rows: Ints  # the number of each text in the data
    labels: Ints  # the true class, or NONE
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
    cut: int = 0  # texts of which the model took only the beginning
    complete: bool = True

    def __len__(self) -> int:
        return len(self.texts)

    def words(self, i: int) -> slice:
        """Where the words of text i lie."""
        return slice(int(self.bounds[i]), int(self.bounds[i + 1]))

    @cached_property
    def owners(self) -> Ints:
        """The text that each word belongs to."""
        return np.repeat(np.arange(len(self)), np.diff(self.bounds))

    @cached_property
    def keys(self) -> list[str]:
        """Each word as it is counted: without regard to case."""
        texts = self.texts
        return [
            texts[i][a:b].casefold()
            for i, a, b in zip(
                self.owners.tolist(), self.starts.tolist(), self.ends.tolist(), strict=True
            )
        ]

    def name(self, index: int) -> str:
        """What a class is called."""
        return self.classes[index] if 0 <= index < len(self.classes) else str(index)

    def spanned(self, i: int, start: int, end: int) -> float:
        """The relevance of all words of text i that overlap a span, added up."""
        at = self.words(i)
        inside = (self.starts[at] < end) & (self.ends[at] > start)
        return float(self.scores[at][inside].sum(dtype=np.float64))

    def explanation(self, i: int) -> Explanation:
        """Text i as an explanation of its words, to be shown."""
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
            text=text,
            model=self.model,
        )

    @property
    def question(self) -> str:
        """What the relevance speaks for, in words."""
        return "the class predicted" if self.target is None else str(self.target)


def word_sums(explanation: Explanation) -> tuple[list[int], list[int], NDArray[np.float32]]:
    """Starts, ends and summed scores of the words that lie in the text.

    The same as `Explanation.words`, without making units; special tokens aside, and blanks.
    """
    starts: list[int] = []
    ends: list[int] = []
    owners: list[int] = []
    before: int | None = None
    for unit in explanation.units:
        same = unit.word is not None and unit.word == before and not unit.special
        before = None if unit.special else unit.word
        if unit.special:
            owners.append(-1)
            continue
        if not same:
            starts.append(-1)
            ends.append(-1)
        if unit.start is not None and unit.end is not None:
            starts[-1] = unit.start if starts[-1] < 0 else starts[-1]
            ends[-1] = unit.end
        owners.append(len(starts) - 1)
    sums = np.bincount(np.array(owners) + 1, explanation.scores, len(starts) + 1)[1:]
    if -1 in starts:  # a blank may be a word of its own, without a span
        kept = [k for k, start in enumerate(starts) if start >= 0]
        starts, ends, sums = [starts[k] for k in kept], [ends[k] for k in kept], sums[kept]
    return starts, ends, sums.astype(np.float32)


def joined(pieces: Sequence[NDArray[Any]], kind: type) -> NDArray[Any]:
    """Arrays one after the other, also if there are none."""
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=kind)
