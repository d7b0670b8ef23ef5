"""Which method to use, as far as the samples can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wherefrom.evaluation.intervals import mean_interval
from wherefrom.evaluation.metrics import Floats

_CHEAPER = 1.5  # a smaller ratio of times is not worth a word


@dataclass(frozen=True)
class Recommendation:
    """The method to use, the methods that are level with it, and why, in a sentence or two."""

    method: str
    level: tuple[str, ...]
    text: str


def difference(a: Sequence[float], b: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the mean of a − b over samples, by the paired bootstrap."""
    differences: Floats = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    if len(differences) < 2 or not np.ptp(differences):
        mean = float(differences.mean())
        return (mean, mean) if len(differences) > 1 else (-np.inf, np.inf)
    return mean_interval(differences, seed)


def recommend(
    values: Mapping[str, Mapping[str, Sequence[float]]],
    better: Mapping[str, str],
    titles: Mapping[str, str],
    seconds: Mapping[str, float],
) -> Recommendation:
    """Compares methods by every metric in `better` ("higher" or "lower").

    A method is level with the best of a metric if the interval of their paired difference
    contains zero. Of the methods that are level with the best of every metric, the one that takes
    the least time is recommended. `values` are by method and metric, `seconds` by method.
    """
    leaders = {metric: _leader(values, metric, better[metric]) for metric in better}
    level = [
        method
        for method in values
        if all(
            _is_level(values[method][metric], values[leader][metric])
            for metric, leader in leaders.items()
        )
    ]
    samples = len(next(iter(next(iter(values.values())).values())))
    count = f"{samples} {'sample' if samples == 1 else 'samples'}"
    names = " and ".join(titles.get(metric, metric) for metric in better)
    if not level:
        method = _by_rank(values, better)
        first = "; ".join(
            f"{leader} is best by {titles.get(metric, metric)}"
            for metric, leader in leaders.items()
        )
        text = (
            f"No method is level with the best by {names} ({count}): {first}. {method} has the "
            "best mean rank."
        )
        return Recommendation(method, (), text)
    method = min(level, key=lambda name: seconds.get(name, np.inf))
    others = [name for name in level if name != method]
    if len(values) == 1:
        text = f"{method} alone was measured: there is nothing to compare it with ({count})."
        return Recommendation(method, (method,), text)
    if not others:
        text = f"Use {method}: the best by {names}, beyond what chance explains ({count})."
        return Recommendation(method, (method,), text)
    text = f"{_listed([method, *others])} cannot be told apart by {names} on {count}. Use {method}"
    dearest = max(others, key=lambda name: seconds.get(name, 0.0))
    ratio = seconds.get(dearest, 0.0) / max(seconds.get(method, 0.0), 1e-9)
    if ratio >= _CHEAPER and method in seconds:
        text += f": {ratio:.2g} × cheaper than {dearest}"
    return Recommendation(method, (method, *others), f"{text}.")


def _leader(values: Mapping[str, Mapping[str, Sequence[float]]], metric: str, better: str) -> str:
    sign = 1 if better == "higher" else -1
    return max(values, key=lambda method: sign * float(np.mean(values[method][metric])))


def _is_level(values: Sequence[float], best: Sequence[float]) -> bool:
    low, high = difference(values, best)
    return low <= 0 <= high


def _by_rank(values: Mapping[str, Mapping[str, Sequence[float]]], better: Mapping[str, str]) -> str:
    ranks = dict.fromkeys(values, 0)
    for metric, direction in better.items():
        sign = -1 if direction == "higher" else 1
        means = {method: sign * float(np.mean(values[method][metric])) for method in values}
        for rank, method in enumerate(sorted(values, key=means.__getitem__)):
            ranks[method] += rank
    return min(values, key=ranks.__getitem__)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
