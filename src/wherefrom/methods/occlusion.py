"""What the output loses when a unit is taken away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.core.target import Target
from wherefrom.errors import MethodError
from wherefrom.methods.base import Method, Scores
from wherefrom.methods.embedded_inputs import Budget, EmbeddedInputs, baseline_values
from wherefrom.methods.forward_pass import At, read_at, run
from wherefrom.tracing.observers.entry_points import Place


@dataclass(frozen=True)
class Occlusion(Method):
    """Leave one out: the output with the unit minus the output without it.

    What stands in its place is the `baseline`, of `integrated_gradients`, or nothing: "remove"
    takes the unit out of the mask that the model is given, as a graph without that node.
    """

    name: ClassVar[str] = "occlusion"
    paper: ClassVar[str] = "Zeiler & Fergus 2014"
    baseline: str | int | Tensor = "zero"
    at: At = "embeddings"

    def scores(self, runner: ModelRunner, inputs: Batch, target: Target) -> Scores:
        if isinstance(self.baseline, str) and self.baseline == "remove":
            return _removed(runner, inputs, target)
        return read_at(self.at, inputs, lambda at: self._scores(runner, inputs, target, at))

    def _scores(self, runner: ModelRunner, inputs: Batch, target: Target, at: Place) -> Scores:
        embedded, logits = EmbeddedInputs.capture(runner, inputs, at, target)
        target = target.resolved(logits)
        whole = target(logits).double().cpu()
        blank = baseline_values(runner, inputs, embedded, self.baseline)

        def without(k: int, i: int, unit: int) -> Tensor:
            row = embedded.spans[k].row_of(unit)
            value = embedded.values[k][i].clone()
            if row is not None and row < len(value):
                value[row] = blank[k][i, row]
            return value

        pairs = [(i, u) for i, u in inputs.mask.nonzero().tolist()]
        values = torch.zeros(inputs.mask.shape, dtype=torch.float64)
        for rows, outputs in embedded.outputs(runner, target, pairs, without):
            for (i, unit), output in zip(rows, outputs, strict=True):
                values[i, unit] = whole[i] - output
        return Scores(values, logits)


def _removed(runner: ModelRunner, inputs: Batch, target: Target) -> Scores:
    """The output minus that of the input with one unit less in its mask."""
    name = _mask_name(inputs)
    logits = run(runner, inputs, target.position)
    target = target.resolved(logits)
    whole = target(logits).double().cpu()

    def outputs(rows: list[tuple[int, int]]) -> Tensor:
        samples = [i for i, _ in rows]
        some, asked = inputs.take(samples), target.take(samples)
        present = some.tensors[name].clone()
        present[range(len(rows)), [unit for _, unit in rows]] = 0
        changed = run(runner, some.with_tensors({name: present}), asked.position)
        return asked(changed).double().cpu()

    pairs = [(i, u) for i, u in inputs.mask.nonzero().tolist()]
    values = torch.zeros(inputs.mask.shape, dtype=torch.float64)
    batch, length = inputs.mask.shape
    for rows, without in Budget(runner, length, batch, gradients=False).chunks(pairs, outputs):
        for (i, unit), output in zip(rows, without, strict=True):
            values[i, unit] = whole[i] - output
    return Scores(values, logits)


def _mask_name(inputs: Batch) -> str:
    """The tensor that tells the model which units are there."""
    for name in ("mask", "attention_mask"):
        mask = inputs.tensors.get(name)
        if mask is not None and mask.shape == inputs.mask.shape:
            return name
    raise MethodError(
        'the baseline "remove" needs a mask that tells the model which units are there; use "zero".'
    )
