"""Statistics of a bias study: tests between groups of names, and the naive correlation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any

import numpy as np

from wherefrom.corpus.corpus import Floats

_LEVEL = 0.05


@dataclass(frozen=True)
class GroupComparison:
    """Two groups, and whether names of the first are more relevant than those of the second.

    `difference` of the medians over names, with its 95 % bootstrap interval; `p` by Mann–Whitney,
    `adjusted` by Holm over all pairs; `above`, the probability that a name of `first` scores higher
    than one of `second` (0.5: no difference); `names`, the number of names in each.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    p: float
    adjusted: float
    above: float
    names: tuple[int, int]

    @property
    def testable(self) -> bool:
        """Whether there are enough names: two in each group, and 2 / C(n, k) below the 5 % level.

        That is the smallest p possible with k and n − k names. A single name has no interval.
        """
        smallest = 2 / comb(sum(self.names), self.names[0])
        return min(self.names) >= 2 and smallest < _LEVEL

    @property
    def differs(self) -> bool:
        """Whether the groups differ at the 5 % level, corrected for the number of pairs."""
        return self.testable and self.adjusted < _LEVEL


def compare(
    values: Mapping[str, Sequence[float]], draws: int = 2000, seed: int = 0
) -> list[GroupComparison]:
    """Compares every pair of groups, given one value for each name of each group.

    Occurrences of one name, or in one text, are not independent: a test over occurrences would
    mistake a difference between two frequent names for one between their groups. So a name is one
    observation, in the test and in the bootstrap.
    """
    groups = {name: np.asarray(numbers, dtype=np.float64) for name, numbers in values.items()}
    pairs = list(combinations(groups, 2))
    tests = [_mann_whitney(groups[a], groups[b]) for a, b in pairs]
    adjusted = holm([p for p, _ in tests])
    comparisons = []
    for (a, b), (p, above), corrected in zip(pairs, tests, adjusted, strict=True):
        low, high = _interval(groups[a], groups[b], draws, seed)
        comparisons.append(
            GroupComparison(
                first=a,
                second=b,
                difference=float(_median_difference(groups[a], groups[b])),
                low=low,
                high=high,
                p=p,
                adjusted=corrected,
                above=above,
                names=(len(groups[a]), len(groups[b])),
            )
        )
    return comparisons


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def _mann_whitney(a: Floats, b: Floats) -> tuple[float, float]:
    """The two-sided p-value, and the probability that a value of `a` exceeds one of `b`."""
    if np.ptp(np.concatenate([a, b])) == 0:
        return 1.0, 0.5  # all values are equal: nothing to rank
    from scipy.stats import mannwhitneyu  # here, since scipy takes long to import

    result = mannwhitneyu(a, b, alternative="two-sided")
    return float(result.pvalue), float(result.statistic) / (len(a) * len(b))


def _interval(a: Floats, b: Floats, draws: int, seed: int) -> tuple[float, float]:
    """The 95 % percentile interval of the difference of medians."""
    from scipy.stats import bootstrap

    # SciPy needs two observations; a duplicated value resamples to itself
    samples = [np.repeat(sample, 2) if len(sample) == 1 else sample for sample in (a, b)]
    interval = bootstrap(
        samples, _median_difference, n_resamples=draws, method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval  # fmt: skip
    return float(interval.low), float(interval.high)


def _median_difference(a: Floats, b: Floats, axis: int = -1) -> Any:
    return np.median(a, axis=axis) - np.median(b, axis=axis)


@dataclass(frozen=True)
class NaiveView:
    """The number of texts with a name, their `lift`, and the correlation with the output.

    `lift` is their mean output minus that of all texts. Both describe the contexts of a name, not
    its effect on the model: a name that often occurs in praise correlates with praise even if the
    model ignores it.
    """

    texts: int
    lift: float
    correlation: float


@dataclass(frozen=True)
class Moments:
    """Count, mean and Σ (x − mean)² of outputs; moments of parts can be merged."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @staticmethod
    def of(outputs: Floats) -> Moments:
        """The moments of these outputs."""
        if not len(outputs):
            return Moments()
        mean = float(outputs.mean())
        # exactly 0 for equal outputs, despite the rounded mean
        squares = float(np.square(outputs - mean).sum()) if np.ptp(outputs) else 0.0
        return Moments(len(outputs), mean, squares)

    def merged(self, other: Moments) -> Moments:
        """The moments of both together (Chan, Golub and LeVeque 1983)."""
        if not self.count or not other.count:
            return other if not self.count else self
        count, difference = self.count + other.count, other.mean - self.mean
        return Moments(
            count,
            self.mean + difference * other.count / count,
            self.squares + other.squares + difference**2 * self.count * other.count / count,
        )


def naive_view(outputs: Floats, texts: Collection[int], whole: Moments | None = None) -> NaiveView:
    """Correlates membership in `texts` with the output; `whole` are the moments over all texts."""
    whole = whole or Moments.of(outputs)
    inside = outputs[sorted(texts)]
    count = len(inside)
    if not count:
        return NaiveView(0, 0.0, 0.0)
    lift = float(inside.mean()) - whole.mean
    constant = count == whole.count or whole.squares == 0
    share = 0.0 if constant else count / (whole.count - count)
    spread = 1.0 if constant else np.sqrt(whole.squares / whole.count)
    return NaiveView(count, lift, float(lift * np.sqrt(share) / spread))
