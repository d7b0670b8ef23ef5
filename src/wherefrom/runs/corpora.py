"""A corpus on any engine: counted first, explained in parts, and added up from them.

No process has more than a part of the texts. What is kept of the others is totals by word, and of
a bias study a record for each occurrence of a name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from wherefrom.core.explanation import TargetInfo
from wherefrom.corpus.bias_study import name_records
from wherefrom.corpus.corpus import NO_LABEL, Corpus
from wherefrom.corpus.names import Lexicon, NameUses, find_entities
from wherefrom.corpus.statistics import Moments
from wherefrom.corpus.stream import common_target, explain_corpus
from wherefrom.corpus.views import text_records, word_records
from wherefrom.errors import FileError, InputError
from wherefrom.inputs.table import Rows
from wherefrom.methods import Method
from wherefrom.runs.crash_isolation import Attempts
from wherefrom.runs.engine import Engine
from wherefrom.runs.model_source import ModelSource
from wherefrom.runs.parts import Columns, Label, Part, Source, open_source
from wherefrom.storage.fingerprint import digest, explainer_fingerprint
from wherefrom.storage.store import Record, Store, Table

PART_ROWS = 1024  # the window of a local corpus: the same batches, so the same rounding
TEXTS = {
    "row": "int", "output": "double", "predicted": "string", "label": "string",
    "words": "double", "text": "string",
}  # fmt: skip
WORDS = {"row": "int", "start": "int", "end": "int", "word": "string", "relevance": "double"}
NAMES = {
    "row": "int", "name": "string", "group": "string", "start": "int", "end": "int",
    "relevance": "double", "output": "double", "text": "string",
}  # fmt: skip
Progress = Callable[[float, int, str], None]


@dataclass(frozen=True)
class NameSearch:
    """Which names to look for, and how: the options of `find_entities`."""

    lexicon: Lexicon
    options: Mapping[str, Any]


@dataclass(frozen=True)
class CorpusSettings:
    """How a corpus is read and explained; see `explain_corpus`."""

    method: Method
    target: str | int | None = None
    against: str | int | None = None
    tokens: int = 4096
    truncate: bool = False
    no_labels: bool = False


@dataclass(frozen=True)
class CorpusJob:
    """What is explained, by whom, how, and where the tables go."""

    model: ModelSource
    data: Any
    out: str | Path
    settings: CorpusSettings
    columns: Columns = field(default_factory=Columns)
    engine: Engine = field(default_factory=Engine)


@dataclass
class Counts:
    """What reading the data has shown, part by part in the order of the data."""

    parts: list[str] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)  # the number of the first text of each part
    texts: int = 0
    labelled: bool = True
    labels: set[str | int] = field(default_factory=set)
    skipped: Counter[str] = field(default_factory=Counter)
    uses: NameUses = field(default_factory=NameUses)

    @staticmethod
    def of(engine: Engine, source: Source, search: NameSearch | None) -> Counts:
        """Reads all parts once, without a model."""
        counts = Counts()
        results = engine.results(source.pieces, _CountPart(search))
        for name, texts, skipped, labels, uses in sorted(results, key=lambda result: result[0]):
            counts.parts.append(name)
            counts.firsts.append(counts.texts)
            counts.texts += texts
            counts.skipped.update(skipped)
            counts.labelled &= labels is not None
            counts.labels |= labels or set()
            counts.uses.add(uses)
        return counts

    def part_of(self, row: int) -> str:
        """The part that has the text of this number."""
        return self.parts[bisect_right(self.firsts, row) - 1]


@dataclass(frozen=True)
class _CountPart:
    search: NameSearch | None

    def __call__(
        self, part: Part
    ) -> tuple[str, int, dict[str, int], set[str | int] | None, NameUses]:
        texts, labels, skipped = usable(part)
        uses = NameUses() if self.search is None else NameUses.of(texts, self.search.lexicon)
        classes = {label for label in labels if label is not None} if part.labelled else None
        return part.name, len(texts), dict(skipped), classes, uses


def usable(part: Part) -> tuple[list[str], list[Label], Counter[str]]:
    """The texts of a part with their labels; rows that have none are counted by reason."""
    texts: list[str] = []
    labels: list[Label] = []
    skipped: Counter[str] = Counter()
    for text, label in zip(part.texts, part.labels, strict=True):
        if isinstance(text, FileError):
            skipped["unreadable"] += 1
        elif not isinstance(text, str) or not text.strip():
            skipped["empty text"] += 1
        elif part.labelled and label is None:
            skipped["no label"] += 1
        else:
            texts.append(text)
            labels.append(label)
    return texts, labels, skipped


@dataclass
class _ExplainPart:
    """The work: a part is explained as a corpus of its own, and its tables are written."""

    model: ModelSource
    fingerprint: Mapping[str, Any]
    on_gpu: bool
    settings: CorpusSettings
    has_labels: bool
    firsts: Mapping[str, int]
    search: NameSearch | None
    uses: NameUses
    folder: Store
    _explainer: Any = None

    def __call__(self, part: Part) -> Record:
        if self._explainer is None:
            self._explainer = self.model.verified(self.fingerprint, self.on_gpu)
        texts, labels, _ = usable(part)
        skipped: Counter[str] = Counter()
        corpora: list[Corpus] = []
        if texts:
            for some, result in Attempts.at(self.folder, part.name).results(
                len(texts), lambda some: self._corpus(texts[some], labels[some])
            ):
                if isinstance(result, str):
                    skipped["ended its process"] += 1
                else:
                    skipped.update(result.skipped)
                    first = self.firsts[part.name] + some.start
                    corpora.append(replace(result, rows=result.rows + first))
        record: Record = {"read": len(texts), "explained": 0, "skipped": dict(skipped)}
        if not corpora:
            return self.folder.add(part.name, [], record)
        corpus = Corpus.joined(corpora)
        record |= {"explained": len(corpus), "cut": sum(group.cut for group in corpora)}
        tables = [_table("texts", text_records(corpus), TEXTS)]
        words = word_records(corpus)
        if self.search is None:
            tables.append(_table("occurrences", words, WORDS))
        else:
            names, counts = self._names(corpus, self.search)
            tables += [_table("words", words, WORDS), _table("occurrences", names, NAMES)]
            record |= counts
        return self.folder.add(part.name, tables, record)

    def _corpus(self, texts: list[str], labels: list[Label]) -> Corpus:
        chosen = self.settings
        corpus = explain_corpus(
            self._explainer,
            Rows(list(texts), list(labels) if self.has_labels else None),  # type: ignore[arg-type]
            chosen.method,
            chosen.target,
            chosen.against,
            tokens=chosen.tokens,
            truncate=chosen.truncate,
            window=len(texts),
            may_be_empty=True,
        )
        if not corpus.complete:
            raise KeyboardInterrupt
        return corpus

    def _names(
        self, corpus: Corpus, search: NameSearch
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        found = find_entities(corpus.texts, search.lexicon, counts=self.uses, **search.options)
        relevance = [corpus.span_relevance(o.text, o.start, o.end) for o in found.occurrences]
        return name_records(corpus, found.occurrences, relevance), {
            "dropped": found.dropped,
            "uses": found.uses,
            "after_determiner": found.after_determiner,
            "outputs": list(vars(Moments.of(corpus.outputs)).values()),
        }


def _table(name: str, records: list[dict[str, Any]], types: Mapping[str, str]) -> Table:
    return Table(name, {key: [record[key] for record in records] for key in types}, types)


@dataclass
class ExplainedParts:
    """A corpus whose parts are in a folder: what they add up to, and any text of them."""

    counts: Counts
    folder: Store
    words_table: str
    classes: tuple[str, ...]
    target: TargetInfo | None
    model: str
    method: Method
    records: list[Record] = field(default_factory=list)  # without those that are empty
    skipped: Counter[str] = field(default_factory=Counter)
    explained: int = 0
    read: int = 0
    cut: int = 0

    def add(self, record: Record) -> None:
        """Counts a finished part."""
        self.read += record["read"]
        self.skipped.update(record["skipped"])
        self.explained += record["explained"]
        self.cut += record.get("cut", 0)
        if record["explained"]:
            self.records.append(record)

    def part(self, name: str) -> Corpus:
        """The texts of a part with the relevance of their words."""
        texts = self.folder.table("texts", name)
        words = self.folder.table(self.words_table, name)
        rows = np.array(texts["row"], dtype=np.int64)
        counts = np.bincount(np.searchsorted(rows, words["row"]), minlength=len(rows))
        return replace(
            self.empty(),
            texts=tuple(texts["text"]),
            rows=rows,
            labels=np.array([self._index(label) for label in texts["label"]], dtype=np.int64),
            predicted=np.array([self._index(name) for name in texts["predicted"]], dtype=np.int64),
            outputs=np.array(texts["output"], dtype=np.float64),
            bounds=np.concatenate([[0], np.cumsum(counts)]),
            starts=np.array(words["start"], dtype=np.int64),
            ends=np.array(words["end"], dtype=np.int64),
            scores=np.array(words["relevance"], dtype=np.float32),
        )

    def texts_of(self, rows: Iterable[int]) -> Corpus:
        """Some texts of the corpus, by their numbers; one part at a time is read."""
        by_part: dict[str, list[int]] = {}
        for row in sorted(set(rows)):
            by_part.setdefault(self.counts.part_of(row), []).append(row)
        parts = []
        for name, wanted in by_part.items():
            part = self.part(name)
            parts.append(part.chosen(np.searchsorted(part.rows, wanted)))
        kept = Corpus.joined([self.empty(), *parts])
        return replace(kept, others=self.explained - len(kept))

    def _index(self, name: str | None) -> int:
        if name is None:
            return NO_LABEL
        return self.classes.index(name) if name in self.classes else int(name)

    def empty(self) -> Corpus:
        """The corpus with none of its texts."""
        none = np.zeros(0, dtype=np.int64)
        return Corpus(
            texts=(), rows=none, labels=none, predicted=none, outputs=np.zeros(0),
            bounds=np.zeros(1, dtype=np.int64), starts=none, ends=none,
            scores=np.zeros(0, dtype=np.float32), classes=self.classes, target=self.target,
            method=self.method.name, model=self.model, settings=self.method.settings(),
            skipped=dict(self.skipped), cut=self.cut, complete=self.read == self.counts.texts,
            rows_read=self.read, rows_total=self.counts.texts,
        )  # fmt: skip


@contextmanager
def explained_parts(
    job: CorpusJob,
    *,
    search: NameSearch | None = None,
    check: Callable[[Counts, TargetInfo | None], None] | None = None,
    resume: bool = False,
    added: Callable[[ExplainedParts, Record], None] | None = None,
    progress: Progress | None = None,
) -> Iterator[ExplainedParts]:
    """Explains the texts that are not finished; `added` is called with each finished part.

    The folder stays locked while the results are in use. `check` is called before the model runs.
    """
    source, settings, engine = (
        open_source(job.data, job.columns, PART_ROWS),
        job.settings,
        job.engine,
    )
    with engine.connected(job.model.explainer) as explainer:
        target = common_target(explainer, settings.target, settings.against)
        fingerprint = explainer_fingerprint(explainer)
        counts = Counts.of(engine, source, search)
        if not counts.texts:
            raise InputError("the data has no text.")
        has_labels = counts.labelled and not settings.no_labels
        if has_labels:
            for label in sorted(counts.labels, key=str):
                explainer.index_of(label)
        if check is not None:
            check(counts, target)
        plain = {
            "model": explainer.runner.name,
            "method": [settings.method.name, settings.method.settings()],
            "target": target and [target.index, target.against],
            "batches": [settings.tokens, PART_ROWS],
            "truncate": settings.truncate,
            "columns": list(vars(job.columns).values()),
            "has_labels": has_labels,
            "data": source.fingerprint,
            "names": None if search is None else digest([search.lexicon.groups, search.options]),
            **fingerprint,
        }
        with Store.opened(job.out, "a corpus study", plain, resume) as (folder, finished):
            folder = folder.completed()
            parts = ExplainedParts(
                counts, folder, "occurrences" if search is None else "words",
                tuple(explainer.labels()), target, explainer.runner.name, settings.method,
                skipped=Counter(counts.skipped),
            )  # fmt: skip
            work = _ExplainPart(
                job.model, fingerprint, engine.gpus_per_worker > 0, settings, has_labels,
                dict(zip(counts.parts, counts.firsts, strict=True)), search, counts.uses, folder,
            )  # fmt: skip
            pieces = source.without(record["part"] for record in finished)

            def take(record: Record) -> None:
                parts.add(record)
                if added is not None and record["explained"]:
                    added(parts, record)
                if progress is not None:
                    progress(parts.read, counts.texts, "")

            try:
                for record in finished:
                    take(record)
                for record in engine.results(pieces, work):
                    take(record)
            except KeyboardInterrupt:
                if not parts.read:
                    raise
            parts.records.sort(key=lambda record: str(record["part"]))
            yield parts
