"""Runs the cases: explains each by every library, then leaves units out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import typer

from benchmarks.answers.cases import Case, generated
from benchmarks.answers.figures import RANDOM, REFERENCE, WAYS, by_unit, ranked, recall
from benchmarks.answers.libraries import Library, Task
from benchmarks.answers.reference import Reference

DELETED = 3  # units of a method's ranking, one after the other
LONG = 20  # units; beyond, only the first is deleted


def explained(
    reference: Reference, case: Case, number: int, results: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """What is kept of a case: by method the totals of its units, time, memory and gap."""
    count, units = len(case.units), reference.membership(case)
    methods: dict[str, dict[str, Any]] = {}
    for name, result in results.items():
        scores = result.pop("scores", None)
        methods[name] = result
        if scores is None:
            continue
        for way in WAYS:
            result[way] = [float(f"{total:.6g}") for total in by_unit(scores, units, count, way)]
        highest = 1 + int(np.argmax(scores[1:]))
        result["token"] = float(units[highest] in case.sources)
    noise = np.random.default_rng(number).random(count).round(6).tolist()
    methods[RANDOM] = dict.fromkeys(WAYS, noise)
    return {
        "number": number,
        "tokens": len(units),
        "units": count,
        "sources": list(case.sources),
        "methods": methods,
    }


def delete(reference: Reference, case: Case, record: dict[str, Any], way: str) -> None:
    """Adds what leaving units out does: each alone, and by each method's ranking.

    Of a long text units are not left out one by one, and only the first of a ranking is deleted.
    """
    cache: dict[frozenset[int], float] = {}

    def log_probability(without: Sequence[int] = ()) -> float:
        key = frozenset(without)
        if key not in cache:
            cache[key] = reference.judged(case, sorted(key))[1]
        return cache[key]

    long = len(case.units) > LONG
    if not long:
        whole = log_probability()
        drops = [whole - log_probability((unit,)) for unit in range(len(case.units))]
        record["methods"][REFERENCE] = dict.fromkeys(WAYS, drops)
    for entry in record["methods"].values():
        if "error" not in entry:
            order = ranked(np.array(entry[way]))
            steps = range(2 if long else DELETED + 1)
            entry["curve"] = [log_probability(order[:step]) for step in steps]
    record["way"] = way


def results_of(
    libraries: list[Library], reference: Reference, case: Case, names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """What each of these methods gives for a case."""
    ids = [reference.ids(text) for text in (case.prompt(), case.answer)]
    task = Task(case.prompt(), case.answer, *ids)
    return {
        name: library.explain(name, task)
        for library in libraries
        for name in library.methods
        if name in names
    }


def run(
    libraries: list[Library],
    reference: Reference,
    goals: dict[str, int],
    report: dict[str, Any],
    only: dict[str, list[str]],
    save: Callable[[], None],
    minutes: float,
) -> None:
    """Adds cases to the report, one of each kind in turn, until there are enough or time is up."""
    until = time.monotonic() + 60 * minutes
    sources = {kind: generated(kind, report["generated"].get(kind, 0)) for kind in goals}
    cases: dict[str, list[Any]] = report["cases"]
    while kinds := [kind for kind in goals if len(cases.setdefault(kind, [])) < goals[kind]]:
        if time.monotonic() > until:
            return
        for kind in kinds:
            number, case = next(pair for pair in sources[kind] if reference.counts(pair[1]))
            results = results_of(libraries, reference, case, only[kind])
            cases[kind].append(explained(reference, case, number, results))
            report["generated"][kind] = number + 1
            save()
            typer.echo(f"{kind}: {len(cases[kind])} of {goals[kind]}", err=True)


def fill(
    libraries: list[Library],
    reference: Reference,
    report: dict[str, Any],
    only: dict[str, list[str]],
    save: Callable[[], None],
) -> None:
    """Runs the methods that cases of the report lack."""
    for kind, records in report["cases"].items():
        for record in records:
            lacking = [
                name
                for library in libraries
                for name in library.methods
                if name in only.get(kind, ()) and name not in record["methods"]
            ]
            if lacking:
                case = next(generated(kind, record["number"]))[1]
                added = explained(
                    reference,
                    case,
                    record["number"],
                    results_of(libraries, reference, case, lacking),
                )
                record["methods"] |= {name: added["methods"][name] for name in lacking}
                record.pop("way", None)
                save()


def finish(reference: Reference, report: dict[str, Any], save: Callable[[], None]) -> None:
    """Leaves units out in those cases that are shown and have not been through it."""
    way = best_way(report["cases"])
    for kind, records in report["cases"].items():
        for record in shown(kind, records):
            if record.get("way") != way:
                case = next(generated(kind, record["number"]))[1]
                delete(reference, case, record, way)
                save()
        typer.echo(f"{kind}: units left out", err=True)


def short(kind: str) -> bool:
    """Whether units are left out one by one, and some cases are for validation."""
    return not kind.startswith("needles")


def shown(kind: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cases that tables show: of short kinds all but every fourth, of needles all."""
    return [r for place, r in enumerate(records) if place % 4 or not short(kind)]


def names_of(records: Sequence[dict[str, Any]]) -> list[str]:
    """The methods that explained every one of these cases."""
    return [
        name
        for name in records[0]["methods"]
        if all("error" not in r["methods"].get(name, {"error": ""}) for r in records)
    ]


def best_way(cases: dict[str, list[dict[str, Any]]]) -> str:
    """How scores are added up: by the mean recall@1 of all methods on validation cases."""
    means = {
        way: np.mean(
            [
                recall(ranked(np.array(record["methods"][name][way])), record["sources"], 1)
                for kind, records in cases.items()
                if short(kind) and records
                for name in names_of(records[::4])
                if name not in (RANDOM, REFERENCE)
                for record in records[::4]
            ]
            or [0.0]
        )
        for way in WAYS
    }
    return max(WAYS, key=lambda way: means[way])
