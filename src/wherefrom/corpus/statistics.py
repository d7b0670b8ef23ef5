"""Groups of names compared: each name counts once, however often it occurs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """Two groups, and whether a name of the first is more relevant than one of the second.

    `difference` of the medians over names with its 95 % bootstrap interval, `p` by Mann and
    Whitney, `adjusted` by Holm for all pairs, `above` the chance that a name of `first` lies above
    one of `second` (0.5: no difference).
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
    def differs(self) -> bool:
        """Whether the groups differ at the level of 5 %, corrected for the number of pairs."""
        return self.adjusted < 0.05


def compare(
    values: Mapping[str, Sequence[float]], draws: int = 2000, seed: int = 0
) -> list[Comparison]:
    """Every pair of groups, given a value for each name of each group.

    Occurrences of one name, and those in one text, are not independent, and would make any
    difference between two names look like one between their groups. So a name is one observation:
    the test is over names, and so is what the bootstrap draws.
    """
    held = {group: np.asarray(several, dtype=np.float64) for group, several in values.items()}
    pairs = list(combinations(held, 2))
    tests = [_mann_whitney(held[a], held[b]) for a, b in pairs]
    adjusted = holm([p for p, _ in tests])
    found = []
    for (a, b), (p, above), corrected in zip(pairs, tests, adjusted, strict=True):
        chance = np.random.default_rng(seed)
        spread = _medians(held[a], draws, chance) - _medians(held[b], draws, chance)
        low, high = np.quantile(spread, [0.025, 0.975])
        difference = float(np.median(held[a]) - np.median(held[b]))
        found.append(
            Comparison(
                a, b, difference, float(low), float(high), p, corrected, above,
                (len(held[a]), len(held[b])),
            )
        )  # fmt: skip
    return found


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p)), key=lambda i: p[i])
    found = [0.0] * len(p)
    most = 0.0
    for place, i in enumerate(order):
        most = max(most, min(1.0, (len(p) - place) * p[i]))
        found[i] = most
    return found


def _mann_whitney(a: Floats, b: Floats) -> tuple[float, float]:
    from scipy.stats import mannwhitneyu

    if np.ptp(np.concatenate([a, b])) == 0:
        return 1.0, 0.5  # all alike: nothing to rank
    result = mannwhitneyu(a, b, alternative="two-sided")
    return float(result.pvalue), float(result.statistic) / (len(a) * len(b))


def _medians(values: Floats, draws: int, chance: np.random.Generator) -> Floats:
    drawn = chance.integers(0, len(values), (draws, len(values)))
    medians: Floats = np.median(values[drawn], axis=1)
    return medians
