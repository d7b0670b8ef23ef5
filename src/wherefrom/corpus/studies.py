"""The studies of a corpus in parts, on any engine: words, and groups of names.

Texts and occurrences are written part by part; only the texts that a page shows are in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from wherefrom.core.explanation import TargetInfo
from wherefrom.corpus.bias_study import Bias, check_contrast, check_groups, study
from wherefrom.corpus.explain import CorpusJob, Counts, ExplainedParts, NameSearch, explained_parts
from wherefrom.corpus.names import Entities, Lexicon, Occurrence, groups_in
from wherefrom.corpus.statistics import Moments
from wherefrom.corpus.views import EVERY_CLASS, Overview, Totals, overview_of
from wherefrom.errors import FileError, InputError
from wherefrom.storage.store import PartRecord
from wherefrom.storage.tables import csv_lines, write_tables
from wherefrom.storage.writing import replacing

_SHOWN = 400  # words per list with examples: pages show no more
_SHOWN_TEXTS = 20  # per name
_CSV_ROWS = 10_000_000  # larger tables are written as Parquet only, by the workers


@contextmanager
def corpus_overview(job: CorpusJob, min_count: int = 5, **options: Any) -> Iterator[Overview]:
    """The overview of a corpus; its tables are in the folder of the job.

    `texts` and `occurrences` are folders of Parquet files, one for each part, and CSV files.
    """
    totals = Totals()

    def add(parts: ExplainedParts, record: PartRecord) -> None:
        totals.add(parts.part(record["part"]))

    with explained_parts(job, added=add, **options) as parts:
        ranked = overview_of(totals, parts.empty(), min_count)
        rows: set[int] = set()
        scopes = [EVERY_CLASS, *totals.classes]  # with a common target there are no classes
        lists: list[tuple[Any, ...]] = [
            ranked.words, ranked.contextual, *ranked.classes.values(),
        ]  # fmt: skip
        names = {word.word for words in lists for word in words[:_SHOWN]}
        for scope in scopes:
            for name in names & totals.words.get(scope, {}).keys():
                rows.update(totals.words[scope][name].examples())
        for word in ranked.misleading[:_SHOWN]:
            rows.update(row for _, row, _ in totals.misleading[word.word].best)
        view = overview_of(totals, parts.texts_of(rows), min_count)
        if job.out is not None:
            with _saved_to_resume():
                write_tables(Path(job.out), view.tables())
                _write_csv(parts, Path(job.out), "texts", "occurrences")
        yield view


@contextmanager
def bias_study(
    job: CorpusJob,
    lexicon: Lexicon,
    names: Mapping[str, Any],
    draws: int = 2000,
    seed: int = 0,
    **options: Any,
) -> Iterator[Bias]:
    """A bias study; its tables are in the folder of the job. `names`: see `find_entities`."""

    def check(counts: Counts, target: TargetInfo | None) -> None:
        check_groups(*groups_in(counts.uses, lexicon, **names), lexicon)
        check_contrast(target, job.model.explainer().labels())

    search = NameSearch(lexicon, names)
    with explained_parts(job, search=search, check=check, **options) as parts:
        try:
            result = _study(parts, lexicon, dict(names) | {"draws": draws, "seed": seed})
        except InputError as error:
            state = parts.empty()
            if state.complete:
                raise
            raise KeyboardInterrupt(
                f"{state.interruption}. Too few for a comparison: {error}"
            ) from error
        if job.out is not None:
            with _saved_to_resume():
                result.write_summary(job.out)
                _write_csv(parts, Path(job.out), "occurrences")
        yield result


def _study(parts: ExplainedParts, lexicon: Lexicon, settings: dict[str, Any]) -> Bias:
    occurrences: list[Occurrence] = []
    relevance: list[float] = []
    outputs: dict[int, float] = {}  # by row
    dropped: dict[str, Counter[str]] = {}
    uses: Counter[str] = Counter()
    after_determiner: Counter[str] = Counter()
    explained = [record for record in parts.records if record["explained"]]
    for record in explained:
        uses.update(record["uses"])
        after_determiner.update(record["after_determiner"])
        for reason, counts in record["dropped"].items():
            dropped.setdefault(reason, Counter()).update(counts)
        if not record["uses"]:
            continue
        table = parts.table("occurrences", record)
        if not table:
            continue
        relevance += table["relevance"]
        outputs.update(zip(table["row"], table["output"], strict=True))
        columns = (table[name] for name in ("row", "start", "end", "name", "group"))
        occurrences += (Occurrence(*values) for values in zip(*columns, strict=True))
    cased = parts.counts.uses.cased
    check_groups({o.group for o in occurrences}, dropped, lexicon)
    # shown texts come first, so that their indices are valid in the reduced corpus
    shown = _shown_rows(occurrences, relevance)
    index = {row: i for i, row in enumerate([*shown, *(outputs.keys() - set(shown))])}
    indexed = tuple(Occurrence(index[o.text], o.start, o.end, o.name, o.group) for o in occurrences)
    moments = (Moments(*record["outputs"]) for record in explained)
    return study(
        parts.texts_of(shown),
        Entities(indexed, cased, dropped, uses, after_determiner),
        tuple(relevance),
        np.array([outputs[row] for row in index]),
        reduce(Moments.merged, moments, Moments()),
        settings | {"stop": sorted(settings.get("stop", ()))},
    )


def _shown_rows(occurrences: list[Occurrence], relevance: list[float]) -> list[int]:
    """The rows with the highest relevance for each name, in order."""
    by_name: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for occurrence, value in zip(occurrences, relevance, strict=True):
        uses = by_name.setdefault((occurrence.group, occurrence.name), [])
        uses.append((-round(value, 4), occurrence.text))
    return sorted({row for uses in by_name.values() for _, row in sorted(uses)[:_SHOWN_TEXTS]})


def _write_csv(parts: ExplainedParts, out: Path, *names: str) -> None:
    """Writes tables of all parts, and the rejected rows, as CSV files."""
    for name in names:
        with replacing(out / f"{name}.csv") as file:
            written = 0
            for record in parts.records:
                table = parts.table(name, record)
                if not table:
                    continue
                header = [] if written else [list(table)]
                file.write(_csv(chain(header, zip(*table.values(), strict=True))))
                written += len(next(iter(table.values())))
                if written > _CSV_ROWS:
                    break
        if written > _CSV_ROWS:
            (out / f"{name}.csv").unlink()
    rejected = out / "rejected.csv"
    if parts.rejected:
        with replacing(rejected) as file:
            file.write(_csv([("id", "reason"), *parts.rejected.items()]))
    else:
        rejected.unlink(missing_ok=True)


@contextmanager
def _saved_to_resume() -> Iterator[None]:
    try:
        yield
    except FileError as error:
        raise FileError(
            f"{error} What was computed is saved.",
            "Run again with resume=True to write the results.",
            command="Run again with --resume to write the results.",
        ) from error


def _csv(rows: Any) -> bytes:
    return csv_lines(rows).encode("utf-8", "backslashreplace")
