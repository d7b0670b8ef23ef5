"""Global views of an explained corpus: what pushes the model, what misleads it, what turns."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wherefrom.corpus.corpus import NONE, Corpus, Ints
from wherefrom.corpus.io import write_table

EXAMPLES = 30


@dataclass(frozen=True)
class Word:
    """A word over all its occurrences, for what was explained; `push` is Σ |relevance|."""

    word: str
    occurrences: int
    texts: int
    mean: float
    total: float
    push: float
    positive: float  # share of occurrences above zero
    examples: tuple[int, ...] = ()


@dataclass(frozen=True)
class Misleading:
    """A word in texts that the model got wrong: how much it spoke for the wrong class there.

    `first` counts the texts in which no other word spoke louder for it.
    """

    word: str
    texts: int
    first: int
    total: float
    examples: tuple[int, ...] = ()


@dataclass(frozen=True)
class Turning:
    """A word whose sign depends on its context.

    `balance` is 1 if both sides weigh the same; `swing` is the weaker side over all occurrences.
    """

    word: str
    occurrences: int
    towards: float  # Σ of what is above zero
    away: float  # Σ of what is below
    balance: float
    swing: float
    examples: tuple[int, ...] = ()


@dataclass(frozen=True)
class Overview:
    """The views of one corpus; `classes` ranks words for each class."""

    corpus: Corpus
    words: tuple[Word, ...]
    classes: dict[str, tuple[Word, ...]]
    misleading: tuple[Misleading, ...]
    turning: tuple[Turning, ...]
    wrong: tuple[int, ...]
    labelled: int
    min_count: int

    def write(self, out: str | Path) -> list[Path]:
        """All words, texts and views as CSV and Parquet."""
        folder, corpus = Path(out), self.corpus
        texts = [
            {
                "row": int(corpus.rows[i]), "output": float(corpus.outputs[i]),
                "predicted": corpus.name(int(corpus.predicted[i])),
                "label": None if corpus.labels[i] == NONE else corpus.name(int(corpus.labels[i])),
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
        by_class = [{"class": n} | _row(w) for n, words in self.classes.items() for w in words]
        made = []
        for stem, rows in (
            ("texts", texts), ("occurrences", occurrences),
            ("words", [_row(each) for each in self.words]), ("words_by_class", by_class),
            ("misleading", [_row(each) for each in self.misleading]),
            ("turning", [_row(each) for each in self.turning]),
        ):  # fmt: skip
            made += write_table(rows, folder / stem)
        return made

    def __str__(self) -> str:
        corpus = self.corpus
        lines = [f"{corpus.model}, {len(corpus)} texts, relevance for {corpus.question}"]
        lines.append(_line("push most", [each.word for each in self.words]))
        lines += [_line(f"for {n}", [w.word for w in words]) for n, words in self.classes.items()]
        if self.labelled:
            lines.append(f"  wrong: {len(self.wrong)} of {self.labelled}")
            lines.append(_line("misled by", [each.word for each in self.misleading]))
        lines.append(_line("turn with context", [each.word for each in self.turning]))
        return "\n".join(lines)


def overview(corpus: Corpus, min_count: int = 5) -> Overview:
    """Ranks the words that occur in at least `min_count` texts."""
    coded = _Coded.of(corpus)
    scores = corpus.scores.astype(np.float64)
    wrong = np.flatnonzero((corpus.labels != NONE) & (corpus.labels != corpus.predicted))
    every = coded.words(scores, np.ones(len(scores), dtype=bool), min_count)
    if corpus.target is not None:
        classes = {corpus.target.label: tuple(sorted(every, key=lambda each: -each.mean))}
        if corpus.target.against_label is not None:
            classes[corpus.target.against_label] = tuple(reversed(classes[corpus.target.label]))
    else:
        classes = {}
        for index in np.unique(corpus.predicted).tolist():
            inside = (corpus.predicted == index)[corpus.owners]
            found = coded.words(scores, inside, min_count)
            classes[corpus.name(index)] = tuple(sorted(found, key=lambda each: -each.mean))
    return Overview(
        corpus=corpus,
        words=tuple(sorted(every, key=lambda each: -each.push)),
        classes=classes,
        misleading=tuple(_misleading(corpus, coded, wrong)),
        turning=tuple(_turning(every, coded, scores)),
        wrong=tuple(wrong.tolist()),
        labelled=int((corpus.labels != NONE).sum()),
        min_count=min_count,
    )


@dataclass(frozen=True)
class _Coded:
    """Words by number, and where each occurs."""

    names: list[str]
    codes: Ints  # (words,)
    owners: Ints
    order: Ints  # occurrences sorted by word
    bounds: Ints

    @staticmethod
    def of(corpus: Corpus) -> _Coded:
        numbers: dict[str, int] = {}
        codes = np.array([numbers.setdefault(key, len(numbers)) for key in corpus.keys])
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(numbers) + 1))
        return _Coded(list(numbers), codes, corpus.owners, order, bounds)

    def places(self, code: int) -> Ints:
        """The occurrences of a word."""
        return self.order[self.bounds[code] : self.bounds[code + 1]]

    def words(
        self, scores: NDArray[np.float64], inside: NDArray[np.bool_], least: int
    ) -> list[Word]:
        """Each word over those of its occurrences that lie inside."""
        found = []
        for code, name in enumerate(self.names):
            at = self.places(code)
            at = at[inside[at]]
            if len(at) < least:
                continue
            values, texts = scores[at], np.unique(self.owners[at])
            if len(texts) >= least:
                found.append(
                    Word(
                        name, len(at), len(texts), float(values.mean()), float(values.sum()),
                        float(np.abs(values).sum()), float((values > 0).mean()),
                        self.examples(at, values),
                    )
                )  # fmt: skip
        return found

    def examples(self, at: Ints, values: NDArray[np.float64]) -> tuple[int, ...]:
        """Texts in which a word speaks loudest for, and loudest against."""
        order = at[np.argsort(-values, kind="stable")]
        ends = np.concatenate([order[: EXAMPLES // 2], order[EXAMPLES // 2 :][-EXAMPLES // 2 :]])
        return tuple(dict.fromkeys(self.owners[ends].tolist()))


def _misleading(corpus: Corpus, coded: _Coded, wrong: Ints) -> list[Misleading]:
    held: dict[int, list[tuple[float, int, bool]]] = {}
    for i in wrong.tolist():
        sign = _towards(corpus, i)
        at = corpus.words(i)
        loud = sign * corpus.scores[at].astype(np.float64)
        if not sign or not len(loud):
            continue
        best = int(loud.argmax())
        for k in np.flatnonzero(loud > 0).tolist():
            held.setdefault(int(coded.codes[at][k]), []).append((float(loud[k]), i, k == best))
    found = []
    for code, uses in held.items():
        uses.sort(reverse=True)
        texts = tuple(dict.fromkeys(i for _, i, _ in uses))
        first, total = sum(top for _, _, top in uses), sum(value for value, _, _ in uses)
        found.append(Misleading(coded.names[code], len(texts), first, total, texts[:EXAMPLES]))
    return sorted(found, key=lambda each: -each.total)


def _towards(corpus: Corpus, i: int) -> int:
    """Whether relevance above zero speaks for what was predicted (1) or against it (−1)."""
    asked, index = corpus.target, int(corpus.predicted[i])
    if asked is None or index == asked.index:
        return 1
    return -1 if index == asked.against else 0


def _turning(words: list[Word], coded: _Coded, scores: NDArray[np.float64]) -> list[Turning]:
    numbers = {name: code for code, name in enumerate(coded.names)}
    found = []
    for each in words:
        values = scores[coded.places(numbers[each.word])]
        towards, away = float(values[values > 0].sum()), float(values[values < 0].sum())
        weaker, stronger = sorted((towards, -away))
        if weaker > 0:
            found.append(
                Turning(
                    each.word, each.occurrences, towards, away, weaker / stronger,
                    weaker / each.occurrences, each.examples,
                )
            )  # fmt: skip
    return sorted(found, key=lambda each: -each.swing)


def _row(each: Word | Misleading | Turning) -> dict[str, object]:
    return {key: value for key, value in asdict(each).items() if key != "examples"}


def _line(what: str, words: list[str]) -> str:
    return f"  {what}: {', '.join(words[:10])}"
