"""The change of the output when a unit is removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from wherefrom.core.target import Case
from wherefrom.methods.base import Method, Scores
from wherefrom.methods.masked_inputs import MaskedInputs
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
        return read_at(self.at, case, self._scores)

    def _scores(self, case: Case, at: Place) -> Scores:
        inputs = MaskedInputs.of(case, self.baseline, at)
        whole, others = inputs.whole, ~torch.eye(case.batch.mask.shape[1], dtype=torch.bool)
        pairs = [(i, u) for i, u in case.batch.mask.nonzero().tolist()]
        values = torch.zeros(case.batch.mask.shape, dtype=torch.float64)
        for rows, outputs in inputs.outputs(pairs, lambda _, unit: others[unit]):
            for (i, unit), output in zip(rows, outputs, strict=True):
                values[i, unit] = whole[i] - output
        return Scores(values, inputs.logits)
