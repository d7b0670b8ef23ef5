"""What a corpus adds up to, word by word; parts of it can be added in any order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wherefrom.corpus.corpus import NO_LABEL, Corpus, Floats, Ints

EVERY_CLASS = None
MAX_EXAMPLES = 30
_HALF = MAX_EXAMPLES // 2
Use = tuple[float, int, int]  # −relevance, row, start: sorted, the most positive is first


@dataclass(slots=True)
class WordTotal:
    """Sums over the occurrences of a word, and the most positive and most negative of them."""

    first: tuple[int, int]  # row and start of its first occurrence
    occurrences: int = 0
    texts: int = 0
    positive: int = 0
    total: float = 0.0
    impact: float = 0.0
    positive_sum: float = 0.0
    negative_sum: float = 0.0
    highest: list[Use] = field(default_factory=list)
    lowest: list[Use] = field(default_factory=list)

    def examples(self) -> tuple[int, ...]:
        """Rows with the most positive and the most negative occurrences."""
        rest = [use for use in self.lowest if use not in self.highest]
        return tuple(dict.fromkeys(row for _, row, _ in [*self.highest, *rest]))


@dataclass(slots=True)
class MisleadingTotal:
    """Sums over the uses of a word in wrongly predicted texts, where it speaks for the wrong class.

    `best` has the strongest use in each text: relevance, row, whether no other word has more.
    """

    first: tuple[int, int]
    texts: int = 0
    strongest: int = 0
    total: float = 0.0
    best: list[tuple[float, int, bool]] = field(default_factory=list)


@dataclass
class Totals:
    """Sums by word, over all texts and (if the predicted class is explained) for each class."""

    words: dict[int | None, dict[str, WordTotal]] = field(default_factory=dict)
    misleading: dict[str, MisleadingTotal] = field(default_factory=dict)
    texts: int = 0
    labelled: int = 0
    wrong: int = 0

    def add(self, corpus: Corpus) -> None:
        """Adds a corpus, or a part of one: texts that were not added before."""
        keys: dict[str, int] = {}
        codes = np.array([keys.setdefault(key, len(keys)) for key in corpus.keys], dtype=np.int64)
        names, scores = list(keys), corpus.scores.astype(np.float64)
        every = np.arange(len(codes))
        self._add_words(EVERY_CLASS, corpus, names, codes, scores, every)
        if corpus.target is None:
            for number in np.unique(corpus.predicted).tolist():
                inside = np.flatnonzero((corpus.predicted == number)[corpus.owners])
                self._add_words(number, corpus, names, codes, scores, inside)
        wrong = np.flatnonzero((corpus.labels != NO_LABEL) & (corpus.labels != corpus.predicted))
        for i in wrong.tolist():
            self._add_wrong(corpus, i, names, codes)
        self.texts += len(corpus)
        self.labelled += int((corpus.labels != NO_LABEL).sum())
        self.wrong += len(wrong)

    def _add_words(
        self,
        scope: int | None,
        corpus: Corpus,
        names: list[str],
        codes: Ints,
        scores: Floats,
        at: NDArray[np.int64],
    ) -> None:
        """Adds these occurrences to the words of one class, or of all."""
        words = self.words.setdefault(scope, {})
        codes, scores, owners = codes[at], scores[at], corpus.owners[at]
        rows, starts = corpus.rows[owners], corpus.starts[at]
        size = len(names)
        counts = np.bincount(codes, minlength=size).tolist()
        pairs = np.unique(codes * max(1, len(corpus)) + owners) // max(1, len(corpus))
        texts = np.bincount(pairs, minlength=size).tolist()
        sums = {
            "total": np.bincount(codes, scores, size).tolist(),
            "impact": np.bincount(codes, np.abs(scores), size).tolist(),
            "positive_sum": np.bincount(codes, np.maximum(scores, 0), size).tolist(),
            "negative_sum": np.bincount(codes, np.minimum(scores, 0), size).tolist(),
        }
        positive = np.bincount(codes[scores > 0], minlength=size).tolist()
        first = np.full(size, len(codes))
        np.minimum.at(first, codes, np.arange(len(codes)))
        order = np.lexsort((starts, rows, -scores, codes))
        bounds = np.searchsorted(codes[order], np.arange(size + 1)).tolist()
        uses = list(
            zip(
                (-scores[order]).tolist(), rows[order].tolist(), starts[order].tolist(), strict=True
            )
        )  # of each word, the highest score first
        present = np.unique(codes)
        places = zip(rows[first[present]].tolist(), starts[first[present]].tolist(), strict=True)
        for code, place in zip(present.tolist(), places, strict=True):
            own = uses[bounds[code] : bounds[code + 1]]
            highest, lowest = own[:_HALF], own[-_HALF:]
            word = words.get(names[code])
            if word is None:
                word = words[names[code]] = WordTotal(place)
            else:
                word.first = min(word.first, place)
                highest = sorted(word.highest + highest)[:_HALF]
                lowest = sorted(word.lowest + lowest)[-_HALF:]
            word.highest, word.lowest = highest, lowest
            word.occurrences += counts[code]
            word.texts += texts[code]
            word.positive += positive[code]
            for name, numbers in sums.items():
                setattr(word, name, getattr(word, name) + numbers[code])

    def _add_wrong(self, corpus: Corpus, i: int, names: list[str], codes: Ints) -> None:
        """Adds the words of a wrongly predicted text that speak for the wrong class."""
        sign, at, row = _sign_of_predicted(corpus, i), corpus.words(i), int(corpus.rows[i])
        relevance = sign * corpus.scores[at].astype(np.float64)
        if not sign or not len(relevance):
            return
        strongest = int(relevance.argmax())
        uses: dict[str, list[tuple[float, int, bool]]] = {}
        for k in np.flatnonzero(relevance > 0).tolist():
            name = names[codes[at][k]]
            uses.setdefault(name, []).append((float(relevance[k]), row, k == strongest))
            if name not in self.misleading:
                self.misleading[name] = MisleadingTotal((row, k))
            self.misleading[name].first = min(self.misleading[name].first, (row, k))
        for name, records in uses.items():
            word = self.misleading[name]
            word.texts += 1
            word.strongest += sum(is_strongest for _, _, is_strongest in records)
            word.total += sum(value for value, _, _ in records)
            word.best = sorted([*word.best, max(records)], reverse=True)[:MAX_EXAMPLES]

    def ordered(self, scope: int | None) -> Iterator[tuple[str, WordTotal]]:
        """The words of a class, or of all, in the order in which they first occur."""
        return iter(sorted(self.words.get(scope, {}).items(), key=lambda item: item[1].first))

    @property
    def classes(self) -> list[int]:
        """The predicted classes whose words were added."""
        return sorted(scope for scope in self.words if scope is not None)


def _sign_of_predicted(corpus: Corpus, i: int) -> int:
    """1 if positive relevance speaks for the predicted class, −1 if against it, else 0."""
    target, predicted = corpus.target, int(corpus.predicted[i])
    if target is None or predicted == target.index:
        return 1
    return -1 if predicted == target.against else 0
