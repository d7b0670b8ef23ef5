"""Maximum flow over the layered graph of attention maps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from wherefrom.core.progress import stop_if_late

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
