"""Attention as explanation: last map, rollout, flow, and gradient-weighted variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from wherefrom.core.progress import stop_if_late
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


_UNIT = 10**9  # capacities are at most 1; the solver takes 32-bit integers


def flows(
    steps: Sequence[Tensor], streams: Sequence[tuple[int, int]], start: dict[int, Tensor]
) -> dict[int, Tensor]:
    """The flow from the rows that are read to every position of the first layer.

    Every map connects two layers of nodes: an edge from each query to each key has the capacity
    Ā, the rows of A + I normalised to sum to one. `start` has the flow into the rows that are read.
    """
    if (direct := _of_two_maps(steps, streams, start)) is not None:
        return direct
    from scipy.sparse import csr_matrix  # here, since scipy takes long to import
    from scipy.sparse.csgraph import maximum_flow

    sizes = {number: len(values) for number, values in start.items()}
    offset: dict[int, int] = {}
    for number in sizes:
        offset[number] = sum(sizes[n] for n in offset)
    width = sum(sizes.values())
    heads: list[np.ndarray] = []
    tails: list[np.ndarray] = []
    capacities: list[np.ndarray] = []

    def edges(a: np.ndarray, b: np.ndarray, capacity: np.ndarray) -> None:
        units = np.rint(capacity * _UNIT).astype(np.int32)
        positive = units > 0
        heads.append(a[positive])
        tails.append(b[positive])
        capacities.append(units[positive])

    top = len(steps)
    for level, (step, (query, key)) in enumerate(zip(steps, streams, strict=True)):
        above, below = (level + 1) * width, level * width
        share = 1 / (1 + step.sum(-1))
        weights = (step * share.unsqueeze(-1)).numpy()
        for number, size in sizes.items():
            nodes = offset[number] + np.arange(size)
            skip = share.numpy() if number == query else np.ones(size)
            if number == query == key:
                weights = weights + np.diag(skip)
            else:
                edges(above + nodes, below + nodes, skip)
        rows, columns = np.indices(weights.shape)
        edges(
            (above + offset[query] + rows).ravel(),
            (below + offset[key] + columns).ravel(),
            weights.ravel(),
        )
    source = (top + 1) * width
    for number, size in sizes.items():
        read = start[number].numpy()
        edges(
            np.full(size, source),
            top * width + offset[number] + np.arange(size),
            np.minimum(read / max(read.sum(), 1e-30), 1.0) if read.any() else read,
        )
    graph = csr_matrix(
        (np.concatenate(capacities), (np.concatenate(heads), np.concatenate(tails))),
        shape=(source + 1, source + 1),
    )
    by_stream: dict[int, Tensor] = {}
    for number, size in sizes.items():
        values = []
        for position in range(size):
            stop_if_late()
            flow = maximum_flow(graph, source, offset[number] + position).flow_value
            values.append(flow / _UNIT)
        by_stream[number] = torch.tensor(values, dtype=torch.float64)
    return by_stream


def _of_two_maps(
    steps: Sequence[Tensor], streams: Sequence[tuple[int, int]], start: dict[int, Tensor]
) -> dict[int, Tensor] | None:
    """The flow of one row through two maps of one stream: Σ_j min(Ā₂[row, j], Ā₁[j, i]).

    Exact: the paths from the row to a position are disjoint between j and the position, and the
    capacities out of the row sum to the flow into it.
    """
    if len(steps) != 2 or len({*start, *streams[0], *streams[1]}) > 1:
        return None
    ((stream, read),) = start.items()
    rows = read.nonzero().flatten().tolist()
    if len(rows) != 1:
        return None
    stop_if_late()
    lower, upper = ((step + torch.eye(len(step))) / (1 + step.sum(-1, True)) for step in steps)
    return {stream: torch.minimum(upper[rows[0]].unsqueeze(-1), lower).sum(0)}
