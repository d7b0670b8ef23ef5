"""Sums over the words of a corpus, and rankings: impact, misleading words, mixed signs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.corpus.corpus import NO_LABEL, Corpus, Floats, Ints
from wherefrom.errors import counted
from wherefrom.storage.record import Displayable
from wherefrom.storage.tables import write_tables

EVERY_CLASS = None
MAX_EXAMPLES = 30
_HALF = MAX_EXAMPLES // 2
Use = tuple[float, int, int]  # −relevance, row, start: the most positive sorts first


@dataclass(slots=True)
class WordTotal:
    """Sums over the occurrences of a word, with its most positive and most negative ones."""

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
    """Sums over a word in misclassified texts, where it supports the wrong class.

    `best` has the strongest use in each text: relevance, row, whether it is the strongest word.
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
        """Adds a corpus or a part of one, whose texts were not added before."""
        keys: dict[str, int] = {}
        codes = np.array([keys.setdefault(key, len(keys)) for key in corpus.keys], dtype=np.int64)
        names, scores = list(keys), corpus.scores.astype(np.float64)
        self._add_words(EVERY_CLASS, corpus, names, codes, scores, np.arange(len(codes)))
        if corpus.target is None:
            for label in np.unique(corpus.predicted).tolist():
                inside = np.flatnonzero((corpus.predicted == label)[corpus.owners])
                self._add_words(label, corpus, names, codes, scores, inside)
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
        positions: NDArray[np.int64],
    ) -> None:
        """Adds these occurrences to the words of one class, or of all."""
        words = self.words.setdefault(scope, {})
        codes, scores, owners = codes[positions], scores[positions], corpus.owners[positions]
        rows, starts = corpus.rows[owners], corpus.starts[positions]
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
        first_uses = zip(
            rows[first[present]].tolist(), starts[first[present]].tolist(), strict=True
        )
        for code, first_use in zip(present.tolist(), first_uses, strict=True):
            of_word = uses[bounds[code] : bounds[code + 1]]
            highest, lowest = of_word[:_HALF], of_word[-_HALF:]
            word = words.get(names[code])
            if word is None:
                word = words[names[code]] = WordTotal(first_use)
            else:
                word.first = min(word.first, first_use)
                highest = sorted(word.highest + highest)[:_HALF]
                lowest = sorted(word.lowest + lowest)[-_HALF:]
            word.highest, word.lowest = highest, lowest
            word.occurrences += counts[code]
            word.texts += texts[code]
            word.positive += positive[code]
            for name, numbers in sums.items():
                setattr(word, name, getattr(word, name) + numbers[code])

    def _add_wrong(self, corpus: Corpus, i: int, names: list[str], codes: Ints) -> None:
        """Adds the words of a misclassified text that support the wrong class."""
        sign, words, row = _sign_of_predicted(corpus, i), corpus.words(i), int(corpus.rows[i])
        relevance = sign * corpus.scores[words].astype(np.float64)
        if not sign or not len(relevance):
            return
        strongest = int(relevance.argmax())
        uses: dict[str, list[tuple[float, int, bool]]] = {}
        for k in np.flatnonzero(relevance > 0).tolist():
            name = names[codes[words][k]]
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
        """The words of a class, or of all classes, in the order of their first occurrence."""
        return iter(sorted(self.words.get(scope, {}).items(), key=lambda item: item[1].first))

    @property
    def classes(self) -> list[int]:
        """The predicted classes whose words were added."""
        return sorted(scope for scope in self.words if scope is not None)


def _sign_of_predicted(corpus: Corpus, i: int) -> int:
    """1 if positive relevance supports the predicted class, −1 if it counts against it, else 0."""
    target, predicted = corpus.target, int(corpus.predicted[i])
    if target is None or predicted == target.index:
        return 1
    return -1 if predicted == target.against else 0


@dataclass(frozen=True)
class Word:
    """The relevance of a word over all its occurrences; `impact` is Σ |relevance|."""

    word: str
    occurrences: int
    texts: int
    mean: float
    total: float
    impact: float
    positive_share: float  # of occurrences
    examples: tuple[int, ...] = ()


@dataclass(frozen=True)
class MisleadingWord:
    """A word in misclassified texts: its relevance for the wrong class, where positive.

    `strongest` counts the texts in which it is the strongest word.
    """

    word: str
    texts: int
    strongest: int
    total: float
    examples: tuple[int, ...] = ()


@dataclass(frozen=True)
class ContextualWord:
    """A word whose sign depends on its context.

    `balance` is weaker side / stronger side, `swing` is weaker side / occurrences.
    """

    word: str
    occurrences: int
    positive_sum: float
    negative_sum: float
    balance: float
    swing: float
    examples: tuple[int, ...] = ()


@dataclass(frozen=True)
class Overview(Displayable):
    """The views of one corpus; `classes` ranks words for each class."""

    corpus: Corpus
    words: tuple[Word, ...]
    classes: dict[str, tuple[Word, ...]]
    misleading: tuple[MisleadingWord, ...]
    contextual: tuple[ContextualWord, ...]
    wrong: int  # texts
    labelled: int
    min_count: int

    def _html(self, whole_page: bool) -> str:
        show = import_module("wherefrom.show.corpus")
        return str(show.render_overview(self, whole_page))

    def _figures(self) -> Mapping[str, Callable[..., Any]]:
        """The words with the highest and lowest means; `function_words` adds "the" and the like."""
        figures: Mapping[str, Callable[..., Any]]
        figures = import_module("wherefrom.show.figure").corpus_drawings(self)
        return figures

    def _rows(self) -> list[dict[str, Any]]:
        """One row for each word."""
        return [_record(word) for word in self.words]

    def write(self, out: str | Path) -> list[Path]:
        """Writes texts, occurrences and all views as CSV and Parquet."""
        tables = {
            "texts": records_of(text_columns(self.corpus)),
            "occurrences": records_of(word_columns(self.corpus)),
        }
        return write_tables(Path(out), tables | self.tables())

    def tables(self) -> dict[str, list[dict[str, object]]]:
        """The views as rows of tables."""
        return {
            "words": [_record(word) for word in self.words],
            "words_by_class": [
                {"class": name} | _record(word)
                for name, words in self.classes.items()
                for word in words
            ],
            "misleading": [_record(word) for word in self.misleading],
            "contextual": [_record(word) for word in self.contextual],
        }

    def __str__(self) -> str:
        corpus = self.corpus
        lines = [f"{corpus.model}, {texts_of(corpus)}, relevance for {corpus.question}"]
        if not corpus.complete:
            lines.append(f"  {corpus.interruption}: partial results")
        if self.words:
            lines.append(_line("most impact", self.words))
            lines += [_line(f"for {name}", words) for name, words in self.classes.items()]
        else:
            least = counted(self.min_count, "text")
            lines.append(f"  no word occurs in {least} or more (min_count)")
        if self.labelled:
            lines.append(f"  wrong: {self.wrong} of {self.labelled}")
            lines.append(_line("misleading", self.misleading))
        if self.words:
            lines.append(_line("sign depends on context", self.contextual))
        return "\n".join(lines)


def texts_of(corpus: Corpus) -> str:
    """The number of explained texts, of truncated ones, and of skipped ones by reason."""
    skipped = ", ".join(f"{reason} ({n})" for reason, n in corpus.skipped.items())
    notes = [f"truncated: {corpus.cut}"] * bool(corpus.cut) + [f"skipped: {skipped}"] * bool(
        skipped
    )
    return counted(corpus.explained, "text") + (f" ({'; '.join(notes)})" if notes else "")


def overview(corpus: Corpus, min_count: int = 5) -> Overview:
    """Ranks the words that occur in at least `min_count` texts."""
    totals = Totals()
    totals.add(corpus)
    return overview_of(totals, corpus, min_count)


def overview_of(totals: Totals, corpus: Corpus, min_count: int) -> Overview:
    """Ranks the words of totals; `corpus` has at least the texts of their examples."""
    index = {int(row): i for i, row in enumerate(corpus.rows.tolist())}

    def texts(rows: Iterable[int]) -> tuple[int, ...]:
        return tuple(index[row] for row in rows if row in index)

    def words(scope: int | None) -> list[Word]:
        return [
            Word(
                word=name,
                occurrences=word.occurrences,
                texts=word.texts,
                mean=word.total / word.occurrences,
                total=word.total,
                impact=word.impact,
                positive_share=word.positive / word.occurrences,
                examples=texts(word.examples()),
            )
            for name, word in totals.ordered(scope)
            if word.texts >= min_count
        ]

    all_words = words(EVERY_CLASS)
    classes: dict[str, tuple[Word, ...]] = {}
    if corpus.target is not None:
        classes[corpus.target.label] = _by_mean(all_words)
        if corpus.target.against_label is not None:
            classes[corpus.target.against_label] = _by_mean(all_words)[::-1]
    else:
        for label in totals.classes:
            classes[corpus.name(label)] = _by_mean(words(label))
    misleading = [
        MisleadingWord(
            word=name,
            texts=word.texts,
            strongest=word.strongest,
            total=word.total,
            examples=texts(row for _, row, _ in word.best),
        )
        for name, word in sorted(totals.misleading.items(), key=lambda item: item[1].first)
    ]
    return Overview(
        corpus=corpus,
        words=tuple(sorted(all_words, key=lambda word: -word.impact)),
        classes=classes,
        misleading=tuple(sorted(misleading, key=lambda word: -word.total)),
        contextual=tuple(_contextual(all_words, totals.words.get(EVERY_CLASS, {}))),
        wrong=totals.wrong,
        labelled=totals.labelled,
        min_count=min_count,
    )


def _by_mean(words: list[Word]) -> tuple[Word, ...]:
    return tuple(sorted(words, key=lambda word: -word.mean))


def _contextual(words: list[Word], totals: Mapping[str, WordTotal]) -> list[ContextualWord]:
    mixed = []
    for word in words:
        sums = totals[word.word]
        weaker, stronger = sorted((sums.positive_sum, -sums.negative_sum))
        if weaker > 0:
            mixed.append(
                ContextualWord(
                    word=word.word,
                    occurrences=word.occurrences,
                    positive_sum=sums.positive_sum,
                    negative_sum=sums.negative_sum,
                    balance=weaker / stronger,
                    swing=weaker / word.occurrences,
                    examples=word.examples,
                )
            )
    return sorted(mixed, key=lambda word: -word.swing)


def text_columns(corpus: Corpus) -> dict[str, Any]:
    """The texts of a corpus as columns of a table."""
    size = range(len(corpus))
    return {
        "row": corpus.rows,
        "output": corpus.outputs,
        "predicted": [corpus.name(index) for index in corpus.predicted.tolist()],
        "label": [corpus.label(i) for i in size],
        "words": [float(corpus.scores[corpus.words(i)].sum(dtype=np.float64)) for i in size],
        "text": corpus.texts,
    }


def word_columns(corpus: Corpus) -> dict[str, Any]:
    """The occurrences of words in a corpus as columns of a table."""
    return {
        "row": corpus.rows[corpus.owners],
        "start": corpus.starts,
        "end": corpus.ends,
        "word": corpus.keys,
        "relevance": corpus.scores.astype(np.float64),
    }


def records_of(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a table."""
    lists = [getattr(values, "tolist", lambda v=values: v)() for values in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def _record(word: Word | MisleadingWord | ContextualWord) -> dict[str, Any]:
    return {key: value for key, value in asdict(word).items() if key != "examples"}


def _line(title: str, words: tuple[Word | MisleadingWord | ContextualWord, ...]) -> str:
    return f"  {title}: {', '.join(word.word for word in words[:10]) or 'none'}"
