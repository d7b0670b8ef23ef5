"""What a test of one explanation measures."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from scipy.stats import rankdata

from wherefrom.errors import MethodError, nearest
from wherefrom.explanation import Explanation

Floats = NDArray[np.float64]
Masks = NDArray[np.bool_]  # (K, units): which units are there
Curve = Floats | None


def fractions(units: int, every: bool) -> list[float]:
    """0, 0.1 … 1, or every single unit."""
    if every:
        return [k / units for k in range(units + 1)]
    return [k / 10 for k in range(11)]


def first(order: NDArray[np.int64], counts: list[int]) -> Masks:
    """Masks that are true for the first so many of an order."""
    masks = np.zeros((len(counts), len(order)), dtype=bool)
    for row, count in enumerate(counts):
        masks[row, order[:count]] = True
    return masks


def stepwise(order: NDArray[np.int64], every: bool) -> Masks:
    """Masks that are true for ⌈share · N⌉ units of an order, for each of the shares."""
    size = len(order)
    return first(order, [math.ceil(round(f * size, 9)) for f in fractions(size, every)])


@dataclass(frozen=True)
class Sample:
    """What a metric may know of one explained input: `free` are the units that may be erased."""

    explanation: Explanation
    free: NDArray[np.bool_]
    target: int
    every: bool

    @property
    def scores(self) -> Floats:
        """The scores of the units that may be erased."""
        return self.explanation.scores.astype(np.float64)[self.free]

    def spread(self, masks: Masks) -> Masks:
        """Masks over the free units as masks over all; the others are always there."""
        whole = np.ones((len(masks), len(self.free)), dtype=bool)
        whole[:, self.free] = masks
        return whole


class Metric(ABC):
    """A number for each explanation, perhaps with the curve it sums up."""

    name: ClassVar[str]
    title: ClassVar[str]
    better: ClassVar[Literal["higher", "lower", ""]]

    def masks(self, sample: Sample) -> Masks:
        """The perturbed inputs to run; none by default."""
        return np.zeros((0, len(sample.free)), dtype=bool)

    @abstractmethod
    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        """The number, and the curve over `fractions`, from the logits of the masks."""


class Activation(Metric):
    """AUAC: units come back by descending score; the probability of the class explained."""

    name = "activation"
    title = "AUAC"
    better: ClassVar[Literal["higher", "lower", ""]] = "higher"

    def masks(self, sample: Sample) -> Masks:
        return sample.spread(stepwise(np.argsort(-sample.scores, kind="stable"), sample.every))

    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        curve = softmax(logits, axis=1)[:, sample.target]
        return area(curve), curve


class Pruning(Metric):
    """AU-MSE: units go by ascending absolute score; the squared change of the logits."""

    name = "pruning"
    title = "AU-MSE"
    better = "lower"

    def masks(self, sample: Sample) -> Masks:
        order = np.argsort(np.abs(sample.scores), kind="stable")
        return sample.spread(~stepwise(order, sample.every))

    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        curve = np.square(logits - logits[0]).sum(1)
        return area(curve), curve


class Insertion(Activation):
    """Insertion: as activation, under the name it has for images (Petsiuk et al. 2018)."""

    name = "insertion"
    title = "insertion"


class Deletion(Activation):
    """Deletion: units go by descending score; the probability of the class explained."""

    name = "deletion"
    title = "deletion"
    better = "lower"

    def masks(self, sample: Sample) -> Masks:
        order = np.argsort(-sample.scores, kind="stable")
        return sample.spread(~stepwise(order, sample.every))


@dataclass(frozen=True)
class Perturbation(Metric):
    """Units go in tenths, from 10 to 90 %, the most relevant first or last (Chefer et al. 2021).

    The area of the class's probability over these shares, or of whether it is still the decision.
    """

    positive: bool
    accuracy: bool

    @property
    def name(self) -> str:  # type: ignore[override]
        """Which of the four it is."""
        return ("positive" if self.positive else "negative") + "_accuracy" * self.accuracy

    @property
    def title(self) -> str:  # type: ignore[override]
        """As the table's head shows it."""
        return ("pos." if self.positive else "neg.") + (" acc." if self.accuracy else " prob.")

    @property
    def better(self) -> Literal["higher", "lower", ""]:  # type: ignore[override]
        """Taking what matters first should hurt soon, and last, late."""
        return "lower" if self.positive else "higher"

    def masks(self, sample: Sample) -> Masks:
        scores = sample.scores if self.positive else -sample.scores
        order = np.argsort(-scores, kind="stable")
        counts = [math.ceil(round(k * len(order) / 10, 9)) for k in range(1, 10)]
        return sample.spread(~first(order, counts))

    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        if self.accuracy:
            curve = (logits.argmax(1) == sample.target).astype(np.float64)
        else:
            curve = softmax(logits, axis=1)[:, sample.target]
        return area(curve), None


class Flip(Metric):
    """The share of units removed, best first, before the decision changes (1 if it never does)."""

    name = "flip"
    title = "to flip"
    better = "lower"

    def masks(self, sample: Sample) -> Masks:
        order = np.argsort(-sample.scores, kind="stable")
        return sample.spread(~first(order, list(range(len(order) + 1))))

    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        decided = logits.argmax(1)
        changed = np.nonzero(decided != decided[0])[0]
        return (changed[0] / (len(logits) - 1) if len(changed) else 1.0), None


class LeaveOneOut(Metric):
    """Rank correlation of the scores with what the target loses without each unit."""

    name = "leave_one_out"
    title = "ρ(LOO)"
    better = "higher"

    def masks(self, sample: Sample) -> Masks:
        size = int(sample.free.sum())
        return sample.spread(np.concatenate([np.ones((1, size), bool), ~np.eye(size, dtype=bool)]))

    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        lost = logits[0, sample.target] - logits[1:, sample.target]
        return correlation(sample.scores, lost), None


class Conservation(Metric):
    """|Σ lines − output| / |output|: what the explanation does not account for."""

    name = "conservation"
    title = "gap"
    better = "lower"

    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        ledger = sample.explanation.ledger
        total = float(sample.explanation.scores.sum()) if ledger is None else ledger.total
        output = sample.explanation.output
        return abs(total - output) / max(abs(output), 1e-12), None


class Conciseness(Metric):
    """The share of units that hold 90 % of the absolute score."""

    name = "conciseness"
    title = "for 90 %"
    better = "lower"

    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        sizes = np.sort(np.abs(sample.scores))[::-1]
        if not sizes.sum():
            return 1.0, None
        enough = np.searchsorted(np.cumsum(sizes) / sizes.sum(), 0.9 - 1e-12) + 1
        return min(int(enough), len(sizes)) / len(sizes), None


class Entropy(Metric):
    """The entropy of the absolute scores, 1 if all units have the same."""

    name = "entropy"
    title = "entropy"
    better = ""

    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        sizes = np.abs(sample.scores)
        if len(sizes) < 2 or not sizes.sum():
            return 1.0, None
        shares = sizes[sizes > 0] / sizes.sum()
        return float(-(shares * np.log(shares)).sum() / math.log(len(sizes))), None


METRICS: dict[str, Metric] = {
    each.name: each
    for each in (
        Activation(),
        Pruning(),
        Insertion(),
        Deletion(),
        Perturbation(positive=True, accuracy=False),
        Perturbation(positive=False, accuracy=False),
        Perturbation(positive=True, accuracy=True),
        Perturbation(positive=False, accuracy=True),
        Flip(),
        LeaveOneOut(),
        Conservation(),
        Conciseness(),
        Entropy(),
    )
}


def metric(name: str | Metric) -> Metric:
    """The metric of this name."""
    if isinstance(name, Metric):
        return name
    if name not in METRICS:
        raise MethodError(f'there is no metric "{name}"; {nearest(name, METRICS)}')
    return METRICS[name]


def area(curve: Floats) -> float:
    """The area under a curve over evenly spaced fractions from 0 to 1, by trapezoids."""
    return float(np.trapezoid(curve, dx=1 / (len(curve) - 1)))


def correlation(a: Floats, b: Floats) -> float:
    """Spearman's; 0 where one of the two is constant and says nothing."""
    return float(correlations(np.stack([a, b]))[0, 1])


def correlations(rows: Floats) -> Floats:
    """Spearman's of all pairs of rows, (n, n): Pearson's of their ranks, ties sharing theirs."""
    ranks = rankdata(rows, axis=1)
    ranks -= ranks.mean(1, keepdims=True)
    length = np.sqrt(np.square(ranks).sum(1))
    scale = np.where(length > 0, 1 / np.where(length > 0, length, 1), 0.0)
    found: Floats = (ranks @ ranks.T) * scale[:, None] * scale[None, :]
    return found
