"""Generic attention explainability, also between an encoder and a decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from wherefrom.core.runner import Case
from wherefrom.errors import ModelError, use_method
from wherefrom.methods.attention_maps import Readout, capture, layer_index, weighted_maps
from wherefrom.methods.base import Method, Scores


@dataclass(frozen=True)
class Gae(Method):
    """Positive gradient-weighted attention gathered block by block: R ← R + Ā R."""

    name: ClassVar[str] = "gae"
    paper: ClassVar[str] = "Chefer et al. 2021 (ICCV)"
    start_layer: int = 0  # -1: the last map alone, as the authors do for CLIP
    skip: bool = False
    readout: Readout = "auto"

    def scores(self, case: Case) -> Scores:
        attention = capture(case, gradients=True)
        start = attention.start(self.readout)
        if len(start) > 2 or min(start) < 0:
            raise ModelError(
                f"gae follows attention within and between two inputs; {case.runner.name} attends "
                "from positions that hold no unit, such as latents or a decoder's own ids (these "
                "can be an input: prefix).",
                **use_method("gradient_rollout", "lrp", verb="Try"),
            )
        relevance = {
            (a, b): torch.eye(start[a].shape[1]).to(start[a]).repeat(len(case.batch), 1, 1)
            if a == b
            else start[a].new_zeros(len(case.batch), start[a].shape[1], start[b].shape[1])
            for a in start
            for b in start
        }
        steps = weighted_maps(attention, positive=True)
        first = layer_index(self.start_layer, len(steps))
        for (query, key), weights in list(zip(attention.streams, steps, strict=True))[first:]:
            step = weights.to(start[query])
            if query == key:
                for other in start:
                    old = relevance[query, other]
                    relevance[query, other] = old + step @ old
            else:
                # R_qk ← R_qk + R̄_qqᵀ Ā R̄_kk
                mixed = _normalised(relevance[query, query]).mT @ step
                across = relevance[query, key] + mixed @ _normalised(relevance[key, key])
                # R_qq ← R_qq + Ā R_kq
                relevance[query, query] = relevance[query, query] + step @ relevance[key, query]
                relevance[query, key] = across
        last = attention.streams[-1][0]
        state = {
            other: torch.einsum("bq,bqk->bk", start[last], relevance[last, other])
            for other in start
        }
        if not self.skip:
            state[last] = state[last] - start[last]
        return Scores(attention.to_units(state), attention.logits)


def _normalised(relevance: Tensor) -> Tensor:
    """R̄ = I + the rows of R − I made to sum to one; a zero row stays zero."""
    identity = torch.eye(relevance.shape[-1]).to(relevance)
    rest = relevance - identity
    sums = rest.sum(-1, keepdim=True)
    return torch.where(sums == 0, torch.zeros_like(rest), rest / sums) + identity
