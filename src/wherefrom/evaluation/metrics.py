"""Metrics of explanations: the base class for your own, and the built-in ones."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import trapezoid
from scipy.special import expit, softmax
from scipy.stats import entropy, rankdata

from wherefrom.core.explanation import Explanation
from wherefrom.core.shapley import BUDGET, Agreement, coalitions
from wherefrom.core.target import ToProbability
from wherefrom.errors import MethodError

Floats = NDArray[np.float64]
Masks = NDArray[np.bool_]  # (K, units): which units are present
Curve = Floats | None
Better = Literal["higher", "lower", ""]


def fractions(units: int, every: bool) -> list[float]:
    """0, 0.1 … 1, or one step per unit."""
    if every:
        return [k / units for k in range(units + 1)]
    return [k / 10 for k in range(11)]


def leading(order: NDArray[np.int64], counts: list[int]) -> Masks:
    """One mask per count: true for this number of units at the front of the order."""
    masks = np.zeros((len(counts), len(order)), dtype=bool)
    for row, count in enumerate(counts):
        masks[row, order[:count]] = True
    return masks


def stepwise(order: NDArray[np.int64], every: bool) -> Masks:
    """One mask per fraction f of `fractions`: true for the first ⌈f · N⌉ units of the order."""
    size = len(order)
    return leading(order, [math.ceil(round(f * size, 9)) for f in fractions(size, every)])


def descending(scores: Floats) -> NDArray[np.int64]:
    """Unit indices by descending score; ties keep their order."""
    return np.argsort(-scores, kind="stable")


@dataclass(frozen=True)
class Sample:
    """One explained input.

    `erasable` marks the units that may be erased, `target` is the index of the explained class.
    With `every`, curves have one step per unit instead of ten. `to_probability` is the function
    that turns the model's outputs into probabilities.
    """

    explanation: Explanation
    erasable: NDArray[np.bool_]
    target: int
    every: bool
    to_probability: ToProbability = "softmax"

    def chances(self, logits: Floats) -> Floats:
        """The probability of the class in each row, or its output if there are no probabilities."""
        if self.to_probability == "softmax":
            logits = softmax(logits, axis=1)
        chosen = logits[:, self.target]
        return expit(chosen) if self.to_probability == "sigmoid" else chosen

    def predictions(self, logits: Floats) -> NDArray[np.int64]:
        """The predicted class of each row.

        For independent labels: the target if it is more likely than not, else −1.
        """
        if self.to_probability == "sigmoid":
            return np.where(logits[:, self.target] > 0, self.target, -1)
        largest: NDArray[np.int64] = logits.argmax(1)
        return largest

    @property
    def scores(self) -> Floats:
        """The scores of the erasable units."""
        return self.explanation.scores.astype(np.float64)[self.erasable]

    def over_all_units(self, masks: Masks) -> Masks:
        """Extends masks over the erasable units to all units; the others are always present."""
        extended = np.ones((len(masks), len(self.erasable)), dtype=bool)
        extended[:, self.erasable] = masks
        return extended


class Metric(ABC):
    """A number for each explanation, optionally with the curve that it summarises.

    Subclass it and pass an instance to `evaluate(metrics=[...])`. A subclass defines:

    - `name`: identifies the metric in results, files and checkpoints. A metric with settings
      should include them in its name.
    - `title` (optional): the heading of its column, by default the name.
    - `better`: "higher" or "lower", or "" (the default) if neither is better; `Evaluation.best`
      and the marks in tables follow it.
    - `needs_classes` (optional): whether it counts predictions, which a regression model does
      not make.
    - `masks(sample)` (optional): which perturbed inputs to run, one row of booleans over the
      units for each (True: present). Equal inputs of all metrics and methods run once.
    - `value(sample, logits)`: the number, and a curve or None. Row k of `logits` is the model's
      output for mask k. Samples with a value that is not finite are left out and listed.

    >>> class Largest(Metric):
    ...     '''The largest unit's share of the absolute scores.'''
    ...
    ...     name = "largest"
    ...     better = "higher"
    ...
    ...     def value(self, sample, logits):
    ...         sizes = abs(sample.scores)
    ...         return sizes.max() / sizes.sum(), None
    """

    name: str
    title: str = ""
    better: Better = ""
    needs_classes: bool = False

    def masks(self, sample: Sample) -> Masks:
        """The perturbed inputs to run, (K, units); by default none."""
        return np.zeros((0, len(sample.erasable)), dtype=bool)

    @abstractmethod
    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        """The number, and its curve or None; `logits` (K, classes) has a row for each mask."""


class Activation(Metric):
    """AUAC: units are put back by descending score; area under the class's probability."""

    name = "activation"
    title = "AUAC"
    better: Better = "higher"

    def masks(self, sample: Sample) -> Masks:
        return sample.over_all_units(stepwise(descending(sample.scores), sample.every))

    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        curve = sample.chances(logits)
        return area(curve), curve


class Pruning(Metric):
    """AU-MSE: units are erased by ascending absolute score; area under Σ (logits − logits₀)²."""

    name = "pruning"
    title = "AU-MSE"
    better = "lower"

    def masks(self, sample: Sample) -> Masks:
        order = descending(-np.abs(sample.scores))
        return sample.over_all_units(~stepwise(order, sample.every))

    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        curve = np.square(logits - logits[0]).sum(1)
        return area(curve), curve


class Insertion(Activation):
    """Insertion (Petsiuk et al. 2018): the same as activation, under its name for images."""

    name = "insertion"
    title = "insertion"


class Deletion(Activation):
    """Deletion (Petsiuk et al. 2018): units are erased by descending score; area as AUAC."""

    name = "deletion"
    title = "deletion"
    better = "lower"

    def masks(self, sample: Sample) -> Masks:
        return sample.over_all_units(~stepwise(descending(sample.scores), sample.every))


class Perturbation(Metric):
    """Perturbation tests (Chefer et al. 2021): 10, 20 … 90 % of the units are erased.

    The most relevant units are erased first (positive) or last (negative). The value is the area
    under the class's probability, or under the accuracy, over these shares.
    """

    def __init__(self, positive: bool, accuracy: bool) -> None:
        self.positive, self.accuracy = positive, accuracy
        self.name = ("positive" if positive else "negative") + "_accuracy" * accuracy
        self.title = ("pos." if positive else "neg.") + (" acc." if accuracy else " prob.")
        # erasing relevant units lowers the curve early, erasing irrelevant ones late
        self.better = "lower" if positive else "higher"
        self.needs_classes = accuracy

    def masks(self, sample: Sample) -> Masks:
        order = descending(sample.scores if self.positive else -sample.scores)
        counts = [math.ceil(round(k * len(order) / 10, 9)) for k in range(1, 10)]
        return sample.over_all_units(~leading(order, counts))

    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        if not self.accuracy:
            return area(sample.chances(logits)), None
        correct = sample.predictions(logits) == sample.target
        return area(correct.astype(np.float64)), None


class Flip(Metric):
    """The share of units erased by descending score before the prediction flips; 1 if never.

    The prediction is that of the whole input, even if a different class is explained.
    """

    name = "flip"
    title = "to flip"
    better = "lower"
    needs_classes = True

    def masks(self, sample: Sample) -> Masks:
        order = descending(sample.scores)
        return sample.over_all_units(~leading(order, list(range(len(order) + 1))))

    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        predicted = sample.predictions(logits)
        changed = np.nonzero(predicted != predicted[0])[0]
        return (changed[0] / (len(logits) - 1) if len(changed) else 1.0), None


class LeaveOneOut(Metric):
    """Rank correlation of the scores with the drop of the target when each unit is erased."""

    name = "leave_one_out"
    title = "ρ(LOO)"
    better = "higher"

    def masks(self, sample: Sample) -> Masks:
        size = int(sample.erasable.sum())
        masks = np.concatenate([np.ones((1, size), bool), ~np.eye(size, dtype=bool)])
        return sample.over_all_units(masks)

    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        drops = logits[0, sample.target] - logits[1:, sample.target]
        return correlation(sample.scores, drops), None


class Conservation(Metric):
    """|Σ lines − output| / |output|: the share of the output that the ledger does not explain."""

    name = "conservation"
    title = "gap"
    better = "lower"

    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        ledger = sample.explanation.ledger
        total = float(sample.explanation.scores.sum()) if ledger is None else ledger.total
        output = sample.explanation.output
        return abs(total - output) / max(abs(output), 1e-12), None


class Completeness(Metric):
    """|Σ scores − (f(x) − f(x′))| / |f(x) − f(x′)|, where x′ has all units erased."""

    name = "completeness"
    title = "completeness gap"
    better = "lower"

    def masks(self, sample: Sample) -> Masks:
        ends = np.array([[True], [False]]).repeat(sample.erasable.sum(), 1)
        return sample.over_all_units(ends)

    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        whole, erased = logits[:, sample.target].tolist()
        gap = abs(float(sample.scores.sum()) - (whole - erased))
        return (gap / abs(whole - erased) if whole != erased else math.nan), None


class ShapleyAgreement(Metric):
    """Agreement with Shapley values of units that are present or erased.

    `r`: Pearson's correlation; `slope`: of Shapley values on scores by least squares, 1 if the
    scores have the right size; `error`: mean |score − Shapley value| / mean |Shapley value|. The
    Shapley values are exact if `budget` model evaluations are enough for all subsets, up to 12
    units by default, else sampled. They are those of the method `shapley`.
    """

    def __init__(self, statistic: Literal["r", "slope", "error"], budget: int = BUDGET) -> None:
        self.statistic, self.budget = statistic, budget
        self.name = f"shapley_{statistic}" + (f"_{budget}" if budget != BUDGET else "")
        self.title = f"Shapley {statistic}"
        directions: dict[str, Better] = {"r": "higher", "slope": "", "error": "lower"}
        self.better = directions[statistic]

    def masks(self, sample: Sample) -> Masks:
        plan = coalitions(int(sample.erasable.sum()), self.budget)
        return sample.over_all_units(plan.masks.numpy())

    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        outputs = torch.from_numpy(np.ascontiguousarray(logits[:, sample.target]))
        plan = coalitions(len(sample.scores), self.budget)
        scores = torch.from_numpy(sample.scores)
        agreement = Agreement.of(scores, plan.estimate(outputs).values)
        return float(getattr(agreement, self.statistic)), None


class Conciseness(Metric):
    """The smallest share of units with 90 % of the absolute scores."""

    name = "conciseness"
    title = "for 90 %"
    better = "lower"

    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        sizes = np.sort(np.abs(sample.scores))[::-1]
        if not sizes.sum():
            return 1.0, None
        count = np.searchsorted(np.cumsum(sizes) / sizes.sum(), 0.9 - 1e-12) + 1
        return min(int(count), len(sizes)) / len(sizes), None


class Entropy(Metric):
    """The normalised entropy of the absolute scores; 1 if they are all equal."""

    name = "entropy"
    title = "entropy"

    def value(self, sample: Sample, logits: Floats) -> tuple[float, Curve]:
        sizes = np.abs(sample.scores)
        if len(sizes) < 2 or not sizes.sum():
            return 1.0, None
        return float(entropy(sizes, base=len(sizes))), None


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
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
        Completeness(),
        ShapleyAgreement("r"),
        ShapleyAgreement("slope"),
        ShapleyAgreement("error"),
        Conciseness(),
        Entropy(),
    )
}


def check_metric(metric: Metric) -> Metric:
    """Refuses a metric without a name, or with an unknown direction."""
    name = getattr(metric, "name", None)
    if not isinstance(name, str) or not name or "/" in name or "\\" in name:
        raise MethodError(
            f"{type(metric).__name__} needs a name that is valid in a file name: "
            f'name = "my_metric", got {name!r}.'
        )
    if metric.better not in get_args(Better):
        raise MethodError(
            f'{type(metric).__name__}.better must be "higher", "lower" or "", got '
            f"{metric.better!r}."
        )
    return metric


def area(curve: Floats) -> float:
    """The area under a curve over evenly spaced fractions from 0 to 1, by trapezoids."""
    return float(trapezoid(curve, dx=1 / (len(curve) - 1)))


def correlation(a: Floats, b: Floats) -> float:
    """Spearman's rank correlation; 0 if one of the two is constant."""
    return float(correlations(np.stack([a, b]))[0, 1])


def correlations(rows: Floats) -> Floats:
    """Spearman's rank correlation of all pairs of rows, (n, n); 0 for a constant row.

    `scipy.stats.spearmanr` returns NaN with a warning for it, and a scalar for two rows.
    """
    ranks = rankdata(rows, axis=1)
    ranks -= ranks.mean(1, keepdims=True)
    norms = np.sqrt(np.square(ranks).sum(1))
    scale = np.where(norms > 0, 1 / np.where(norms > 0, norms, 1), 0.0)
    result: Floats = (ranks @ ranks.T) * scale[:, None] * scale[None, :]
    return result
