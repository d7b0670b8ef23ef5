"""Shapley values: the mean effect of adding a unit, over all orders of the units."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from wherefrom.errors import InputError

CoalitionValue = Callable[[Tensor], Tensor]
"""Maps masks (M, units), true where a unit is present, to the model's outputs (M,)."""
BUDGET = 2**12
"""The default number of model evaluations for an input: all subsets of up to 12 units."""


@dataclass(frozen=True, eq=False)
class ShapleyValues:
    """Shapley values with their standard errors, zero where all subsets were run; (units,) each."""

    values: Tensor
    errors: Tensor


@dataclass(frozen=True, eq=False)
class Coalitions:
    """The subsets of units to run the model on, and the estimate from its outputs.

    `orders` are permutations of the units in antithetic pairs: each is followed by its reverse
    (Mitchell et al., JMLR 2022). Without orders the masks are all subsets.
    """

    masks: Tensor  # (M, units), bool
    orders: Tensor | None  # (2 · pairs, units)

    def estimate(self, outputs: Tensor) -> ShapleyValues:
        """Estimates the Shapley values from the outputs (M,) for the masks."""
        outputs = outputs.detach().double().cpu()
        return self._exact(outputs) if self.orders is None else self._sampled(outputs, self.orders)

    def _exact(self, outputs: Tensor) -> ShapleyValues:
        """Σ over the subsets S without unit i of |S|! (n − |S| − 1)! / n! · (f(S ∪ i) − f(S))."""
        units = self.masks.shape[1]
        sizes = self.masks.sum(1).tolist()
        weights = [1 / (units * math.comb(units - 1, s)) if s < units else 0.0 for s in sizes]
        weight, subsets = torch.tensor(weights, dtype=torch.float64), torch.arange(len(outputs))
        values = torch.zeros(units, dtype=torch.float64)
        for unit in range(units):
            without = subsets[~self.masks[:, unit]]
            gains = outputs[without + 2**unit] - outputs[without]
            values[unit] = (weight[without] * gains).sum()
        return ShapleyValues(values, torch.zeros_like(values))

    def _sampled(self, outputs: Tensor, orders: Tensor) -> ShapleyValues:
        """The mean gain of each unit over the orders, with its standard error over pairs."""
        count, units = orders.shape
        empty, full = outputs[:1].expand(count, 1), outputs[1:2].expand(count, 1)
        path = torch.cat([empty, outputs[2:].reshape(count, units - 1), full], 1)
        gains = torch.zeros_like(path[:, 1:]).scatter_(1, orders, path.diff(dim=1))
        pairs = gains.reshape(count // 2, 2, units).mean(1)
        return ShapleyValues(pairs.mean(0), pairs.std(0) / math.sqrt(len(pairs)))


def coalitions(units: int, budget: int = BUDGET, seed: int = 0) -> Coalitions:
    """The subsets to run, at most `budget`: all of them, or those along random orders.

    The first is the empty one.
    """
    if 2**units <= budget:
        subsets = torch.arange(2**units)[:, None]
        return Coalitions((subsets >> torch.arange(units) & 1).bool(), None)
    steps = max(1, units - 1)  # runs per order, without its two ends
    pairs = (budget - 2) // (2 * steps)
    if pairs < 2:
        fewest = min(2**units, 4 * steps + 2)
        raise InputError(
            f"Shapley values of {units} units need at least {fewest} evaluations, got a budget of "
            f"{budget}.",
            f"Pass budget={fewest} or more.",
            command=f"Pass --budget {fewest} or more.",
            page="Choose a shorter text.",
        )
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(pairs, units, generator=generator).argsort(1)
    orders = torch.stack([drawn, drawn.flip(1)], 1).reshape(2 * pairs, units)
    ranks = orders.argsort(1)[:, None]  # the step at which each unit is added
    present = ranks < torch.arange(1, units)[:, None]  # (2 · pairs, units − 1, units)
    ends = torch.tensor([[False], [True]]).expand(2, units)
    return Coalitions(torch.cat([ends, present.reshape(-1, units)]), orders)


def shapley_values(
    value: CoalitionValue, units: int, budget: int = BUDGET, seed: int = 0
) -> ShapleyValues:
    """The Shapley values of the units of one input, from at most `budget` model evaluations.

    Exact where the budget allows all 2^units subsets, else by permutation sampling in antithetic
    pairs. The values add up to the output with all units minus the output without units.
    """
    plan = coalitions(units, budget, seed)
    return plan.estimate(value(plan.masks))


@dataclass(frozen=True)
class Agreement:
    """How far scores agree with Shapley values.

    `r`: Pearson's correlation, 0 if one of the two is constant; `slope`: of Shapley values on
    scores by least squares; `error`: Σ |score − Shapley value| / Σ |Shapley value|, NaN if all
    Shapley values are 0.
    """

    r: float
    slope: float
    error: float

    @staticmethod
    def of(scores: Tensor, values: Tensor) -> Agreement:
        """The agreement of scores with Shapley values, (units,) each."""
        size, difference = float(values.abs().sum()), float((scores - values).abs().sum())
        a, b = scores - scores.mean(), values - values.mean()
        product, square = float(a @ b), float(a @ a)
        scale = math.sqrt(square * float(b @ b))
        return Agreement(
            product / scale if scale else 0.0,
            product / square if square else 0.0,
            difference / size if size else math.nan,
        )
