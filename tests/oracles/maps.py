"""Attention methods by explicit matrices over the joint space of all streams."""

from itertools import product

import networkx
import torch
from torch import Tensor

from tests.oracles.attended import Seen


def mean_map(weights: Tensor) -> Tensor:
    """E over heads, added up one by one."""
    total = torch.zeros(weights.shape[1:], dtype=torch.float64)
    for head in weights:
        total += head
    return total / len(weights)


def in_joint(seen: Seen, number: int, step: Tensor) -> Tensor:
    """The step in the rows of its queries' stream and the columns of its keys'."""
    size = sum(seen.sizes)
    found = torch.zeros(size, size, dtype=torch.float64)
    query, key = seen.ways[number]
    found[seen.at(query), seen.at(key)] = step.double()
    return found


def row_normalised(matrix: Tensor) -> Tensor:
    return torch.stack([row / row.sum() for row in matrix])


def attention_last(seen: Seen, every=False) -> Tensor:
    return seen.rows(every) @ in_joint(seen, len(seen.maps) - 1, mean_map(seen.maps[-1]))


def gradient_x_attention(seen: Seen, layer=-1) -> Tensor:
    number = range(len(seen.maps))[layer]
    step = mean_map(seen.maps[number] * seen.gradients[number])
    return in_joint(seen, number, step).sum(0)


def rolled(seen: Seen, steps, every=False, normalise=True, skip=True) -> Tensor:
    """Readout · M_L … M_1 with M = I + step; without `skip`, less what identities alone bring."""
    size = sum(seen.sizes)
    identity = torch.eye(size, dtype=torch.float64)
    whole, alone = identity, identity
    for number, step in steps.items():  # in the order of the forward pass: the last is leftmost
        matrix = identity + in_joint(seen, number, step)
        stays = identity
        if normalise:
            stays = torch.diag(torch.stack([1 / row.sum() for row in matrix]))
            matrix = row_normalised(matrix)
        whole, alone = matrix @ whole, stays @ alone
    return seen.rows(every) @ (whole if skip else whole - alone)


def attention_rollout(seen: Seen, every=False) -> Tensor:
    return rolled(seen, {i: mean_map(m) for i, m in enumerate(seen.maps)}, every)


def weighted(seen: Seen, number: int, positive: bool) -> Tensor:
    """E over heads of A ∘ ∇A, its negative entries dropped before the mean if asked."""
    each = seen.maps[number] * seen.gradients[number]
    return mean_map(torch.relu(each) if positive else each)


def gradient_rollout(
    seen: Seen, every=False, positive=False, normalise=False, skip=False
) -> Tensor:
    steps = {i: weighted(seen, i, positive) for i in range(len(seen.maps))}
    return rolled(seen, steps, every, normalise, skip)


def gae(seen: Seen, every=False, skip=False, start=0) -> Tensor:
    """R ← R + ĀR within a stream; between two, R_qk ← R_qk + R̄_qqᵀ Ā R̄_kk (Chefer 2021a)."""
    streams = range(len(seen.sizes))
    r = {
        (a, b): torch.eye(seen.sizes[a]).double()
        if a == b
        else torch.zeros(seen.sizes[a], seen.sizes[b]).double()
        for a, b in product(streams, streams)
    }
    for number, (query, key) in enumerate(seen.ways):
        if number < start:
            continue
        step = weighted(seen, number, positive=True)
        if query == key:
            for other in streams:
                r[query, other] = r[query, other] + step @ r[query, other]
        else:
            across = r[query, key] + bar(r[query, query]).T @ step @ bar(r[key, key])
            own = r[query, query] + step @ r[key, query]  # eq. 11 of the paper
            r[query, key], r[query, query] = across, own
    last = seen.ways[-1][0]
    if not skip:
        r[last, last] = r[last, last] - torch.eye(seen.sizes[last]).double()
    whole = torch.cat([r[last, other] for other in streams], 1)
    return seen.rows(every)[seen.at(last)] @ whole


def bar(matrix: Tensor) -> Tensor:
    """R̄ = I + the rows of R − I made to sum to one; a zero row stays zero."""
    found = torch.eye(len(matrix)).double()
    for i, row in enumerate(matrix - torch.eye(len(matrix)).double()):
        if float(row.sum()) != 0:
            found[i] += row / row.sum()
    return found


def attention_flow(seen: Seen, every=False) -> Tensor:
    """The maximum flow of networkx from the rows that are read to every place at the bottom.

    With `every` that of each row by itself, divided by its sum, added up.
    """
    graph = networkx.DiGraph()
    size = sum(seen.sizes)
    top = len(seen.maps)
    for number, weights in enumerate(seen.maps):
        identity = torch.eye(size, dtype=torch.float64)
        capacity = row_normalised(identity + in_joint(seen, number, mean_map(weights)))
        for i, j in capacity.nonzero().tolist():
            graph.add_edge((number + 1, i), (number, j), capacity=float(capacity[i, j]))
    rows = seen.rows(every)
    graph.add_nodes_from((0, j) for j in range(size))
    read = rows.nonzero().flatten().tolist()
    total = torch.zeros(size, dtype=torch.float64)
    for together in [[i] for i in read] if every else [read]:
        graph.remove_nodes_from(["read"])
        whole = sum(float(rows[i]) for i in together)
        for i in together:
            graph.add_edge("read", (top, i), capacity=float(rows[i]) / whole)
        flows = [networkx.maximum_flow_value(graph, "read", (0, j)) for j in range(size)]
        values = torch.tensor(flows, dtype=torch.float64)
        total += values / values.sum() if every else values
    return total


def dix_definition(see, ids_maps: int, chosen, steps: int, every=False, skip=False) -> Tensor:
    """The mean of gradient rollout over the grid of sizes of the chosen maps, loops nested."""
    total, count = 0.0, 0
    for point in product(range(1, steps + 1), repeat=len(chosen)):
        scales = [1.0] * ids_maps
        for layer, step in zip(chosen, point, strict=True):
            scales[layer] = step / steps
        total = total + gradient_rollout(see(scales), every, skip=skip)
        count += 1
    assert count == steps ** len(chosen)
    return total / count


def dix_authors(see, plain: Seen, chosen, steps: int, every=False, skip=False, last=False):
    """The authors' program: a path for each chosen block, all blocks averaged and rolled out.

    `see(fixed)` runs the model with the maps of some blocks put in as constants.
    """
    total = 0.0
    for layer in chosen:
        end = plain.maps[-1 if last else layer]
        means = dict.fromkeys(range(len(plain.maps)), 0.0)
        for k in range(steps + 1):
            seen = see({layer: k / steps * end})
            for block in means:
                means[block] = means[block] + weighted(seen, block, positive=True) / (steps + 1)
        total = total + rolled(plain, means, every, skip=skip)
    return total
