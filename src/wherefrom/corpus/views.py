"""Global views of an explained corpus: words with impact, misleading words, changes of sign."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.corpus.corpus import NO_LABEL, Corpus, Floats, Ints
from wherefrom.corpus.io import write_tables
from wherefrom.views import Views

MAX_EXAMPLES = 30


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
class Overview(Views):
    """The views of one corpus; `classes` ranks words for each class."""

    corpus: Corpus
    words: tuple[Word, ...]
    classes: dict[str, tuple[Word, ...]]
    misleading: tuple[MisleadingWord, ...]
    contextual: tuple[ContextualWord, ...]
    wrong: tuple[int, ...]
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
        corpus = self.corpus
        texts = [
            {
                "row": int(corpus.rows[i]), "output": float(corpus.outputs[i]),
                "predicted": corpus.name(int(corpus.predicted[i])),
                "label": corpus.label(i),
                "words": float(corpus.scores[corpus.words(i)].sum(dtype=np.float64)),
                "text": corpus.texts[i],
            }
            for i in range(len(corpus))
        ]  # fmt: skip
        occurrences = [
            {"row": int(row), "start": start, "end": end, "word": key, "relevance": score}
            for row, start, end, key, score in zip(
                corpus.rows[corpus.owners], corpus.starts.tolist(), corpus.ends.tolist(),
                corpus.keys, corpus.scores.tolist(), strict=True,
            )
        ]  # fmt: skip
        by_class = [{"class": n} | _record(w) for n, words in self.classes.items() for w in words]
        return write_tables(
            Path(out),
            {
                "texts": texts,
                "occurrences": occurrences,
                "words": [_record(word) for word in self.words],
                "words_by_class": by_class,
                "misleading": [_record(word) for word in self.misleading],
                "contextual": [_record(word) for word in self.contextual],
            },
        )

    def __str__(self) -> str:
        corpus = self.corpus
        lines = [f"{corpus.model}, {len(corpus)} texts, relevance for {corpus.question}"]
        if not corpus.complete:
            lines.append(f"  {corpus.interruption}: partial results")
        lines.append(_line("most impact", self.words))
        lines += [_line(f"for {name}", words) for name, words in self.classes.items()]
        if self.labelled:
            lines.append(f"  wrong: {len(self.wrong)} of {self.labelled}")
            lines.append(_line("misleading", self.misleading))
        lines.append(_line("sign depends on context", self.contextual))
        return "\n".join(lines)


def overview(corpus: Corpus, min_count: int = 5) -> Overview:
    """Ranks the words that occur in at least `min_count` texts."""
    index = _WordIndex.of(corpus)
    scores = corpus.scores.astype(np.float64)
    wrong = np.flatnonzero((corpus.labels != NO_LABEL) & (corpus.labels != corpus.predicted))
    words = index.words(scores, np.ones(len(scores), dtype=bool), min_count)
    classes: dict[str, tuple[Word, ...]] = {}
    if corpus.target is not None:
        classes[corpus.target.label] = _by_mean(words)
        if corpus.target.against_label is not None:
            classes[corpus.target.against_label] = _by_mean(words)[::-1]
    else:
        for number in np.unique(corpus.predicted).tolist():
            inside = (corpus.predicted == number)[corpus.owners]
            classes[corpus.name(number)] = _by_mean(index.words(scores, inside, min_count))
    return Overview(
        corpus=corpus,
        words=tuple(sorted(words, key=lambda word: -word.impact)),
        classes=classes,
        misleading=tuple(_misleading(corpus, index, wrong)),
        contextual=tuple(_contextual(words, index, scores)),
        wrong=tuple(wrong.tolist()),
        labelled=int((corpus.labels != NO_LABEL).sum()),
        min_count=min_count,
    )


def _by_mean(words: list[Word]) -> tuple[Word, ...]:
    return tuple(sorted(words, key=lambda word: -word.mean))


@dataclass(frozen=True)
class _WordIndex:
    """Where each distinct word occurs; a word's code is its number in `names`."""

    names: list[str]
    codes: Ints  # (words,)
    owners: Ints
    order: Ints  # occurrences sorted by word
    bounds: Ints

    @staticmethod
    def of(corpus: Corpus) -> _WordIndex:
        numbers: dict[str, int] = {}
        codes = np.array(
            [numbers.setdefault(key, len(numbers)) for key in corpus.keys], dtype=np.int64
        )
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(numbers) + 1))
        return _WordIndex(list(numbers), codes, corpus.owners, order, bounds)

    def occurrences(self, code: int) -> Ints:
        """The occurrences of a word."""
        return self.order[self.bounds[code] : self.bounds[code + 1]]

    def words(self, scores: Floats, inside: NDArray[np.bool_], min_count: int) -> list[Word]:
        """Each word over those of its occurrences that are `inside`."""
        words = []
        for code, name in enumerate(self.names):
            at = self.occurrences(code)
            at = at[inside[at]]
            texts = len(np.unique(self.owners[at])) if len(at) >= min_count else 0
            if texts >= min_count and len(at):
                values = scores[at]
                words.append(
                    Word(
                        word=name,
                        occurrences=len(at),
                        texts=texts,
                        mean=float(values.mean()),
                        total=float(values.sum()),
                        impact=float(np.abs(values).sum()),
                        positive_share=float((values > 0).mean()),
                        examples=self._examples(at, values),
                    )
                )
        return words

    def _examples(self, at: Ints, values: Floats) -> tuple[int, ...]:
        """Texts with the most positive and the most negative occurrences."""
        order, half = at[np.argsort(-values, kind="stable")], MAX_EXAMPLES // 2
        ends = np.concatenate([order[:half], order[half:][-half:]])
        return tuple(dict.fromkeys(self.owners[ends].tolist()))


def _misleading(corpus: Corpus, index: _WordIndex, wrong: Ints) -> list[MisleadingWord]:
    uses: dict[int, list[tuple[float, int, bool]]] = {}  # code: relevance, text, strongest
    for i in wrong.tolist():
        sign, at = _sign_of_predicted(corpus, i), corpus.words(i)
        relevance = sign * corpus.scores[at].astype(np.float64)
        if not sign or not len(relevance):
            continue
        strongest = int(relevance.argmax())
        for k in np.flatnonzero(relevance > 0).tolist():
            code = int(index.codes[at][k])
            uses.setdefault(code, []).append((float(relevance[k]), i, k == strongest))
    words = []
    for code, records in uses.items():
        records.sort(reverse=True)
        texts = tuple(dict.fromkeys(i for _, i, _ in records))
        words.append(
            MisleadingWord(
                word=index.names[code],
                texts=len(texts),
                strongest=sum(strongest for _, _, strongest in records),
                total=sum(value for value, _, _ in records),
                examples=texts[:MAX_EXAMPLES],
            )
        )
    return sorted(words, key=lambda word: -word.total)


def _sign_of_predicted(corpus: Corpus, i: int) -> int:
    """1 if positive relevance speaks for the predicted class, −1 if against it, else 0."""
    target, predicted = corpus.target, int(corpus.predicted[i])
    if target is None or predicted == target.index:
        return 1
    return -1 if predicted == target.against else 0


def _contextual(words: list[Word], index: _WordIndex, scores: Floats) -> list[ContextualWord]:
    codes = {name: code for code, name in enumerate(index.names)}
    mixed = []
    for word in words:
        values = scores[index.occurrences(codes[word.word])]
        positive, negative = float(values[values > 0].sum()), float(values[values < 0].sum())
        weaker, stronger = sorted((positive, -negative))
        if weaker > 0:
            mixed.append(
                ContextualWord(
                    word=word.word,
                    occurrences=word.occurrences,
                    positive_sum=positive,
                    negative_sum=negative,
                    balance=weaker / stronger,
                    swing=weaker / word.occurrences,
                    examples=word.examples,
                )
            )
    return sorted(mixed, key=lambda word: -word.swing)


def _record(word: Word | MisleadingWord | ContextualWord) -> dict[str, Any]:
    return {key: value for key, value in asdict(word).items() if key != "examples"}


def _line(title: str, words: tuple[Word | MisleadingWord | ContextualWord, ...]) -> str:
    return f"  {title}: {', '.join(word.word for word in words[:10])}"
