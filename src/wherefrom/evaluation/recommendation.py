"""Recommends a method, if the samples support one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.stats import bootstrap

from wherefrom.errors import counted
from wherefrom.evaluation.metrics import Floats

FEWEST = 30
"""Samples required for a recommendation; intervals of fewer are unreliable."""
MARGIN = 0.02
"""Two methods are level if their difference is shown to be below this share of either mean."""
RESAMPLES = 1000
_AT_A_TIME = 1 << 20  # indices that the bootstrap draws at a time: 8 MB
_FASTER = 1.5  # smaller ratios of running times are ignored
_NAMED = 3  # methods listed in a sentence
_Values = Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class Recommendation:
    """The recommended method, the methods level with it (itself included), and the reason.

    The method is None if the samples do not decide.
    """

    method: str | None
    level: tuple[str, ...]
    text: str


def mean_interval(values: Floats, seed: int = 0, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of the mean of two or more values: percentiles of 1,000 resampled means.

    Not BCa, whose jackknife would need n² numbers. The same seed draws the same samples for all
    values, so that intervals can be compared.
    """
    interval = bootstrap(
        (values,),
        np.mean,
        n_resamples=RESAMPLES,
        batch=max(1, _AT_A_TIME // len(values)),
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def difference(
    a: Sequence[float], b: Sequence[float], seed: int = 0, confidence: float = 0.95
) -> tuple[float, float]:
    """The interval of the mean of a − b over samples, by the paired bootstrap."""
    differences: Floats = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    if len(differences) < 2 or not np.ptp(differences):
        mean = float(differences.mean())
        return (mean, mean) if len(differences) > 1 else (-np.inf, np.inf)
    return mean_interval(differences, seed, confidence)


def is_level(a: Sequence[float], b: Sequence[float], margin: float = MARGIN) -> bool:
    """Whether two means are equivalent, by two one-sided tests at 5 % each (Schuirmann 1987).

    That is: the 90 % interval of the paired difference lies within ± `margin` times the smaller
    absolute mean.
    """
    low, high = difference(a, b, confidence=0.9)
    bound = margin * min(abs(float(np.mean(a))), abs(float(np.mean(b))))
    return -bound <= low and high <= bound


def recommend(
    values: _Values,
    better: Mapping[str, str],
    titles: Mapping[str, str],
    seconds: Mapping[str, float],
    controls: _Values | None = None,
) -> Recommendation:
    """Compares methods by every metric in `better` ("higher" or "lower").

    A method is better than another by a metric if the 95 % interval of their paired difference
    excludes zero, and level with it if `is_level`. Candidates are the methods that are better than
    the `controls` by some metric and worse by none. The recommended method is better than or level
    with every other candidate by every metric; of several such methods, the fastest. `values` and
    `controls` are by method and metric, `seconds` by method.
    """
    return _Comparison(values, better, titles, seconds, controls or {}).result()


@dataclass(frozen=True)
class _Comparison:
    values: _Values
    better: Mapping[str, str]
    titles: Mapping[str, str]
    seconds: Mapping[str, float]
    controls: _Values
    _level: dict[tuple[frozenset[str], str], bool] = field(default_factory=dict)

    def result(self) -> Recommendation:
        candidates = [method for method in self.values if method not in self.weak]
        if self.samples < FEWEST:
            text = (
                f"{self.count} {'is' if self.samples == 1 else 'are'} too few for a "
                f"recommendation: at least {FEWEST} are needed, better a few hundred."
            )
            return Recommendation(None, (), text)
        if not candidates:
            return Recommendation(None, (), f"No method is recommended ({self.count}).{self.rest}")
        if len(candidates) == 1:
            return self._of_one(candidates[0])
        return self._of_several(candidates)

    @cached_property
    def samples(self) -> int:
        return len(next(iter(next(iter(self.values.values())).values())))

    @property
    def count(self) -> str:
        return counted(self.samples, "sample")

    @property
    def control(self) -> str:
        return _listed(list(self.controls))

    @cached_property
    def weak(self) -> dict[str, str]:
        """The methods that do not beat the controls, with the reasons."""
        reasons: dict[str, str] = {}
        for method in self.values if self.controls else ():
            by = self._named([m for m in self.better if self._control_wins(method, m)])
            if by:
                reasons[method] = f"worse than {self.control} by {by}"
            elif not self._ahead(method):
                reasons[method] = f"not shown to be better than {self.control}"
        return reasons

    @property
    def rest(self) -> str:
        """A sentence about each method that does not beat the controls."""
        return "".join(f" {method} is {reason}." for method, reason in self.weak.items())

    def _of_one(self, method: str) -> Recommendation:
        if not self.controls:
            text = f"Only {method} was measured, so there is no comparison"
            return Recommendation(None, (), f"{text} ({self.count}).")
        by = self._named(self._ahead(method))
        text = f"Use {method}: it is better than {self.control} by {by} ({self.count}).{self.rest}"
        return Recommendation(method, (method,), text)

    def _of_several(self, candidates: list[str]) -> Recommendation:
        names = self._named(list(self.better))
        others = "every other method"
        others += f" that is better than {self.control}" if self.weak else ""
        leaders = {metric: self._leader(candidates, metric) for metric in self.better}
        best = [
            method
            for method in candidates
            if all(self._holds(method, leaders[metric], metric) for metric in self.better)
            and all(self._holds(method, o, m) for o in candidates for m in self.better)
        ]
        within = f"within {100 * MARGIN:g} %, {self.count}"
        if len(best) > 1:
            text = f"{_listed(best)} are level by {names} ({within})"
            if len(best) < len(candidates):
                text += f"; {others} is worse than or level with them"
            method, advice = self._fastest(best)
            return Recommendation(method, tuple(best), f"{text}. {advice}{self.rest}")
        if best:
            (method,) = best
            wins = all(
                self._is_better(self.values[method], self.values[other], metric)
                for other in candidates
                for metric in self.better
                if other != method
            )
            reason = (
                f"it is better than {others} by {names} ({self.count})"
                if wins
                else f"by {names}, {others} is worse or level ({within})"
            )
            return Recommendation(method, (method,), f"Use {method}: {reason}.{self.rest}")
        states = [self._state(candidates, metric, leaders[metric], others) for metric in leaders]
        text = f"No method is recommended by {names} ({self.count}): {'; '.join(states)}."
        return Recommendation(None, (), text + self.rest)

    def _state(self, candidates: list[str], metric: str, leader: str, others: str) -> str:
        """What the samples show by one metric."""
        title = self._named([metric])
        open_ = [
            other
            for other in candidates
            if other != leader
            and not self._is_better(self.values[leader], self.values[other], metric)
        ]
        if not open_:
            return f"{leader} is better than {others} by {title}"
        more = [f"{len(open_) - _NAMED} more"] if len(open_) > _NAMED else []
        return (
            f"by {title} {leader} has the best mean, but is not shown to be better than "
            f"{_listed([*open_[:_NAMED], *more])}"
        )

    def _fastest(self, methods: list[str]) -> tuple[str | None, str]:
        """The fastest of several methods, or None if times are similar; and the advice."""
        if all(method in self.seconds for method in methods):
            fastest = min(methods, key=lambda method: self.seconds[method])
            slowest = max(methods, key=lambda method: self.seconds[method])
            ratio = self.seconds[slowest] / max(self.seconds[fastest], 1e-9)
            if ratio >= _FASTER:
                return fastest, f"Use {fastest}: {ratio:.2g} × faster than {slowest}."
        return None, "Use any of them."

    # Comparisons

    def _is_better(
        self, a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]], metric: str
    ) -> bool:
        low, high = difference(a[metric], b[metric])
        return low > 0 if self.better[metric] == "higher" else high < 0

    def _holds(self, method: str, other: str, metric: str) -> bool:
        """Whether a method is better than another by a metric, or level with it."""
        a, b = self.values[method], self.values[other]
        pair = (frozenset((method, other)), metric)
        if pair not in self._level:
            self._level[pair] = method == other or is_level(a[metric], b[metric])
        return self._level[pair] or self._is_better(a, b, metric)

    def _ahead(self, method: str) -> list[str]:
        """The metrics by which a method is better than all controls."""
        values, controls = self.values[method], self.controls.values()
        return [m for m in self.better if all(self._is_better(values, c, m) for c in controls)]

    def _control_wins(self, method: str, metric: str) -> bool:
        values, controls = self.values[method], self.controls.values()
        return any(self._is_better(control, values, metric) for control in controls)

    def _leader(self, methods: Sequence[str], metric: str) -> str:
        sign = 1 if self.better[metric] == "higher" else -1
        return max(methods, key=lambda method: sign * float(np.mean(self.values[method][metric])))

    def _named(self, metrics: list[str]) -> str:
        return _listed([self.titles.get(metric, metric) for metric in metrics])


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
