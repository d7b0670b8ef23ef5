"""Deep Taylor relevance of attention maps, combined with their gradients, rolled out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from wherefrom.errors import MethodError, ModelError
from wherefrom.methods.attention_maps import (
    Readout,
    ReadoutRow,
    capture,
    map_gradients,
    no_layer,
    roll_out,
    without_readout_row,
)
from wherefrom.methods.intercept import intercepted_forward
from wherefrom.methods.method import Method, RowsUnclear, Scores
from wherefrom.rules.deep_taylor import DEEP_TAYLOR
from wherefrom.rules.maps import Maps
from wherefrom.subject import Inputs, Subject
from wherefrom.target import Target


@dataclass(frozen=True)
class TransformerAttribution(Method):
    """Relevance of each attention map times its gradient, rolled out over the blocks.

    The default is the authors' ViT program; their BERT program is `normalise=True,
    readout_row="minimum"`. A contrast is the difference of its two classes: relevance that starts
    as +1 and −1 has a sum of zero, and these rules share out sums.
    """

    name: ClassVar[str] = "transformer_attribution"
    paper: ClassVar[str] = "Chefer et al. 2021 (CVPR)"
    normalise: bool = False
    start_layer: int = 0
    readout: Readout = "auto"
    readout_row: ReadoutRow = "zero"

    def scores(self, subject: Subject, inputs: Inputs, target: Target) -> Scores:
        scores = self._of_class(subject, inputs, replace(target, against=None))
        if target.against is None:
            return scores
        other = self._of_class(subject, inputs, replace(target, index=target.against, against=None))
        return Scores(scores.values - other.values, scores.logits)

    def _of_class(self, subject: Subject, inputs: Inputs, target: Target) -> Scores:
        plain = capture(subject, inputs, target, gradients=True)
        resolved = target.resolved(plain.logits)
        with intercepted_forward(
            DEEP_TAYLOR, subject, inputs, resolved, maps=(maps := Maps(len(inputs)))
        ) as forward:
            forward.need("attention")
            if not torch.allclose(forward.logits, plain.logits, rtol=1e-3, atol=1e-4):
                raise ModelError(
                    f"{subject.name} writes into its tensors in a way that relevance cannot be "
                    'followed through; try method="lrp".'
                )
            relevance = map_gradients(forward, maps.seen)
        unclear = forward.view.ledger.unclear
        if unclear is not None and len(inputs) > 1:
            raise RowsUnclear(unclear)
        steps = [
            (g * r).clamp_min(0).mean(1)  # (B, query, key)
            for g, r in zip(plain.gradients, relevance, strict=True)
        ]
        if not -len(steps) <= self.start_layer < len(steps):
            raise MethodError(no_layer(self.start_layer, len(steps)))
        first = range(len(steps))[self.start_layer :]
        used = [steps[i] if i in first else None for i in range(len(steps))]
        rolled = roll_out(plain, used, self.readout, normalise=self.normalise)
        values = without_readout_row(plain, rolled, self.readout, self.readout_row)
        return Scores(values, plain.logits)
