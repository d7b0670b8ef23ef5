"""A bias study: the relevance of names by group, as they occur, without templates."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from wherefrom.corpus.corpus import Corpus
from wherefrom.corpus.io import write_table
from wherefrom.corpus.lexicon import Lexicon
from wherefrom.corpus.naive import Naive, naive
from wherefrom.corpus.names import AMBIGUOUS, Entities, Occurrence, find_entities
from wherefrom.corpus.statistics import Comparison, compare
from wherefrom.errors import InputError

FEW = 10  # names in a group below which a test says little


@dataclass(frozen=True)
class Entity:
    """A name: its value is the median over texts, each text the mean of its occurrences."""

    name: str
    group: str
    value: float
    low: float  # quartiles over texts
    high: float
    occurrences: int
    texts: tuple[int, ...]
    naive: Naive


@dataclass(frozen=True)
class Group:
    """A group: how many names, occurrences and texts it has, and where its relevance lies."""

    name: str
    names: int
    occurrences: int
    texts: int
    median: float  # over occurrences, as it is drawn
    median_of_names: float
    quartiles: tuple[float, float]
    naive: Naive


@dataclass(frozen=True)
class Bias:
    """What a study found. `relevance` has a number for each of `occurrences`."""

    corpus: Corpus
    occurrences: tuple[Occurrence, ...]
    relevance: tuple[float, ...]
    entities: tuple[Entity, ...]
    groups: tuple[Group, ...]
    comparisons: tuple[Comparison, ...]
    dropped: dict[str, dict[str, int]]
    suspects: dict[str, tuple[int, int]]
    cased: bool
    notes: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    def distribution(self) -> dict[str, list[float]]:
        """The relevance of all occurrences, by group."""
        return {
            group.name: [
                value
                for each, value in zip(self.occurrences, self.relevance, strict=True)
                if each.group == group.name
            ]
            for group in self.groups
        }

    def write(self, out: str | Path) -> list[Path]:
        """Occurrences, entities, groups and comparisons as CSV and Parquet, all of it as JSON."""
        folder, corpus = Path(out), self.corpus
        occurrences = [
            {
                "row": int(corpus.rows[each.text]), "name": each.name, "group": each.group,
                "start": each.start, "end": each.end, "relevance": value,
                "output": float(corpus.outputs[each.text]), "text": corpus.texts[each.text],
            }
            for each, value in zip(self.occurrences, self.relevance, strict=True)
        ]  # fmt: skip
        entities = [_flat(each) | {"texts": len(each.texts)} for each in self.entities]
        groups = [_flat(each) for each in self.groups]
        pairs = [_flat(each) | {"differs": each.differs} for each in self.comparisons]
        made = []
        for stem, rows in (
            ("occurrences", occurrences), ("entities", entities), ("groups", groups),
            ("comparisons", pairs),
        ):  # fmt: skip
            made += write_table(rows, folder / stem)
        summary = {
            "schema": "wherefrom/bias/1", "model": corpus.model, "method": corpus.method,
            "explained": corpus.question, "texts": len(corpus), "complete": corpus.complete,
            "skipped": dict(corpus.skipped), "groups": groups, "comparisons": pairs,
            "dropped": self.dropped, "suspects": self.suspects, "cased": self.cased,
            "notes": list(self.notes), "settings": self.settings,
        }  # fmt: skip
        (folder / "bias.json").write_text(
            json.dumps(summary, ensure_ascii=False, indent=1), "utf-8"
        )
        return [*made, folder / "bias.json"]

    def __str__(self) -> str:
        lines = [
            f"{self.corpus.model}, {len(self.corpus)} texts, relevance for {self.corpus.question} "
            f"by {self.corpus.method}"
        ]
        for group in self.groups:
            lines.append(
                f"  {group.name}: {group.names} names, {group.occurrences} occurrences in "
                f"{group.texts} texts; median {group.median:+.4f}, of names "
                f"{group.median_of_names:+.4f}"
            )
        for each in self.comparisons:
            lines.append(
                f"  {each.first} − {each.second}: {each.difference:+.4f} "
                f"[{each.low:+.4f}, {each.high:+.4f}], p = {each.adjusted:.3g}: "
                + ("they differ" if each.differs else "no difference is shown")
            )
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


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

    How names are found, and which are set aside, is told in `find_entities`.
    """
    if corpus.target is None or corpus.target.against is None:
        raise InputError(
            "a bias study explains the difference of two outputs: give target and against, of "
            f"{', '.join(corpus.classes) or 'the model'}."
        )
    settings = {
        "ambiguous": ambiguous, "ordinary": ordinary, "stop": sorted(stop),
        "min_capitalised": min_capitalised, "draws": draws, "seed": seed,
    }  # fmt: skip
    found = find_entities(
        corpus.texts, lexicon, ambiguous=ambiguous, ordinary=ordinary, stop=stop, cased=cased,
        min_capitalised=min_capitalised,
    )  # fmt: skip
    check_groups(found, lexicon)
    relevance = tuple(corpus.spanned(each.text, each.start, each.end) for each in found.found)
    entities = _entities(corpus, found.found, relevance)
    groups = _groups(corpus, found.found, relevance, entities)
    values = {
        group.name: [each.value for each in entities if each.group == group.name]
        for group in groups
        if group.name != AMBIGUOUS
    }
    return Bias(
        corpus=corpus,
        occurrences=found.found,
        relevance=relevance,
        entities=tuple(sorted(entities, key=lambda each: -each.value)),
        groups=tuple(groups),
        comparisons=tuple(compare(values, draws, seed)),
        dropped={why: dict(names.most_common()) for why, names in found.dropped.items()},
        suspects=found.suspects,
        cased=found.cased,
        notes=tuple(_notes(found, groups, corpus)),
        settings=settings,
    )


def check_groups(found: Entities, lexicon: Lexicon) -> None:
    """Refuses a comparison that has fewer than two groups, and says what was set aside."""
    present = {each.group for each in found.found} - {AMBIGUOUS}
    aside = ", ".join(f"{sum(n.values())} {why}" for why, n in found.dropped.items())
    note = f" Set aside: {aside}." if aside else ""
    if not found.found:
        raise InputError(f"none of the {len(lexicon)} names occurs in the texts.{note}")
    if len(lexicon.names) < 2:
        raise InputError(
            f'the names are all of one group, "{lexicon.names[0]}": there is nothing to compare.'
        )
    if len(present) < 2:
        absent = [name for name in lexicon.names if name not in present]
        raise InputError(
            f"no name of the group{'s' if len(absent) > 1 else ''} {', '.join(absent)} occurs in "
            f"the texts, so that there is nothing to compare.{note}"
        )


def _entities(
    corpus: Corpus, found: Iterable[Occurrence], relevance: Iterable[float]
) -> list[Entity]:
    held: dict[tuple[str, str], dict[int, list[float]]] = {}
    for each, value in zip(found, relevance, strict=True):
        held.setdefault((each.group, each.name), {}).setdefault(each.text, []).append(value)
    entities = []
    for (group, name), by_text in held.items():
        means = [float(np.mean(values)) for values in by_text.values()]
        low, value, high = np.quantile(means, [0.25, 0.5, 0.75]).tolist()
        entities.append(
            Entity(
                name, group, value, low, high, sum(map(len, by_text.values())),
                tuple(by_text), naive(corpus, by_text),
            )
        )  # fmt: skip
    return entities


def _groups(
    corpus: Corpus,
    found: tuple[Occurrence, ...],
    relevance: tuple[float, ...],
    entities: list[Entity],
) -> list[Group]:
    groups = []
    for name in sorted({each.group for each in found}):
        own = [i for i, each in enumerate(found) if each.group == name]
        values = [relevance[i] for i in own]
        texts = {found[i].text for i in own}
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
        names = [each.value for each in entities if each.group == name]
        groups.append(
            Group(
                name, len(names), len(own), len(texts), median, float(np.median(names)),
                (low, high), naive(corpus, texts),
            )
        )  # fmt: skip
    return groups


def _notes(found: Entities, groups: list[Group], corpus: Corpus) -> list[str]:
    notes = []
    few = [f"{group.name} ({group.names})" for group in groups if group.names < FEW]
    if few:
        notes.append(f"few names: {', '.join(few)}. Only a large difference could be shown.")
    if not found.cased:
        notes.append(
            "the texts are in lower case, where nothing tells a name from a word: names that are "
            "ordinary words were looked for in a short list of English ones."
        )
    if found.suspects:
        named = ", ".join(f"{n} ({a} of {b})" for n, (a, b) in list(found.suspects.items())[:12])
        notes.append(f"often after an article, so perhaps no names: {named}.")
    if not corpus.complete:
        notes.append("the run was interrupted: this is what was done until then.")
    return notes


def _flat(each: Any) -> dict[str, Any]:
    """A row of a table: what is nested becomes columns of its own."""
    flat: dict[str, Any] = {}
    for key, value in asdict(each).items():
        if isinstance(value, dict):
            flat |= {f"{key}_{inner}": held for inner, held in value.items()}
        elif key == "quartiles":
            flat |= {"low": value[0], "high": value[1]}
        elif key == "names" and isinstance(value, tuple):
            flat |= {"names_first": value[0], "names_second": value[1]}
        else:
            flat[key] = value
    return flat
