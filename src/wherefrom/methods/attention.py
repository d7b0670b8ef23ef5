"""Attention as explanation: last map, rollout, flow, and gradient-weighted variants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from wherefrom.core.target import Case
from wherefrom.errors import ModelError, use_method
from wherefrom.methods.attention_maps import (
    Readout,
    State,
    capture,
    layer_index,
    roll_out,
    weighted_maps,
)
from wherefrom.methods.base import Method, Scores
from wherefrom.methods.flow import flows


@dataclass(frozen=True)
class AttentionLast(Method):
    """The rows of the last attention map that the head reads (mean over heads)."""

    name: ClassVar[str] = "attention_last"
    paper: ClassVar[str] = "Hollenstein & Beinborn 2021"
    readout: Readout = "auto"

    def scores(self, case: Case) -> Scores:
        attention = capture(case, gradients=False)
        rows = attention.start(self.readout)[attention.streams[-1][0]]
        read = torch.einsum("bq,bqk->bk", rows, attention.maps[-1].mean(1).to(rows))
        return Scores(attention.to_units({attention.streams[-1][1]: read}), attention.logits)


@dataclass(frozen=True)
class AttentionRollout(Method):
    """The product of all attention maps, skip connections added, rows normalised."""

    name: ClassVar[str] = "attention_rollout"
    paper: ClassVar[str] = "Abnar & Zuidema 2020"
    readout: Readout = "auto"

    def scores(self, case: Case) -> Scores:
        attention = capture(case, gradients=False)
        steps = [weights.mean(1) for weights in attention.maps]
        state = roll_out(attention, steps, self.readout, normalise=True)
        return Scores(attention.to_units(state), attention.logits)


@dataclass(frozen=True)
class AttentionFlow(Method):
    """The maximum flow from the rows that the head reads to each unit, weights as capacities.

    With `readout="all"`: the sum of the flows from each row, each normalised to sum to one.
    """

    name: ClassVar[str] = "attention_flow"
    paper: ClassVar[str] = "Abnar & Zuidema 2020"
    readout: Readout = "auto"

    def scores(self, case: Case) -> Scores:
        attention = capture(case, gradients=False)
        steps = [weights.mean(1).double().cpu() for weights in attention.maps]
        start = attention.start(self.readout)
        flow = {n: torch.zeros_like(rows) for n, rows in start.items()}
        last = attention.streams[-1][0]
        for i in range(len(case.batch)):
            maps = [step[i] for step in steps]
            for read in self._reads({n: rows[i] for n, rows in start.items()}, last):
                by_stream = flows(maps, attention.streams, read)
                whole = sum(float(values.sum()) for values in by_stream.values())
                for stream, values in by_stream.items():
                    flow[stream][i] += values / whole if self.readout == "all" else values
        return Scores(attention.to_units(flow), attention.logits)

    def _reads(self, start: State, last: int) -> list[State]:
        """The start of each flow: all rows that are read together, or one row at a time."""
        if self.readout != "all":
            return [start]
        rows = start[last].nonzero().flatten().tolist()
        single = torch.eye(len(start[last]), dtype=torch.float64)
        return [{**start, last: single[row]} for row in rows]


@dataclass(frozen=True)
class GradientXAttention(Method):
    """The weights of one attention map times their gradients (of the last map by default)."""

    name: ClassVar[str] = "gradient_x_attention"
    paper: ClassVar[str] = "Serrano & Smith 2019"
    layer: int = -1

    def scores(self, case: Case) -> Scores:
        attention = capture(case, gradients=True)
        layer = layer_index(self.layer, len(attention.maps))
        read = (attention.maps[layer] * attention.gradients[layer]).mean(1).sum(1)
        return Scores(
            attention.to_units({attention.streams[layer][1]: read}) * case.batch.mask,
            attention.logits,
        )


@dataclass(frozen=True)
class GradientRollout(Method):
    """The product over all blocks of I plus the map times its gradient (mean over heads)."""

    name: ClassVar[str] = "gradient_rollout"
    paper: ClassVar[str] = "Barkan et al. 2023 (DIX), supplement"
    positive: bool = False
    normalise: bool = False
    skip: bool = False
    readout: Readout = "auto"

    def scores(self, case: Case) -> Scores:
        attention = capture(case, gradients=True)
        steps = weighted_maps(attention, self.positive)
        state = roll_out(attention, steps, self.readout, self.normalise, self.skip)
        return Scores(attention.to_units(state), attention.logits)


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
                f"gae supports attention within and between two inputs; {case.runner.name} has "
                "queries of no unit, such as latents or a decoder's (whose ids can be an input: "
                "prefix).",
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
    """R̄ = I + (R − I with rows that sum to one); a zero row stays zero."""
    identity = torch.eye(relevance.shape[-1]).to(relevance)
    rest = relevance - identity
    sums = rest.sum(-1, keepdim=True)
    return torch.where(sums == 0, torch.zeros_like(rest), rest / sums) + identity
