"""Deep integrated explanations (DIX): gradient rollout integrated over attention maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal

import torch
from torch import Tensor

from wherefrom.core.target import Case
from wherefrom.errors import MethodError
from wherefrom.methods.attention_maps import (
    CapturedAttention,
    Readout,
    capture,
    layer_index,
    roll_out,
    weighted_maps,
)
from wherefrom.methods.base import Method, Scores
from wherefrom.methods.embedded_inputs import Budget
from wherefrom.methods.propagation import samples_are_rows
from wherefrom.tracing.observers.attention_maps import Replace

GridPoint = tuple[int, ...]  # the step of each chosen map, which is scaled by step / steps


@dataclass(frozen=True)
class Dix(Method):
    """Gradient rollout, averaged while some attention maps are scaled from 0 to 1.

    `variant="authors"` is the authors' program: one path for each of `layers`, on which the layer's
    map is the constant a · A, a = 0, 1/steps, …, 1, and each block b gives (A_b ∘ G_b)⁺. The means
    over points and heads, plus I and with normalised rows, are rolled out over all blocks, and the
    results of all paths are added. `faithful_to_code=True` uses the last block's map in every path,
    as the program does for the penultimate block.

    `variant="definition"` is the integral of the gradient rollout over the scales of all `layers`,
    with steps ** len(layers) passes.
    """

    name: ClassVar[str] = "dix"
    paper: ClassVar[str] = "Barkan et al. 2023 (CIKM)"
    layers: tuple[int, ...] | None = None  # the last two
    steps: int = 10
    variant: Literal["authors", "definition"] = "authors"
    faithful_to_code: bool = False
    skip: bool = False
    readout: Readout = "auto"

    def scores(self, case: Case) -> Scores:
        if self.steps < 1 or self.layers == ():
            raise MethodError("dix needs at least one step and one layer.")
        # the point where no map is scaled is the model itself
        whole = capture(case, gradients=True)
        count = len(whole.maps)
        layers = (-1, -2)[:count] if self.layers is None else self.layers
        indices = tuple(dict.fromkeys(layer_index(layer, count) for layer in layers))
        case = case.resolved(whole.logits)
        if self.variant == "definition":
            values = self._nested(case, whole, indices)
        else:
            values = torch.zeros(case.batch.mask.shape, dtype=torch.float64)
            for layer in indices:
                values += self._path(case, whole, layer)
        return Scores(values, whole.logits)

    def _nested(self, case: Case, whole: CapturedAttention, layers: tuple[int, ...]) -> Tensor:
        """The mean of gradient rollout over the grid of the chosen maps' scales."""

        def rolled(attention: CapturedAttention) -> Tensor:
            steps = weighted_maps(attention, positive=False)
            state = roll_out(attention, steps, self.readout, normalise=False, skip=self.skip)
            return attention.to_units(state)

        total = rolled(whole)
        points = list(product(range(1, self.steps + 1), repeat=len(layers)))[:-1]

        def scaled(samples: list[int], sizes: Tensor) -> Replace:
            def replace(index: int, weights: Tensor) -> Tensor:
                if index not in layers:
                    return weights
                return weights * _by_row(sizes[:, layers.index(index)], weights)

            return replace

        for attention, samples in self._passes(case, points, scaled):
            total.index_add_(0, samples, rolled(attention))
        mean: Tensor = total / self.steps ** len(layers)
        return mean

    def _path(self, case: Case, whole: CapturedAttention, layer: int) -> Tensor:
        """One path of one block: the maps of all blocks, averaged along it and rolled out."""
        end = whole.maps[-1 if self.faithful_to_code else layer]  # (B, heads, query, key)
        if end.shape != whole.maps[layer].shape:
            raise MethodError(
                f"the last map and that of layer {layer} differ in shape, so one cannot replace "
                "the other; leave out faithful_to_code."
            )

        def constant(samples: list[int], sizes: Tensor) -> Replace:
            path = end[samples] * _by_row(sizes[:, 0], end)

            def replace(index: int, weights: Tensor) -> Tensor:
                # a constant: no gradient passes to the block's queries and keys
                return path.detach().to(weights).requires_grad_() if index == layer else weights

            return replace

        points = [(k,) for k in range(self.steps + 1)]
        totals = [torch.zeros_like(weights[:, 0]) for weights in whole.maps]
        for attention, samples in self._passes(case, points, constant):
            for total, step in zip(totals, weighted_maps(attention, positive=True), strict=True):
                total.index_add_(0, samples.to(total.device), step.detach())
        means: list[Tensor | None] = [total / len(points) for total in totals]
        state = roll_out(whole, means, self.readout, normalise=True, skip=self.skip)
        return whole.to_units(state)

    def _passes(
        self,
        case: Case,
        points: Sequence[GridPoint],
        replacing: Callable[[list[int], Tensor], Replace],
    ) -> Iterator[tuple[CapturedAttention, Tensor]]:
        """The attention of each sample at each point, in chunks, and the sample of each row."""
        pairs = [(i, point) for point in points for i in range(len(case.batch))]

        def run(rows: list[tuple[int, GridPoint]]) -> CapturedAttention:
            samples = [i for i, _ in rows]
            sizes = torch.tensor([point for _, point in rows], dtype=torch.float64) / self.steps
            return capture(case.take(samples), gradients=True, replace=replacing(samples, sizes))

        budget = Budget(case)
        if not samples_are_rows(case.take([0, 0])):
            budget.limit(1)
        for rows, attention in budget.chunks(pairs, run):
            yield attention, torch.tensor([i for i, _ in rows])


def _by_row(sizes: Tensor, weights: Tensor) -> Tensor:
    return sizes.to(weights)[:, None, None, None]
