"""Evaluates a set in parts of 100 samples, so that more samples can be added to finished ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import wherefrom
from reproduction.methods import methods_of
from reproduction.result import MEASURES, SetResult
from reproduction.sets import ReproductionSet, Samples

PART = 100
STUDY = "layers"  # the collapse at norms, measured on the first part


def evaluate_set(
    of: ReproductionSet,
    samples: Samples,
    parts: int,
    folder: Path,
    progress: Callable[[float, str], None],
) -> tuple[SetResult, bool]:
    """The result for the first parts of the samples, and whether all of these were evaluated.

    What `folder` has already is read from it. Ctrl-C gives the samples so far.
    """
    methods = methods_of(of.kind)
    rows = {method.label: row for row, method in methods.items()}
    result = SetResult(of.name)
    for number in range(min(parts, -(-len(samples.rows) // PART))):
        first = number * PART

        def report(done: float, total: int, step: str, first: int = first) -> None:
            progress(first + done, step)

        evaluation = wherefrom.evaluate(
            samples.explainer,
            samples.rows[first : first + PART],
            list(methods.values()),
            list(MEASURES) if number else [*MEASURES, STUDY],
            truncate=True,
            out=folder / f"part-{number}",
            resume=True,
            progress=report,
        )
        result.add(evaluation, rows)
        if not number:
            result.norms = evaluation.study_summaries.get(STUDY, {}).get("norms", {})
        if not evaluation.complete:
            return result, False
    return result, True


def finished(folder: Path) -> int:
    """Samples that the checkpoints in a folder have."""
    files = folder.glob("part-*/checkpoint/part-*.json")
    return sum(len(json.loads(file.read_bytes())["samples"]) for file in files)
