"""What the output loses when a unit is taken away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from wherefrom.methods.embedded_inputs import EmbeddedInputs, baseline_values
from wherefrom.methods.intercept import At, read_at
from wherefrom.methods.method import Method, Scores
from wherefrom.rules.sources import Place
from wherefrom.subject import Inputs, Subject
from wherefrom.target import Target


@dataclass(frozen=True)
class Occlusion(Method):
    """Leave one out: the output with the unit minus the output without it."""

    name: ClassVar[str] = "occlusion"
    paper: ClassVar[str] = "Zeiler & Fergus 2014"
    baseline: str | int | Tensor = "zero"
    at: At = "lookup"

    def scores(self, subject: Subject, inputs: Inputs, target: Target) -> Scores:
        return read_at(self.at, inputs, lambda at: self._scores(subject, inputs, target, at))

    def _scores(self, subject: Subject, inputs: Inputs, target: Target, at: Place) -> Scores:
        embedded, logits = EmbeddedInputs.capture(subject, inputs, at, target)
        target = target.resolved(logits)
        whole = target(logits).double().cpu()
        blank = baseline_values(subject, inputs, embedded, self.baseline)

        def without(k: int, i: int, unit: int) -> Tensor:
            row = embedded.spans[k].row_of(unit)
            value = embedded.values[k][i].clone()
            if row is not None and row < len(value):
                value[row] = blank[k][i, row]
            return value

        pairs = [(i, u) for i, u in inputs.mask.nonzero().tolist()]
        values = torch.zeros(inputs.mask.shape, dtype=torch.float64)
        for rows, outputs in embedded.outputs(subject, target, pairs, without):
            for (i, unit), output in zip(rows, outputs, strict=True):
                values[i, unit] = whole[i] - output
        return Scores(values, logits)
