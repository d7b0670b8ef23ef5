"""Which method to use, as far as the samples can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wherefrom.evaluation.intervals import mean_interval
from wherefrom.evaluation.metrics import Floats

FEWEST = 10
"""Samples; the intervals of fewer say little."""
_DEFAULT = "lrp"
_CHEAPER = 1.5  # a smaller ratio of times is not worth a word
_Values = Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class Recommendation:
    """The method to use, the methods that are level with it, and why, in a sentence or two.

    The method is None where the samples are too few, or no method is better than the control.
    """

    method: str | None
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
    values: _Values,
    better: Mapping[str, str],
    titles: Mapping[str, str],
    seconds: Mapping[str, float],
    controls: _Values | None = None,
) -> Recommendation:
    """Compares methods by every metric in `better` ("higher" or "lower").

    A method is a candidate if it is better than each of the `controls` by some metric and worse by
    none. A candidate is level with the best of a metric if the interval of their paired difference
    contains zero. Of those that are level with the best of every metric, `lrp` is recommended, the
    default; without it the one with the best mean rank, then the one that takes the least time.
    `values` and `controls` are by method and metric, `seconds` by method.
    """
    controls = controls or {}
    samples = len(next(iter(next(iter(values.values())).values())))
    count = f"{samples} {'sample' if samples == 1 else 'samples'}"
    names = " and ".join(titles.get(metric, metric) for metric in better)
    if samples < FEWEST:
        are = "is" if samples == 1 else "are"
        text = f"{count} {are} too few for a recommendation; use a few hundred."
        return Recommendation(None, (), text)
    candidates = {
        method: numbers
        for method, numbers in values.items()
        if all(_is_better(numbers, control, better) for control in controls.values())
    }
    control = _listed(list(controls)) if controls else ""
    if len(values) == 1:
        return _of_one(next(iter(values)), bool(candidates), control, names, count)
    if not candidates:
        text = f"No method here is better than the control {control} by {names} ({count})."
        return Recommendation(None, (), text)
    return _of_candidates(candidates, better, titles, seconds, names, count)


def _of_one(method: str, is_better: bool, control: str, names: str, count: str) -> Recommendation:
    """What can be said of one method, beside a control or nothing."""
    if not control:
        text = f"{method} alone was measured: there is nothing to compare it with ({count})."
        return Recommendation(method, (method,), text)
    only = f"{method} is the only method here besides the control {control}"
    if not is_better:
        return Recommendation(None, (), f"{only}, and not better than it by {names} ({count}).")
    return Recommendation(method, (method,), f"{only}, and better than it by {names} ({count}).")


def _of_candidates(
    values: _Values,
    better: Mapping[str, str],
    titles: Mapping[str, str],
    seconds: Mapping[str, float],
    names: str,
    count: str,
) -> Recommendation:
    """The best of several methods, each better than the control."""
    leaders = {metric: _leader(values, metric, better[metric]) for metric in better}
    level = [
        method
        for method in values
        if all(
            _is_level(values[method][metric], values[leader][metric])
            for metric, leader in leaders.items()
        )
    ]
    if not level:
        method = _by_rank(values, better, seconds)
        first = "; ".join(
            f"{leader} is best by {titles.get(metric, metric)}"
            for metric, leader in leaders.items()
        )
        text = (
            f"No method is level with the best by {names} ({count}): {first}. {method} has the "
            "best mean rank."
        )
        return Recommendation(method, (), text)
    tied = {name: values[name] for name in level}
    method = _DEFAULT if _DEFAULT in tied else _by_rank(tied, better, seconds)
    others = [name for name in level if name != method]
    if not others:
        text = f"Use {method}: the best by {names}, beyond what chance explains ({count})."
        return Recommendation(method, (method,), text)
    text = f"{_listed([method, *others])} cannot be told apart by {names} on {count}. Use {method}"
    text += "" if method == _DEFAULT else ", which has the best mean rank"
    dearest = max(others, key=lambda name: seconds.get(name, 0.0))
    ratio = seconds.get(dearest, 0.0) / max(seconds.get(method, 0.0), 1e-9)
    if ratio >= _CHEAPER and method in seconds:
        text += f": {ratio:.2g} × cheaper than {dearest}"
    return Recommendation(method, (method, *others), f"{text}.")


def _is_better(
    values: Mapping[str, Sequence[float]],
    control: Mapping[str, Sequence[float]],
    better: Mapping[str, str],
) -> bool:
    """Whether a method is better than a control by some metric, and worse by none."""
    signs = []
    for metric, direction in better.items():
        low, high = difference(values[metric], control[metric])
        sign = 1 if direction == "higher" else -1
        signs.append(sign * ((low > 0) - (high < 0)))
    return max(signs) > 0 and min(signs) >= 0


def _leader(values: _Values, metric: str, better: str) -> str:
    sign = 1 if better == "higher" else -1
    return max(values, key=lambda method: sign * float(np.mean(values[method][metric])))


def _is_level(values: Sequence[float], best: Sequence[float]) -> bool:
    low, high = difference(values, best)
    return low <= 0 <= high


def _by_rank(values: _Values, better: Mapping[str, str], seconds: Mapping[str, float]) -> str:
    """The method with the best mean rank; of equal ones the one that takes the least time."""
    ranks = dict.fromkeys(values, 0)
    for metric, direction in better.items():
        sign = -1 if direction == "higher" else 1
        means = {method: sign * float(np.mean(values[method][metric])) for method in values}
        for method, mean in means.items():
            ranks[method] += sum(other < mean for other in means.values())
    return min(values, key=lambda method: (ranks[method], seconds.get(method, np.inf)))


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
