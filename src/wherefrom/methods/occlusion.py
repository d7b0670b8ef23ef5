"""The change of the output when a unit is removed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from wherefrom.core.runner import Batch
from wherefrom.core.target import Case
from wherefrom.errors import MethodError
from wherefrom.methods.base import Method, Scores
from wherefrom.methods.embedded_inputs import Budget, EmbeddedInputs, baseline_values
from wherefrom.methods.forward_pass import run
from wherefrom.methods.propagation import At, read_at
from wherefrom.tracing.observers.entry_points import Place


@dataclass(frozen=True)
class Occlusion(Method):
    """Leave one out: the output with the unit minus the output without it.

    The `baseline` (as in `integrated_gradients`) replaces the unit. "remove" takes the unit out of
    the model's mask, such as a node out of a graph.
    """

    name: ClassVar[str] = "occlusion"
    paper: ClassVar[str] = "Zeiler & Fergus 2014"
    baseline: str | int | Tensor = "zero"
    at: At = "embeddings"

    def scores(self, case: Case) -> Scores:
        if isinstance(self.baseline, str) and self.baseline == "remove":
            return _removed(case)
        return read_at(self.at, case, self._scores)

    def _scores(self, case: Case, at: Place) -> Scores:
        embedded = EmbeddedInputs.capture(case, at)
        whole = embedded.case.target(embedded.logits).double().cpu()
        blank = baseline_values(embedded, self.baseline)

        def without(k: int, i: int, unit: int) -> Tensor:
            row = embedded.spans[k].row_of(unit)
            value = embedded.values[k][i].clone()
            if row is not None and row < len(value):
                value[row] = blank[k][i, row]
            return value

        pairs = [(i, u) for i, u in case.batch.mask.nonzero().tolist()]
        values = torch.zeros(case.batch.mask.shape, dtype=torch.float64)
        for rows, outputs in embedded.outputs(pairs, without):
            for (i, unit), output in zip(rows, outputs, strict=True):
                values[i, unit] = whole[i] - output
        return Scores(values, embedded.logits)


def _removed(case: Case) -> Scores:
    """The output minus the output with each unit taken out of the mask."""
    name = _mask_name(case.batch)
    logits = run(case)
    case = case.resolved(logits)
    whole = case.target(logits).double().cpu()

    def outputs(rows: list[tuple[int, int]]) -> Tensor:
        some = case.take([i for i, _ in rows])
        present = some.batch.tensors[name].clone()
        present[range(len(rows)), [unit for _, unit in rows]] = 0
        changed = replace(some, batch=some.batch.with_tensors({name: present}))
        return some.target(run(changed)).double().cpu()

    pairs = [(i, u) for i, u in case.batch.mask.nonzero().tolist()]
    values = torch.zeros(case.batch.mask.shape, dtype=torch.float64)
    for rows, without in Budget(case, gradients=False).chunks(pairs, outputs):
        for (i, unit), output in zip(rows, without, strict=True):
            values[i, unit] = whole[i] - output
    return Scores(values, logits)


def _mask_name(inputs: Batch) -> str:
    """The name of the mask that tells the model which units are present."""
    for name in ("mask", "attention_mask"):
        mask = inputs.tensors.get(name)
        if mask is not None and mask.shape == inputs.mask.shape:
            return name
    raise MethodError(
        'the baseline "remove" needs a mask that tells the model which units exist; use "zero".'
    )
