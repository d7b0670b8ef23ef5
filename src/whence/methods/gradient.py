"""The gradient itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from whence.methods.method import Method, Scores
from whence.methods.propagation import gradients_at_sources, open_view
from whence.rules.tables import PLAIN
from whence.subject import Inputs, Subject
from whence.target import Target


@dataclass(frozen=True)
class Gradient(Method):
    """Sensitivity: the length of the gradient at each unit's embedding (or its signed sum)."""

    name: ClassVar[str] = "gradient"
    paper: ClassVar[str] = "Simonyan et al. 2014"
    reduce: Literal["norm", "sum"] = "norm"

    def scores(self, subject: Subject, inputs: Inputs, target: Target) -> Scores:
        with subject.steady():
            view, tensors = open_view(PLAIN, subject, inputs, ledger=False)
            with view:
                logits = subject.run(tensors)
                gradients = gradients_at_sources(view, target(logits), subject)
        squares = torch.zeros(inputs.mask.shape, dtype=torch.float64)
        for source, gradient in zip(view.sources.found, gradients, strict=True):
            rows = gradient.double().flatten(2)[:, source.shift :].cpu()
            span = slice(source.start, source.start + rows.shape[1])
            squares[:, span] += rows.square().sum(2) if self.reduce == "norm" else rows.sum(2)
        values = squares.sqrt() if self.reduce == "norm" else squares
        return Scores(values * inputs.mask, logits.detach())
