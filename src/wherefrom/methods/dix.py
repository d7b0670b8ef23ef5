"""Deep integrated explanations: gradient rollout integrated over attention maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal

import torch
from torch import Tensor

from wherefrom.errors import MethodError
from wherefrom.methods.attention_maps import (
    CapturedAttention,
    Readout,
    capture,
    no_layer,
    roll_out,
    weighted_maps,
)
from wherefrom.methods.embedded_inputs import Budget
from wherefrom.methods.method import Method, Scores
from wherefrom.rules.maps import Replace
from wherefrom.subject import Inputs, Subject
from wherefrom.target import Target

Point = tuple[int, ...]  # the step of each chosen map, 1 to n: its size is step / n


@dataclass(frozen=True)
class Dix(Method):
    """Gradient rollout, integrated while chosen attention maps grow from nothing to their own.

    `variant="authors"`: one path for each of `layers`, that block's own map, its positive
    gradient-weighted mean rolled out by itself, the results summed. `variant="definition"`: the
    nested integral over all of `layers` of the whole gradient rollout, steps ** len(layers) passes.
    """

    name: ClassVar[str] = "dix"
    paper: ClassVar[str] = "Barkan et al. 2023 (CIKM)"
    layers: tuple[int, ...] | None = None  # the last two
    steps: int = 10
    variant: Literal["authors", "definition"] = "authors"
    skip: bool = False
    readout: Readout = "auto"
    memory: float | None = None

    def scores(self, subject: Subject, inputs: Inputs, target: Target) -> Scores:
        if self.steps < 1 or self.layers == ():
            raise MethodError("dix needs at least one step and one layer.")
        # the point where every map has its own size is the model as it is
        whole = capture(subject, inputs, target, gradients=True)
        count = len(whole.maps)
        layers = (-1, -2)[:count] if self.layers is None else self.layers
        for layer in layers:
            if not -count <= layer < count:
                raise MethodError(no_layer(layer, count))
        indices = tuple(dict.fromkeys(range(count)[layer] for layer in layers))
        resolved = target.resolved(whole.logits)
        every = torch.arange(len(inputs))
        if self.variant == "definition":
            total = self._rollout(whole, every, len(inputs))
            for attention, samples in self._points(subject, inputs, resolved, indices):
                total += self._rollout(attention, samples, len(inputs))
            values = total / self.steps ** len(indices)
        else:
            values = torch.zeros(inputs.mask.shape, dtype=torch.float64)
            for layer in indices:
                values += self._own_map(subject, inputs, resolved, whole, layer)
        return Scores(values, whole.logits)

    def _rollout(self, attention: CapturedAttention, samples: Tensor, batch: int) -> Tensor:
        """The gradient rollout at some points, added up for each sample."""
        state = roll_out(
            attention, weighted_maps(attention, positive=False), self.readout, False, self.skip
        )
        values = attention.to_units(state)
        return values.new_zeros(batch, values.shape[1]).index_add_(0, samples, values)

    def _own_map(
        self, subject: Subject, inputs: Inputs, target: Target, whole: CapturedAttention, layer: int
    ) -> Tensor:
        """One path on one block, its map integrated and rolled out alone."""
        total = _positive(whole.maps[layer], whole.gradients[layer])
        for attention, samples in self._points(subject, inputs, target, (layer,), (layer,)):
            total.index_add_(0, samples, _positive(attention.maps[layer], attention.gradients[0]))
        steps: list[Tensor | None] = [None] * len(whole.maps)
        steps[layer] = total / self.steps
        return whole.to_units(roll_out(whole, steps, self.readout, True, self.skip))

    def _points(
        self,
        subject: Subject,
        inputs: Inputs,
        target: Target,
        layers: Sequence[int],
        of: Sequence[int] | None = None,
    ) -> Iterator[tuple[CapturedAttention, Tensor]]:
        """All other points of the grid, in chunks: what was captured, and each row's sample."""
        grid = list(product(range(1, self.steps + 1), repeat=len(layers)))[:-1]
        pairs = [(i, point) for point in grid for i in range(len(inputs))]
        budget = Budget(self.memory, inputs.mask.shape[1], len(inputs), device=subject.device)
        at = 0
        while at < len(pairs):
            rows = pairs[at : at + budget.rows]
            at += len(rows)
            samples = [i for i, _ in rows]
            points = torch.tensor([point for _, point in rows], dtype=torch.float64)
            sizes = points / self.steps  # (rows, layers)
            with budget.measured(len(rows)):
                attention = capture(
                    subject,
                    inputs.take(samples),
                    target.take(samples),
                    gradients=True,
                    replace=_scaled(layers, sizes),
                    of=of,
                )
            yield attention, torch.tensor(samples)


def _positive(weights: Tensor, gradient: Tensor) -> Tensor:
    return (weights * gradient).clamp_min(0).mean(1)


def _scaled(layers: Sequence[int], sizes: Tensor) -> Replace:
    """Each chosen map at the size that its row's point of the grid says."""

    def replace(index: int, weights: Tensor) -> Tensor:
        if index not in layers:
            return weights
        return weights * sizes[:, layers.index(index)].to(weights)[:, None, None, None]

    return replace
