"""`wherefrom corpus` and `wherefrom bias` on any engine: the tables and pages of a local run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np

from wherefrom.core.explanation import TargetInfo
from wherefrom.corpus.bias_study import Bias, check_contrast, check_groups, study
from wherefrom.corpus.names import Entities, Lexicon, Occurrence
from wherefrom.corpus.statistics import Moments
from wherefrom.corpus.totals import EVERY_CLASS, Totals
from wherefrom.corpus.views import Overview, overview_of
from wherefrom.runs.corpora import (
    CorpusJob,
    Counts,
    ExplainedParts,
    NameSearch,
    explained_parts,
)

_SHOWN = 400  # words of a list whose examples are kept: no page shows more
_SHOWN_TEXTS = 20  # of a name


@contextmanager
def corpus_overview(job: CorpusJob, min_count: int = 5, **options: Any) -> Iterator[Overview]:
    """The overview of a corpus; its texts and occurrences are in folders of Parquet files."""
    totals = Totals()

    def add(parts: ExplainedParts, record: Mapping[str, Any]) -> None:
        totals.add(parts.part(record["part"]))

    with explained_parts(job, added=add, **options) as parts:
        ranked = overview_of(totals, parts.empty(), min_count)
        rows: set[int] = set()
        scopes = [EVERY_CLASS] if parts.target is not None else [EVERY_CLASS, *totals.classes]
        lists: list[tuple[Any, ...]] = [
            ranked.words, ranked.contextual, *ranked.classes.values(),
        ]  # fmt: skip
        names = {word.word for words in lists for word in words[:_SHOWN]}
        for scope in scopes:
            for name in names & totals.words.get(scope, {}).keys():
                rows.update(totals.words[scope][name].examples())
        for word in ranked.misleading[:_SHOWN]:
            rows.update(row for _, row, _ in totals.misleading[word.word].best)
        yield overview_of(totals, parts.texts_of(rows), min_count)


@contextmanager
def bias_study(
    job: CorpusJob,
    lexicon: Lexicon,
    names: Mapping[str, Any],
    draws: int = 2000,
    seed: int = 0,
    **options: Any,
) -> Iterator[Bias]:
    """A bias study; `names` are options of `find_entities`. Its occurrences are Parquet files."""

    def check(counts: Counts, target: TargetInfo | None) -> None:
        check_contrast(target, job.model.explainer().labels())

    search = NameSearch(lexicon, names)
    with explained_parts(job, search=search, check=check, **options) as parts:
        yield _study(parts, lexicon, dict(names) | {"draws": draws, "seed": seed})


def _study(parts: ExplainedParts, lexicon: Lexicon, settings: dict[str, Any]) -> Bias:
    occurrences: list[Occurrence] = []
    relevance: list[float] = []
    outputs: dict[int, float] = {}  # by row
    dropped: dict[str, Counter[str]] = {}
    uses: Counter[str] = Counter()
    after_determiner: Counter[str] = Counter()
    for record in parts.records:
        uses.update(record["uses"])
        after_determiner.update(record["after_determiner"])
        for reason, counts in record["dropped"].items():
            dropped.setdefault(reason, Counter()).update(counts)
        if not record["uses"]:
            continue
        table = parts.folder.table("occurrences", record["part"])
        relevance += table["relevance"]
        outputs.update(zip(table["row"], table["output"], strict=True))
        columns = (table[name] for name in ("row", "start", "end", "name", "group"))
        occurrences += (Occurrence(*values) for values in zip(*columns, strict=True))
    cased = parts.counts.uses.cased
    found = Entities(tuple(occurrences), cased, dropped, uses, after_determiner)
    check_groups(found, lexicon)
    # texts that are shown come first: their numbers are those of the corpus that is kept
    shown = _shown_rows(occurrences, relevance)
    numbers = {row: number for number, row in enumerate([*shown, *(outputs.keys() - set(shown))])}
    numbered = tuple(
        Occurrence(numbers[o.text], o.start, o.end, o.name, o.group) for o in occurrences
    )
    moments = (Moments(*record["outputs"]) for record in parts.records)
    return study(
        parts.texts_of(shown),
        Entities(numbered, cased, dropped, uses, after_determiner),
        tuple(relevance),
        np.array([outputs[row] for row in numbers]),
        reduce(Moments.merged, moments, Moments()),
        settings | {"stop": sorted(settings.get("stop", ()))},
    )


def _shown_rows(occurrences: list[Occurrence], relevance: list[float]) -> list[int]:
    """The rows with the highest relevance of each name, in order."""
    by_name: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for occurrence, value in zip(occurrences, relevance, strict=True):
        uses = by_name.setdefault((occurrence.group, occurrence.name), [])
        uses.append((-round(value, 4), occurrence.text))
    return sorted({row for uses in by_name.values() for _, row in sorted(uses)[:_SHOWN_TEXTS]})
