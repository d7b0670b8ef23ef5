"""From scores of tokens to ranks of units, and what is counted of a ranking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

Floats = NDArray[np.float64]
RANDOM, REFERENCE = "random", "leave one out"
WAYS = ("signed", "positive")


def by_unit(scores: Sequence[float], units: Sequence[int], count: int, way: str) -> Floats:
    """The scores of tokens added up by unit: signed, or the positive ones only."""
    totals = np.zeros(count)
    for score, unit in zip(scores, units, strict=True):
        if unit >= 0:
            totals[unit] += score if way == "signed" else max(score, 0.0)
    return totals


def ranked(totals: Floats) -> list[int]:
    """The units, the highest first; of equal ones the earlier."""
    return np.argsort(-totals, kind="stable").tolist()  # type: ignore[no-any-return]


def recall(order: Sequence[int], sources: Sequence[int], k: int) -> float:
    """The share of the sources among the first k."""
    return len(set(order[:k]) & set(sources)) / len(sources)


def area(curve: Sequence[float]) -> float:
    """The mean height of a curve over equal steps, by the trapezoidal rule."""
    values = np.asarray(curve)
    return float((values[1:] + values[:-1]).mean() / 2)


def value(record: dict[str, Any], name: str, column: str, way: str) -> float:
    """One figure of a method for a case; NaN where there is none."""
    entry = record["methods"][name]
    totals = np.array(entry[way])
    order = ranked(totals)
    if column.startswith("recall@"):
        return recall(order, record["sources"], int(column[7:]))
    if column == "sources":  # recall at their number
        return recall(order, record["sources"], len(record["sources"]))
    if column == "token":
        return float(entry.get("token", np.nan))
    if column == "deletion":
        curve = entry["curve"]
        return area(curve) if len(curve) > 2 else float(curve[1])
    if REFERENCE not in record["methods"]:
        return np.nan
    drops = np.array(record["methods"][REFERENCE][way])
    if column == "first":
        return float(order[0] == int(drops.argmax()))
    rho = float(spearmanr(totals, drops).statistic) if np.ptp(totals) else 0.0
    return rho


def values(records: Sequence[dict[str, Any]], name: str, column: str, way: str) -> list[float]:
    """A figure of a method for each case."""
    return [value(record, name, column, way) for record in records]
