"""Global views of an explained corpus: words with impact, misleading words, changes of sign."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from wherefrom.core.displayable import Displayable
from wherefrom.corpus.corpus import Corpus
from wherefrom.corpus.io import write_tables
from wherefrom.corpus.totals import EVERY_CLASS, Totals, WordTotal
from wherefrom.errors import counted


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
    """A word in wrongly predicted texts: its relevance for the wrong class, where positive.

    `strongest` counts the texts in which no other word has more of it.
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

    def _rows(self) -> list[dict[str, Any]]:
        """One row for each word."""
        return [_record(word) for word in self.words]

    def write(self, out: str | Path) -> list[Path]:
        """Writes texts, occurrences and all views as CSV and Parquet."""
        tables = {"texts": text_records(self.corpus), "occurrences": word_records(self.corpus)}
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
            lines.append(f"  no word is in {least} or more (min_count)")
        if self.labelled:
            lines.append(f"  wrong: {self.wrong} of {self.labelled}")
            lines.append(_line("misleading", self.misleading))
        if self.words:
            lines.append(_line("sign depends on context", self.contextual))
        return "\n".join(lines)


def texts_of(corpus: Corpus) -> str:
    """The number of texts that were explained, and how many were skipped for which reason."""
    skipped = ", ".join(f"{reason} ({n})" for reason, n in corpus.skipped.items())
    return counted(corpus.explained, "text") + (f" (skipped: {skipped})" if skipped else "")


def overview(corpus: Corpus, min_count: int = 5) -> Overview:
    """Ranks the words that occur in at least `min_count` texts."""
    totals = Totals()
    totals.add(corpus)
    return overview_of(totals, corpus, min_count)


def overview_of(totals: Totals, corpus: Corpus, min_count: int) -> Overview:
    """The views of totals; `corpus` has at least the texts of their examples."""
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

    every = words(EVERY_CLASS)
    classes: dict[str, tuple[Word, ...]] = {}
    if corpus.target is not None:
        classes[corpus.target.label] = _by_mean(every)
        if corpus.target.against_label is not None:
            classes[corpus.target.against_label] = _by_mean(every)[::-1]
    else:
        for number in totals.classes:
            classes[corpus.name(number)] = _by_mean(words(number))
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
        words=tuple(sorted(every, key=lambda word: -word.impact)),
        classes=classes,
        misleading=tuple(sorted(misleading, key=lambda word: -word.total)),
        contextual=tuple(_contextual(every, totals.words.get(EVERY_CLASS, {}))),
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


def text_records(corpus: Corpus) -> list[dict[str, object]]:
    """The texts of a corpus as rows of a table."""
    return [
        {
            "row": int(corpus.rows[i]), "output": float(corpus.outputs[i]),
            "predicted": corpus.name(int(corpus.predicted[i])),
            "label": corpus.label(i),
            "words": float(corpus.scores[corpus.words(i)].sum(dtype=np.float64)),
            "text": corpus.texts[i],
        }
        for i in range(len(corpus))
    ]  # fmt: skip


def word_records(corpus: Corpus) -> list[dict[str, object]]:
    """The occurrences of words in a corpus as rows of a table."""
    return [
        {"row": int(row), "start": start, "end": end, "word": key, "relevance": score}
        for row, start, end, key, score in zip(
            corpus.rows[corpus.owners], corpus.starts.tolist(), corpus.ends.tolist(),
            corpus.keys, corpus.scores.tolist(), strict=True,
        )
    ]  # fmt: skip


def _record(word: Word | MisleadingWord | ContextualWord) -> dict[str, Any]:
    return {key: value for key, value in asdict(word).items() if key != "examples"}


def _line(title: str, words: tuple[Word | MisleadingWord | ContextualWord, ...]) -> str:
    return f"  {title}: {', '.join(word.word for word in words[:10]) or 'none'}"
