"""Explains a corpus in parts, on any engine: a counting pass, then explanations, then sums.

No process has more than a part of the texts in memory, unless `explain_corpus` returns all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from wherefrom.core.explanation import Explanation, TargetInfo
from wherefrom.core.progress import Progress, shown
from wherefrom.core.target import Case
from wherefrom.corpus.bias_study import name_records
from wherefrom.corpus.corpus import NO_LABEL, Corpus, Ints, class_name, concatenated
from wherefrom.corpus.names import Lexicon, NameUses, find_entities
from wherefrom.corpus.statistics import Moments
from wherefrom.corpus.views import text_columns, word_columns
from wherefrom.errors import (
    FileError,
    InputError,
    NotEnoughMemory,
    NotFinite,
    TargetError,
    TooLong,
    WherefromError,
)
from wherefrom.explainer import Explainer
from wherefrom.inputs.records import TextPair
from wherefrom.inputs.table import Rows, as_rows
from wherefrom.inputs.text import Encoded, batch
from wherefrom.methods import Method
from wherefrom.methods import method as find_method
from wherefrom.methods.forward_pass import run
from wherefrom.runs.crash_isolation import Attempts
from wherefrom.runs.engine import Engine, ModelSource
from wherefrom.runs.explain_rows import RowExplainer, encode
from wherefrom.runs.parts import ColumnNames, DataPart, FileSource, open_source
from wherefrom.runs.rows import columns, word_sums
from wherefrom.storage.fingerprint import digest, explainer_fingerprint
from wherefrom.storage.store import PartRecord, Store, StoredTable

PART_ROWS = 1024
KIND = "a corpus study"
TEXTS = {
    "row": "int", "output": "double", "predicted": "string", "label": "string",
    "words": "double", "text": "string",
}  # fmt: skip
WORDS = {"row": "int", "start": "int", "end": "int", "word": "string", "relevance": "double"}
NAMES = {
    "row": "int", "name": "string", "group": "string", "start": "int", "end": "int",
    "relevance": "double", "output": "double", "text": "string",
}  # fmt: skip
_SKIPPED = ((TooLong, "too long"), (FileError, "unreadable"), (NotFinite, "output not finite"),
            (NotEnoughMemory, "not enough memory"))  # fmt: skip


@dataclass(frozen=True)
class NameSearch:
    """The names to look for, with the options of `find_entities`."""

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
    batch_size: int = 128


@dataclass(frozen=True)
class CorpusJob:
    """The texts, the model, the settings, and the folder for the tables.

    Without a folder the parts stay in memory, which works only in this process. `tables_in` is a
    subfolder with a slash at its end.
    """

    model: ModelSource
    data: Any
    out: str | Path | None
    settings: CorpusSettings
    columns: ColumnNames = field(default_factory=ColumnNames)
    engine: Engine = field(default_factory=Engine)
    part_rows: int = field(default_factory=lambda: PART_ROWS)
    tables_in: str = ""


def explain_corpus(
    explainer: Explainer,
    data: Rows | Iterable[str],
    method: str | Method = "auto",
    target: str | int | None = None,
    against: str | int | None = None,
    *,
    batch_size: int = 128,
    tokens: int = 4096,
    window: int = 1024,
    truncate: bool = False,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | bool | None = None,
) -> Corpus:
    """Explains every text and keeps the relevance of its words.

    With two classes, the difference of their outputs is explained: the second minus the first,
    unless `target` says otherwise. With more classes, the predicted one is explained, or `target`
    (minus `against`). A batch has at most `batch_size` texts and `tokens` tokens; lower them to
    save memory. A text that cannot be explained is left out, counted in `skipped` and listed
    in `rejected`. With `out`, finished windows are saved there, and `resume` continues from them to
    the same result; weights, texts, settings and versions must be the same. Without `resume`, a
    folder with finished windows is refused. Only one run at a time may use a folder. Ctrl-C returns
    the finished windows, or raises KeyboardInterrupt if there are none.
    """
    rows = _texts(data)
    if window < 1:
        raise InputError(f"window must be 1 or more, got {window}.")
    settings = CorpusSettings(
        find_method(method), target, against, tokens, truncate, False, batch_size
    )
    job = CorpusJob(
        ModelSource(explainer), rows, out, settings, part_rows=window, tables_in="checkpoint/"
    )
    with (
        shown("reading", progress) as report,
        explained_parts(job, resume=resume, progress=report) as parts,
    ):
        return parts.whole()


def _texts(data: Any) -> Rows:
    rows = as_rows(data)
    if any(isinstance(text, TextPair) for text in rows.texts):
        raise InputError(
            "a corpus is of single texts, and these are pairs.",
            'Name one column of them: read_table(…, text_column="…").',
            command="Name one column of them: --text-column.",
        )
    if not all(isinstance(text, str) for text in rows.texts):
        raise InputError(
            "a corpus is a list of texts or a table.",
            "Read it with wherefrom.read_table(path).",
            command="",
        )
    return rows


def common_target(
    explainer: Explainer, target: str | int | None, against: str | int | None
) -> TargetInfo | None:
    """The target that all texts share; None means the class predicted for each."""
    classes = explainer.labels()
    if target is None and against is not None and len(classes) != 2:
        raise TargetError("a class to compare with needs a target.")
    if target is None and len(classes) != 2:
        return None
    other = None if against is None else explainer.index_of(against)
    default = 1 if other is None else 1 - other
    index = default if target is None else explainer.index_of(target)
    if other is None and len(classes) == 2:
        other = 1 - index
    if other == index:
        raise TargetError(f"target and against are the same class, {index}.")
    against_name = None if other is None else class_name(classes, other)
    return TargetInfo(index, class_name(classes, index), other, against_name)


@dataclass
class Counts:
    """The counts of a first pass over the data, part by part in data order."""

    parts: list[str] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)  # the first row of each part
    rows: int = 0
    texts: int = 0  # rows that have a text
    labelled: bool = True
    labels: dict[str | int, None] = field(default_factory=dict)
    uses: NameUses = field(default_factory=NameUses)
    error: str = ""  # why the first unreadable row could not be read

    @staticmethod
    def of(engine: Engine, source: FileSource, search: NameSearch | None) -> Counts:
        """Reads all parts once, without a model."""
        counts = Counts()
        results = engine.results(source.pieces, _CountPart(search))
        for name, rows, texts, labels, uses, error in sorted(results, key=lambda result: result[0]):
            counts.parts.append(name)
            counts.firsts.append(counts.rows)
            counts.rows += rows
            counts.texts += texts
            counts.labelled &= labels is not None
            counts.labels |= dict.fromkeys(labels or ())
            counts.uses.add(uses)
            counts.error = counts.error or error
        return counts

    def part_of(self, row: int) -> str:
        """The name of the part with this row."""
        return self.parts[bisect_right(self.firsts, row) - 1]


@dataclass(frozen=True)
class _CountPart:
    search: NameSearch | None

    def __call__(
        self, part: DataPart
    ) -> tuple[str, int, int, list[str | int] | None, NameUses, str]:
        usable, _ = _usable(part)
        texts = [part.texts[i] for i in usable]
        uses = NameUses() if self.search is None else NameUses.of(texts, self.search.lexicon)
        labels = dict.fromkeys(part.labels[i] for i in usable)
        distinct = [label for label in labels if label is not None] if part.labelled else None
        error = next((str(text) for text in part.texts if isinstance(text, FileError)), "")
        return part.name, len(part.ids), len(texts), distinct, uses, error


def _usable(part: DataPart) -> tuple[list[int], dict[int, str]]:
    """The indices of the rows with a text and a label, and why the others are skipped."""
    usable: list[int] = []
    skipped: dict[int, str] = {}
    for i, (text, label) in enumerate(zip(part.texts, part.labels, strict=True)):
        if isinstance(text, FileError):
            skipped[i] = "unreadable"
        elif not isinstance(text, str) or not text.strip():
            skipped[i] = "empty text"
        elif part.labelled and label is None:
            skipped[i] = "no label"
        else:
            usable.append(i)
    return usable, skipped


@dataclass
class _ExplainPart:
    """Explains a part, writes its tables and returns its record."""

    job: CorpusJob
    fingerprint: Mapping[str, Any]
    target: TargetInfo | None
    has_labels: bool
    firsts: Mapping[str, int]
    search: NameSearch | None
    uses: NameUses
    store: Store
    memory: dict[str, Corpus]
    _explain: RowExplainer | None = None

    def __call__(self, part: DataPart) -> PartRecord:
        if self._explain is None:
            on_gpu = self.job.engine.gpus_per_worker > 0
            explainer = self.job.model.verified(self.fingerprint, on_gpu)
            index = None if self.target is None else self.target.index
            against = None if self.target is None else self.target.against
            chosen = self.job.settings
            self._explain = RowExplainer(
                explainer, chosen.method, index, against, chosen.batch_size, chosen.tokens,
                chosen.truncate,
            )  # fmt: skip
        usable, kinds = _usable(part)
        counted, cut, groups = Counter(kinds.values()), 0, []
        unread = {i: str(part.texts[i]) for i in kinds if isinstance(part.texts[i], FileError)}
        reasons = kinds | unread
        for rows, result in Attempts.at(self.store, part.name).results(
            len(usable), lambda rows: self._corpus(part, usable[rows])
        ):
            if isinstance(result, str):
                reasons[usable[rows.start]] = result
                counted["ended its process"] += 1
                continue
            corpus, errors, cut_in_group = result
            groups.append(corpus)
            cut += cut_in_group
            reasons |= {i: str(error) for i, error in errors.items()}
            counted.update(_skip_reason(error) for error in errors.values())
        record: PartRecord = {
            "read": len(part.ids),
            "explained": sum(map(len, groups)),
            "cut": cut,
            "skipped": dict(counted),
            "rejected": {part.ids[i]: reasons[i] for i in sorted(reasons)},
        }
        tables: list[StoredTable] = []
        if record["explained"]:
            corpus = Corpus.joined(groups)
            record["method"] = [corpus.method, corpus.settings]
            if self.store.folder is None:
                self.memory[part.name] = corpus
            else:
                tables, more = self._tables(corpus)
                record |= more
        prefixed = [replace(table, name=self.job.tables_in + table.name) for table in tables]
        return self.store.add(part.name, prefixed, record)

    def _corpus(
        self, part: DataPart, indices: Sequence[int]
    ) -> tuple[Corpus, dict[int, WherefromError], int]:
        """Explains the rows with these indices; also returns errors and the number of cut texts."""
        explain = self._explain
        assert explain is not None
        explainer = explain.explainer
        items, cut = encode(explainer, [part.texts[i] for i in indices], explain.truncate)
        errors = {indices[k]: item for k, item in enumerate(items) if not isinstance(item, Encoded)}
        results: dict[int, tuple[Explanation, int]] = {}  # by index: explanation, predicted class
        for chunk, answers in explain.batches(items):
            explained = [
                k for k, a in zip(chunk, answers, strict=True) if isinstance(a, Explanation)
            ]
            explanations = [a for a in answers if isinstance(a, Explanation)]
            classes = self._predict(explainer, [items[k] for k in explained], explanations)
            results |= {
                indices[k]: pair
                for k, pair in zip(explained, zip(explanations, classes, strict=True), strict=True)
            }
            errors |= {
                indices[k]: a
                for k, a in zip(chunk, answers, strict=True)
                if not isinstance(a, Explanation)
            }
        order = sorted(results)
        words = [word_sums(results[i][0]) for i in order]
        if words and not any(ends for _, ends, _ in words):
            raise InputError(
                "the tokenizer does not return the positions of its tokens, so they cannot be "
                "joined to words. A corpus needs a fast tokenizer."
            )
        labels = [part.labels[i] for i in order] if self.has_labels else []
        classes_of_labels = [explainer.index_of(label) for label in labels if label is not None]
        empty = empty_corpus(explainer, self.target, explain.method)
        if order:  # what "auto" meant
            first = results[order[0]][0]
            empty = replace(empty, method=first.method, settings=first.settings)
        return replace(
            empty,
            texts=tuple(part.texts[i] for i in order),
            rows=np.array([self.firsts[part.name] + i for i in order], dtype=np.int64),
            labels=np.array(classes_of_labels or [NO_LABEL] * len(order), dtype=np.int64),
            predicted=np.array([results[i][1] for i in order], dtype=np.int64),
            outputs=np.array([results[i][0].output for i in order], dtype=np.float64),
            bounds=np.cumsum([0, *(len(starts) for starts, _, _ in words)], dtype=np.int64),
            starts=np.array([a for starts, _, _ in words for a in starts], dtype=np.int64),
            ends=np.array([b for _, ends, _ in words for b in ends], dtype=np.int64),
            scores=concatenated([sums for _, _, sums in words], np.float32),
        ), errors, cut  # fmt: skip

    def _predict(
        self, explainer: Explainer, texts: Sequence[Any], explanations: Sequence[Explanation]
    ) -> list[int]:
        """The predicted class of each text; contrasts among more than two need another pass."""
        target = self.target
        if target is None:
            return [explanation.target.index for explanation in explanations]
        if texts and len(explainer.labels()) > 2:
            runner = explainer.runner
            logits = run(Case(runner, batch(runner, explainer.tokenizer, texts, None)))
            if logits.ndim == 2:
                classes: list[int] = logits.argmax(-1).tolist()
                return classes
        other = NO_LABEL if target.against is None else target.against
        return [target.index if explanation.output > 0 else other for explanation in explanations]

    def _tables(self, corpus: Corpus) -> tuple[list[StoredTable], PartRecord]:
        """The tables of a part, and for a study of names the additional entries of its record."""
        tables = [StoredTable("texts", text_columns(corpus), TEXTS)]
        if self.search is None:
            return [*tables, StoredTable("occurrences", word_columns(corpus), WORDS)], {}
        entities = find_entities(
            corpus.texts, self.search.lexicon, counts=self.uses, **self.search.options
        )
        relevance = [corpus.span_relevance(o.text, o.start, o.end) for o in entities.occurrences]
        names = columns(name_records(corpus, entities.occurrences, relevance), NAMES)
        tables += [
            StoredTable("words", word_columns(corpus), WORDS),
            StoredTable("occurrences", names, NAMES),
        ]
        return tables, {
            "dropped": entities.dropped,
            "uses": entities.uses,
            "after_determiner": entities.after_determiner,
            "outputs": list(vars(Moments.of(corpus.outputs)).values()),
        }


def _skip_reason(error: WherefromError) -> str:
    """The category under which a skipped row is counted."""
    return next((name for kind, name in _SKIPPED if isinstance(error, kind)), "no token")


def empty_corpus(explainer: Explainer, target: TargetInfo | None, method: Method) -> Corpus:
    """A corpus without texts."""
    no_ints = np.zeros(0, dtype=np.int64)
    return Corpus(
        texts=(), rows=no_ints, labels=no_ints, predicted=no_ints, outputs=np.zeros(0),
        bounds=np.zeros(1, dtype=np.int64), starts=no_ints, ends=no_ints,
        scores=np.zeros(0, dtype=np.float32), classes=tuple(explainer.labels()), target=target,
        method=method.name, model=explainer.runner.name, settings=method.settings(),
    )  # fmt: skip


@dataclass
class ExplainedParts:
    """A corpus whose parts are in a store: their counts, and access to the texts."""

    job: CorpusJob
    counts: Counts
    store: Store
    words_table: str
    template: Corpus
    skipped: Counter[str] = field(default_factory=Counter)
    memory: dict[str, Corpus] = field(default_factory=dict)  # the parts, without a folder
    records: list[PartRecord] = field(default_factory=list)
    explained: int = 0
    rejected: dict[str, str] = field(default_factory=dict)  # the reasons, by id
    read: int = 0
    cut: int = 0

    def add(self, record: PartRecord) -> None:
        """Counts a finished part."""
        self.records.append(record)
        if record["explained"]:
            name, settings = record["method"]
            self.template = replace(self.template, method=name, settings=settings)
        self.skipped.update(record["skipped"])
        self.read += record["read"]
        self.explained += record["explained"]
        self.rejected |= record["rejected"]
        self.cut += record["cut"]

    def table(self, name: str, record: PartRecord) -> Mapping[str, Any]:
        """The columns of a table of a part."""
        return self.store.table(self.job.tables_in + name, record["part"])

    def part(self, name: str) -> Corpus:
        """The texts of a part with the relevance of their words."""
        if name in self.memory:
            return self.memory[name]
        texts = self.store.table(f"{self.job.tables_in}texts", name)
        words = self.store.table(self.job.tables_in + self.words_table, name)
        rows = np.array(texts["row"], dtype=np.int64)
        counts = np.bincount(np.searchsorted(rows, words.get("row", [])), minlength=len(rows))
        classes = self.template.classes
        index: dict[str | None, int] = {class_name(classes, i): i for i in range(len(classes))}
        index[None] = NO_LABEL

        def indices(names: Sequence[Any]) -> Ints:
            return np.array([index[n] if n in index else int(n) for n in names], dtype=np.int64)

        return replace(
            self.template,
            texts=tuple(texts["text"]),
            rows=rows,
            labels=indices(texts["label"]),
            predicted=indices(texts["predicted"]),
            outputs=np.array(texts["output"], dtype=np.float64),
            bounds=np.concatenate([[0], np.cumsum(counts)]),
            starts=np.array(words.get("start", []), dtype=np.int64),
            ends=np.array(words.get("end", []), dtype=np.int64),
            scores=np.array(words.get("relevance", []), dtype=np.float32),
        )

    def texts_of(self, rows: Iterable[int]) -> Corpus:
        """The texts in these rows; parts are read one at a time."""
        by_part: dict[str, list[int]] = {}
        for row in sorted(set(rows)):
            by_part.setdefault(self.counts.part_of(row), []).append(row)
        parts = []
        for name, wanted in by_part.items():
            part = self.part(name)
            parts.append(part.chosen(np.searchsorted(part.rows, wanted)))
        kept = Corpus.joined([self.empty(), *parts])
        return replace(kept, others=self.explained - len(kept))

    def whole(self) -> Corpus:
        """All texts, with the rejected rows."""
        rejected = {int(id): reason for id, reason in self.rejected.items()}
        full = [self.part(record["part"]) for record in self.records if record["explained"]]
        return replace(Corpus.joined([self.empty(), *full]), rejected=rejected)

    def empty(self) -> Corpus:
        """The corpus without its texts."""
        return replace(
            self.template, skipped=dict(self.skipped), cut=self.cut, rows_read=self.read,
            rows_total=self.counts.rows, complete=self.read == self.counts.rows,
        )  # fmt: skip


@contextmanager
def explained_parts(
    job: CorpusJob,
    *,
    search: NameSearch | None = None,
    check: Callable[[Counts, TargetInfo | None], None] | None = None,
    resume: bool = False,
    added: Callable[[ExplainedParts, PartRecord], None] | None = None,
    progress: Progress | None = None,
) -> Iterator[ExplainedParts]:
    """Explains the unfinished parts; calls `added` with each finished part.

    The folder stays locked while the results are in use. `check` is called before the model runs.
    """
    settings, engine = job.settings, job.engine
    for name in ("batch_size", "tokens"):
        if getattr(settings, name) < 1:
            raise InputError(f"{name} must be 1 or more, got {getattr(settings, name)}.")
    source = open_source(job.data, job.columns, job.part_rows)
    with engine.connected(job.model.explainer) as explainer:
        target = common_target(explainer, settings.target, settings.against)
        counts = Counts.of(engine, source, search)
        if not counts.texts:
            if counts.error:
                raise FileError(counts.error)
            raise InputError(f"the data has no {'row with a text' if counts.rows else 'rows'}.")
        has_labels = counts.labelled and not settings.no_labels
        if has_labels:
            _check_labels(explainer, counts.labels)
        if check is not None:
            check(counts, target)
        fingerprint = {} if job.out is None else explainer_fingerprint(explainer)
        plain = {
            "model": explainer.runner.name,
            "method": [settings.method.name, settings.method.settings()],
            "target": target and [target.index, target.against],
            "batches": [settings.batch_size, settings.tokens, job.part_rows],
            "truncate": settings.truncate,
            "columns": list(vars(job.columns).values()),
            "has_labels": has_labels,
            "data": source.fingerprint,
            "names": None if search is None else digest([search.lexicon.groups, search.options]),
            **fingerprint,
        }
        words_table = "occurrences" if search is None else "words"
        tables = [job.tables_in + name for name in {"texts", "occurrences", words_table}]
        with Store.opened(job.out, KIND, plain, resume, tables=tables) as (store, finished):
            store = store.completed()
            parts = ExplainedParts(
                job, counts, store, words_table,
                empty_corpus(explainer, target, settings.method), Counter(source.skipped),
            )  # fmt: skip
            work = _ExplainPart(
                job, fingerprint, target, has_labels,
                dict(zip(counts.parts, counts.firsts, strict=True)), search, counts.uses, store,
                parts.memory,
            )  # fmt: skip

            def take(record: PartRecord) -> None:
                parts.add(record)
                if added is not None and record["explained"]:
                    added(parts, record)
                if progress is not None:
                    progress(parts.read, counts.rows, "")

            try:
                for record in finished:
                    take(record)
                pieces = source.without(record["part"] for record in finished)
                for record in engine.results(pieces, work):
                    take(record)
            except KeyboardInterrupt:
                if not parts.explained:
                    size = min(job.part_rows, counts.rows)
                    raise KeyboardInterrupt(
                        f"interrupted before the first {size:,} of {counts.rows:,} texts were read"
                    ) from None
            store.check(parts.records)
            if not parts.explained:
                reasons = ", ".join(f"{n} {reason}" for reason, n in parts.skipped.items())
                raise InputError(f"no text could be explained ({reasons}).")
            parts.records.sort(key=lambda record: str(record["part"]))
            yield parts


def _check_labels(explainer: Explainer, labels: Iterable[str | int]) -> None:
    """Raises an error if a label is not a class of the model."""
    unknown: list[str] = []
    for label in labels:
        try:
            explainer.index_of(label)
        except TargetError:
            unknown.append(repr(label))
    if unknown:
        are_not = (
            "1 label is not a class"
            if len(unknown) == 1
            else f"{len(unknown)} labels are not classes"
        )
        raise InputError(
            f"{are_not} of the model: {', '.join(unknown[:5])}. Its "
            f"classes are {', '.join(explainer.labels()) or 'not named'}. Choose another label "
            "column, or ignore the labels (--no-labels)."
        )
