"""A bias study: the relevance of groups of names in real texts, without templates."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

from wherefrom.core.explanation import TargetInfo
from wherefrom.corpus.corpus import Corpus, Floats
from wherefrom.corpus.names import AMBIGUOUS, Entities, Lexicon, Occurrence, find_entities
from wherefrom.corpus.statistics import GroupComparison, Moments, NaiveView, compare, naive_view
from wherefrom.corpus.views import texts_of
from wherefrom.errors import InputError, counted
from wherefrom.storage.record import Displayable
from wherefrom.storage.tables import write_tables
from wherefrom.storage.writing import write_text

FEW_NAMES = 10  # a test of a smaller group has little power


@dataclass(frozen=True)
class NamedEntity:
    """A name: its value is the median over texts of the mean over occurrences in a text."""

    name: str
    group: str
    value: float
    low: float  # quartiles over texts
    high: float
    occurrences: int
    texts: tuple[int, ...]
    naive: NaiveView


@dataclass(frozen=True)
class Group:
    """The counts and the relevance of a group of names."""

    name: str
    names: int
    occurrences: int
    texts: int
    median: float  # over occurrences, as in the histogram
    median_of_names: float
    quartiles: tuple[float, float]  # over occurrences
    naive: NaiveView


@dataclass(frozen=True)
class Bias(Displayable):
    """The result of a study; `relevance` has one value for each of `occurrences`."""

    corpus: Corpus
    occurrences: tuple[Occurrence, ...]
    relevance: tuple[float, ...]
    entities: tuple[NamedEntity, ...]
    groups: tuple[Group, ...]
    comparisons: tuple[GroupComparison, ...]
    dropped: dict[str, dict[str, int]]
    suspects: dict[str, tuple[int, int]]
    cased: bool
    notes: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    def distribution(self) -> dict[str, list[float]]:
        """The relevance of all occurrences, by group."""
        values: dict[str, list[float]] = {group.name: [] for group in self.groups}
        for occurrence, value in zip(self.occurrences, self.relevance, strict=True):
            values[occurrence.group].append(value)
        return values

    def _html(self, whole_page: bool) -> str:
        show = import_module("wherefrom.show.corpus")
        return str(show.render_bias(self, None, whole_page))

    def _figures(self) -> Mapping[str, Callable[..., Any]]:
        """The histogram, and the names with the highest and lowest medians.

        `min_texts` of "names" is the least number of texts with a name.
        """
        figures: Mapping[str, Callable[..., Any]]
        figures = import_module("wherefrom.show.figure").bias_drawings(self)
        return figures

    def _rows(self) -> list[dict[str, Any]]:
        """One row for each name."""
        return [_flatten(asdict(entity)) for entity in self.entities]

    def write(self, out: str | Path) -> list[Path]:
        """Writes occurrences, entities, groups, comparisons as CSV and Parquet, all as JSON."""
        occurrences = name_records(self.corpus, self.occurrences, self.relevance)
        return self.write_summary(out, {"occurrences": occurrences})

    def write_summary(
        self, out: str | Path, tables: Mapping[str, list[dict[str, Any]]] | None = None
    ) -> list[Path]:
        """Writes all results except the occurrences, and these other tables."""
        corpus = self.corpus
        groups = [_flatten(asdict(group)) for group in self.groups]
        pairs = [
            _flatten(asdict(pair)) | {"testable": pair.testable, "differs": pair.differs}
            for pair in self.comparisons
        ]
        paths = write_tables(
            Path(out),
            {
                **(tables or {}),
                "entities": [
                    _flatten(asdict(entity) | {"texts": len(entity.texts)})
                    for entity in self.entities
                ],
                "groups": groups,
                "comparisons": pairs,
            },
        )
        summary = {
            "schema": "wherefrom/bias/1", "model": corpus.model, "method": corpus.method,
            "explained": corpus.question, "texts": corpus.explained, "complete": corpus.complete,
            "skipped": dict(corpus.skipped), "groups": groups, "comparisons": pairs,
            "dropped": self.dropped, "suspects": self.suspects, "cased": self.cased,
            "notes": list(self.notes), "settings": self.settings,
        }  # fmt: skip
        path = Path(out) / "bias.json"
        write_text(path, json.dumps(summary, ensure_ascii=False, indent=1))
        return [*paths, path]

    def __str__(self) -> str:
        corpus = self.corpus
        lines = [
            f"{corpus.model}, {texts_of(corpus)}, relevance for {corpus.question} by "
            f"{corpus.method}"
        ]
        for group in self.groups:
            lines.append(
                f"  {group.name}: {counted(group.names, 'name')}, "
                f"{counted(group.occurrences, 'occurrence')} in "
                f"{counted(group.texts, 'text')}; median {group.median:+.4f}, of names "
                f"{group.median_of_names:+.4f}"
            )
        for pair in self.comparisons:
            verdict = ", too few names for a test"
            if pair.testable:
                verdict = f" [{pair.low:+.4f}, {pair.high:+.4f}], p = {pair.adjusted:.3g}: " + (
                    "the groups differ" if pair.differs else "no significant difference"
                )
            lines.append(f"  {pair.first} − {pair.second}: {pair.difference:+.4f}{verdict}")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def name_records(
    corpus: Corpus, occurrences: Iterable[Occurrence], relevance: Iterable[float]
) -> list[dict[str, Any]]:
    """The occurrences of names as rows of a table."""
    return [
        {
            "row": int(corpus.rows[occurrence.text]), "name": occurrence.name,
            "group": occurrence.group,
            "start": occurrence.start, "end": occurrence.end, "relevance": value,
            "output": float(corpus.outputs[occurrence.text]), "text": corpus.texts[occurrence.text],
        }
        for occurrence, value in zip(occurrences, relevance, strict=True)
    ]  # fmt: skip


def bias(
    corpus: Corpus,
    lexicon: Lexicon,
    *,
    ambiguous: Literal["drop", "group"] = "drop",
    ordinary: Literal["drop", "keep"] = "drop",
    stop: Collection[str] = (),
    cased: bool | None = None,
    min_capitalised: float = 0.5,
    draws: int = 2000,
    seed: int = 0,
) -> Bias:
    """Compares the relevance of groups of names in an explained corpus.

    `find_entities` describes how names are found and which are excluded.
    """
    check_contrast(corpus.target, corpus.classes)
    entities = find_entities(
        corpus.texts, lexicon, ambiguous=ambiguous, ordinary=ordinary, stop=stop, cased=cased,
        min_capitalised=min_capitalised,
    )  # fmt: skip
    check_groups({o.group for o in entities.occurrences}, entities.dropped, lexicon)
    relevance = tuple(corpus.span_relevance(o.text, o.start, o.end) for o in entities.occurrences)
    settings = {
        "ambiguous": ambiguous, "ordinary": ordinary, "stop": sorted(stop),
        "min_capitalised": min_capitalised, "draws": draws, "seed": seed,
    }  # fmt: skip
    whole = Moments.of(corpus.outputs)
    return study(corpus, entities, relevance, corpus.outputs, whole, settings)


def study(
    corpus: Corpus,
    entities: Entities,
    relevance: tuple[float, ...],
    outputs: Floats,
    whole: Moments,
    settings: dict[str, Any],
) -> Bias:
    """Compares groups of names, given the relevance of each of their occurrences.

    `outputs` are those of the texts with occurrences, `whole` the moments over all texts; `corpus`
    has at least the texts that are shown.
    """
    occurrences = entities.occurrences
    names = _names(occurrences, relevance, outputs, whole)
    groups = _groups(occurrences, relevance, names, outputs, whole)
    values = {
        group.name: [name.value for name in names if name.group == group.name]
        for group in groups
        if group.name != AMBIGUOUS
    }
    return Bias(
        corpus=corpus,
        occurrences=occurrences,
        relevance=relevance,
        entities=tuple(sorted(names, key=lambda name: -name.value)),
        groups=tuple(groups),
        comparisons=tuple(compare(values, settings["draws"], settings["seed"])),
        dropped={reason: dict(count.most_common()) for reason, count in entities.dropped.items()},
        suspects=entities.suspects,
        cased=entities.cased,
        notes=tuple(_notes(entities, groups, corpus, settings["ordinary"])),
        settings=settings,
    )


def check_contrast(target: TargetInfo | None, classes: Iterable[str]) -> None:
    """Raises an error unless the difference of two outputs is explained."""
    if target is None or target.against is None:
        raise InputError(
            "a bias study explains the difference of two outputs: pass target and against, two of "
            f"{', '.join(classes) or 'the classes of the model'}."
        )


def check_groups(
    groups: Collection[str], dropped: Mapping[str, Counter[str]], lexicon: Lexicon
) -> None:
    """Raises an error if names of fewer than two groups occur, and says which were excluded."""
    counts = ", ".join(f"{n.total()} {reason}" for reason, n in dropped.items())
    excluded = f" Excluded occurrences: {counts}." if counts else ""
    if not groups:
        raise InputError(f"none of the {len(lexicon)} names occurs in the texts.{excluded}")
    if len(lexicon.group_names) < 2:
        raise InputError(
            f'all names are in one group, "{lexicon.group_names[0]}": a comparison needs two.'
        )
    absent = [name for name in lexicon.group_names if name not in groups]
    if len(lexicon.group_names) - len(absent) < 2:
        raise InputError(
            f"no name of the group{'s' if len(absent) > 1 else ''} {', '.join(absent)} occurs in "
            f"the texts: a comparison needs two groups.{excluded}"
        )


def _names(
    occurrences: Iterable[Occurrence],
    relevance: Iterable[float],
    outputs: Floats,
    whole: Moments,
) -> list[NamedEntity]:
    values: dict[tuple[str, str], dict[int, list[float]]] = {}  # (group, name): text: relevance
    for occurrence, value in zip(occurrences, relevance, strict=True):
        by_text = values.setdefault((occurrence.group, occurrence.name), {})
        by_text.setdefault(occurrence.text, []).append(value)
    names = []
    for (group, name), by_text in values.items():
        means = [float(np.mean(numbers)) for numbers in by_text.values()]
        low, median, high = np.quantile(means, [0.25, 0.5, 0.75]).tolist()
        names.append(
            NamedEntity(
                name=name,
                group=group,
                value=median,
                low=low,
                high=high,
                occurrences=sum(map(len, by_text.values())),
                texts=tuple(by_text),
                naive=naive_view(outputs, by_text, whole),
            )
        )
    return names


def _groups(
    occurrences: tuple[Occurrence, ...],
    relevance: tuple[float, ...],
    names: list[NamedEntity],
    outputs: Floats,
    whole: Moments,
) -> list[Group]:
    groups = []
    for group in sorted({occurrence.group for occurrence in occurrences}):
        members = [i for i, occurrence in enumerate(occurrences) if occurrence.group == group]
        texts = {occurrences[i].text for i in members}
        low, median, high = np.quantile([relevance[i] for i in members], [0.25, 0.5, 0.75]).tolist()
        values = [name.value for name in names if name.group == group]
        groups.append(
            Group(
                name=group,
                names=len(values),
                occurrences=len(members),
                texts=len(texts),
                median=median,
                median_of_names=float(np.median(values)),
                quartiles=(low, high),
                naive=naive_view(outputs, texts, whole),
            )
        )
    return groups


def _notes(entities: Entities, groups: list[Group], corpus: Corpus, ordinary: str) -> list[str]:
    notes = []
    few = [f"{group.name} ({group.names})" for group in groups if group.names < FEW_NAMES]
    if few:
        notes.append(f"few names: {', '.join(few)}. Only a large difference can be detected.")
    if not entities.cased:
        notes.append(
            "the texts are in lower case, which does not distinguish names from words: "
            + (
                "names on a short list of ordinary English words were excluded."
                if ordinary == "drop"
                else "names that are also ordinary words were kept."
            )
        )
    if entities.suspects:
        suspects = ", ".join(
            f"{name} ({after} of {count})"
            for name, (after, count) in list(entities.suspects.items())[:12]
        )
        notes.append(f"often after an article, so perhaps not names: {suspects}.")
    if not corpus.complete:
        notes.append(f"{corpus.interruption}: partial results.")
    return notes


def _flatten(record: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a table: nested values become columns."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat |= {f"{key}_{inner}": number for inner, number in value.items()}
        elif key == "quartiles":
            flat |= {"low": value[0], "high": value[1]}
        elif key == "names" and isinstance(value, tuple):
            flat |= {"names_first": value[0], "names_second": value[1]}
        else:
            flat[key] = value
    return flat
