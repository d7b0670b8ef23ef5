"""Deep Taylor relevance of attention maps times their gradients, rolled out."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from wherefrom.core.runner import RowsUnclear
from wherefrom.core.target import Case
from wherefrom.errors import ModelError, first_line, use_method
from wherefrom.methods.attention_maps import (
    Readout,
    ReadoutRow,
    capture,
    layer_index,
    map_gradients,
    roll_out,
    without_readout_row,
)
from wherefrom.methods.base import Method, Scores
from wherefrom.methods.forward_pass import intercepted_forward
from wherefrom.rules.deep_taylor import DEEP_TAYLOR
from wherefrom.tracing.observers.attention_maps import Maps


@dataclass(frozen=True)
class TransformerAttribution(Method):
    """Relevance of each attention map times its gradient, rolled out over the blocks.

    The default is the authors' ViT program; their BERT program is `normalise=True,
    readout_row="minimum"`. The scores of a contrast are the difference of those of its classes:
    these rules distribute a sum of relevance, which is zero for +1 and −1.
    """

    name: ClassVar[str] = "transformer_attribution"
    paper: ClassVar[str] = "Chefer et al. 2021 (CVPR)"
    normalise: bool = False
    start_layer: int = 0
    readout: Readout = "auto"
    readout_row: ReadoutRow = "zero"

    def scores(self, case: Case) -> Scores:
        target = case.target
        scores = self._of_class(case.with_target(replace(target, against=None)))
        if target.against is None:
            return scores
        other_class = replace(target, index=target.against, against=None)
        other = self._of_class(case.with_target(other_class))
        return Scores(scores.values - other.values, scores.logits)

    def _of_class(self, case: Case) -> Scores:
        plain = capture(case, gradients=True)
        relevance = _relevance(case.resolved(plain.logits), plain.logits)
        steps = [
            (g * r).clamp_min(0).mean(1)  # (B, query, key)
            for g, r in zip(plain.gradients, relevance, strict=True)
        ]
        first = layer_index(self.start_layer, len(steps))
        used = [step if i >= first else None for i, step in enumerate(steps)]
        rolled = roll_out(plain, used, self.readout, normalise=self.normalise)
        values = without_readout_row(plain, rolled, self.readout, self.readout_row)
        return Scores(values, plain.logits)


def _relevance(case: Case, logits: Tensor) -> list[Tensor]:
    """The relevance of each attention map, in float64 since the rules divide by sums near zero."""
    wide = case.runner.device.type != "mps"  # which has no float64
    try:
        return _relevance_in(wide, case, logits)
    except (RuntimeError, ModelError) as error:
        cause = error.__cause__ if isinstance(error, ModelError) else error
        if not isinstance(cause, RuntimeError):
            raise
        reason = first_line(cause)
        if "modified by an inplace" in reason:
            raise ModelError(
                _WRITES.format(case.runner.name), **use_method("lrp", verb="Try")
            ) from error
        if not wide or not any(word in reason for word in ("dtype", "scalar type", "Double")):
            raise
    warnings.warn(
        f"{case.runner.name} cannot be run in float64 ({reason}): transformer_attribution is "
        "computed in the model's precision, and its scores may be off by several percent.",
        stacklevel=2,
    )
    return _relevance_in(False, case, logits)


def _relevance_in(float64: bool, case: Case, logits: Tensor) -> list[Tensor]:
    maps = Maps(len(case.batch))
    with intercepted_forward(DEEP_TAYLOR, case, maps=maps, float64=float64) as forward:
        forward.need("attention")
        if not _same_output(forward.logits, logits):
            raise ModelError(_WRITES.format(case.runner.name), **use_method("lrp", verb="Try"))
        relevance = map_gradients(forward, maps.seen)
    unclear = forward.tracer.ledger.unclear
    if unclear is not None and len(case.batch) > 1:
        raise RowsUnclear(unclear)
    return relevance


_WRITES = "{} writes into its tensors in a way that these rules do not support."


def _same_output(logits: Tensor, plain: Tensor) -> bool:
    """Whether two passes gave the same logits within the model's precision."""
    rounding = max(1e-3, 16 * torch.finfo(plain.dtype).eps)
    size = max(0.1, float(plain.detach().abs().max()))
    return float((logits.detach() - plain.detach()).abs().max()) <= rounding * size
