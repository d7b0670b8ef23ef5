"""Gradients at the embedded input, and their mean over noisy copies."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from wherefrom.core.target import Case
from wherefrom.errors import MethodError
from wherefrom.methods.base import Method, Scores, by_sample, notes_on_zeros, warn_of_rounding
from wherefrom.methods.embedded_inputs import EmbeddedInputs, over_sources
from wherefrom.methods.forward_pass import intercepted_forward, run
from wherefrom.methods.propagation import At, plain_table, read_at
from wherefrom.tracing.observers.entry_points import Place

Reduce = Literal["norm", "sum", "x_input"]


def reduced(gradients: list[Tensor], embedded: EmbeddedInputs, how: Reduce, label: str) -> Scores:
    """A score for each unit: the gradient's length, its sum, or its product with the input."""
    mask, logits = embedded.case.batch.mask.cpu(), embedded.logits
    if how == "norm":
        squares = over_sources(embedded, [g.square().sum(-1) for g in gradients])
        lengths = squares.sqrt() * mask
        notes = notes_on_zeros(label, lengths)
        return Scores(lengths, logits, warnings=by_sample(len(lengths), notes))
    pairs = zip(gradients, embedded.values, strict=True)
    terms = gradients if how == "sum" else [g * v for g, v in pairs]
    values = over_sources(embedded, [term.sum(-1) for term in terms]) * mask
    summed = over_sources(embedded, [term.abs().sum(-1) for term in terms]) * mask
    messages = warn_of_rounding(label, values, summed, embedded.values[0].dtype)
    notes = notes_on_zeros(label, values)
    return Scores(values, logits, warnings=by_sample(len(values), messages, notes))


@dataclass(frozen=True)
class Gradient(Method):
    """Sensitivity: the length of the gradient at each unit's embedding (or its signed sum)."""

    name: ClassVar[str] = "gradient"
    paper: ClassVar[str] = "Simonyan et al. 2014"
    reduce: Literal["norm", "sum"] = "norm"
    softplus: float | None = None
    at: At = "auto"

    def scores(self, case: Case) -> Scores:
        if self.softplus is None:
            return read_at(self.at, case, self._scores)
        logits = run(case)  # the class is that of the model, not of its smooth version
        scores = read_at(self.at, case.resolved(logits), self._scores)
        return replace(scores, logits=logits)

    def _scores(self, case: Case, at: Place) -> Scores:
        with intercepted_forward(plain_table(self.softplus), case, at=at) as forward:
            gradients = [gradient.double().cpu() for gradient in forward.at_sources()]
        embedded = EmbeddedInputs.of(forward, case)
        return reduced(gradients, embedded, self.reduce, self.label)


@dataclass(frozen=True)
class SmoothGrad(Method):
    """The mean of the gradient over noisy copies of the input."""

    name: ClassVar[str] = "smoothgrad"
    paper: ClassVar[str] = "Smilkov et al. 2017"
    samples: int = 25
    noise: float = 0.1
    reduce: Reduce = "norm"
    softplus: float | None = None
    seed: int = 0
    at: At = "auto"

    def scores(self, case: Case) -> Scores:
        return read_at(self.at, case, self._scores)

    def _scores(self, case: Case, at: Place) -> Scores:
        if self.samples < 1 or self.noise < 0:
            raise MethodError(
                "smoothgrad needs at least one sample and noise of 0 or more, got "
                f"{self.samples} samples and noise {self.noise}."
            )
        embedded = EmbeddedInputs.capture(case, at)
        noise = [self._noise(embedded, k) for k in range(len(embedded.values))]
        pairs = [(i, s) for i in range(len(case.batch)) for s in range(self.samples)]
        total = [torch.zeros_like(value) for value in embedded.values]
        for rows, gradients in embedded.gradients(
            pairs,
            lambda k, i, s: embedded.values[k][i] + noise[k][i, s],
            plain_table(self.softplus),
        ):
            for k, gradient in enumerate(gradients):
                total[k].index_add_(0, torch.tensor([i for i, _ in rows]), gradient)
        mean = [t / self.samples for t in total]
        return reduced(mean, embedded, self.reduce, self.label)

    def _noise(self, embedded: EmbeddedInputs, k: int) -> Tensor:
        """Noise relative to the range of each sample: the same alone and in a batch."""
        value, valid = embedded.values[k], embedded.valid_mask(k)
        noise = torch.zeros(value.shape[0], self.samples, *value.shape[1:], dtype=value.dtype)
        for i, units in enumerate(embedded.case.batch.units):
            content = zlib.crc32("\x1f".join(unit.text for unit in units).encode())
            generator = torch.Generator().manual_seed(content + self.seed + k)
            units_of_sample = embedded.values[0][i, embedded.valid_mask(0)[i]]
            sigma = self.noise * (units_of_sample.max() - units_of_sample.min())
            for place in valid[i].nonzero().flatten().tolist():
                # in float64, so that all types get the same noise
                noise[i, :, place] = sigma * torch.randn(
                    self.samples, value.shape[2], generator=generator, dtype=torch.float64
                )
        return noise
