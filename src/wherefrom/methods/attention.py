"""Attention as explanation: the last map, rollout, flow, and their gradient-weighted kin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from wherefrom.core.runner import Case
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

    With `readout="all"` the flow of each row by itself, made to sum to one, added up.
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
        """The rows that flows start from: together as they are read, or one by one."""
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
