"""Graphormer written out from the paper's equations: one graph, pair by pair, in loops."""

import math

import torch
from torch import Tensor


def shortest_paths(nodes, edges, features):
    """For each pair the sequences of edge features along all its shortest paths, found by walks."""
    joined = {}
    for (a, b), feature in zip(edges, features, strict=True):
        joined.setdefault(a, []).append((b, tuple(feature)))
        joined.setdefault(b, []).append((a, tuple(feature)))
    found = {}
    for start in range(nodes):
        found[start, start] = [()]
        reached, front = {start}, {start: [()]}
        while front:
            after = {}
            for node, walks in front.items():
                for other, feature in joined.get(node, []):
                    if other not in reached:
                        after.setdefault(other, []).extend((*walk, feature) for walk in walks)
            reached |= set(after)
            found |= {(start, node): walks for node, walks in after.items()}
            front = after
    return found


class Graphormer:
    """The logits of one graph, from the weights of a model."""

    def __init__(self, model):
        self.w = {name: tensor.detach().double() for name, tensor in model.state_dict().items()}
        self.config = model.config

    def linear(self, x: Tensor, name: str) -> Tensor:
        return self.w[f"{name}.weight"] @ x + self.w[f"{name}.bias"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        centred = x - x.mean()
        scaled = centred / torch.sqrt((centred**2).mean() + 1e-5)
        return scaled * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def phi(self, walks) -> int:
        """The spatial relation: the distance, or the last place for far and for none."""
        far = self.config.max_distance + 1
        return min(len(walks[0]), far) if walks else far

    def c(self, walks, head: int) -> float:
        """c_ij = (1/N) Σ_n x_{e_n} · w_n over the path whose features come first."""
        first = min(walks)[: self.config.max_path] if walks else ()
        products = [
            sum(value * self.w["path"][n, k, head].item() for k, value in enumerate(feature))
            for n, feature in enumerate(first)
        ]
        return sum(products) / len(products) if products else 0.0

    def bias(self, graph, head: int) -> list[list[float]]:
        """What is added to each product; the virtual node is 0."""
        walks = shortest_paths(len(graph), graph.edges.tolist(), graph.edge_features.tolist())
        virtual = self.w["virtual_distance"][head].item()
        rows = [[virtual] * (len(graph) + 1)]
        for i in range(len(graph)):
            row = [virtual]
            for j in range(len(graph)):
                between = walks.get((i, j), [])
                row.append(
                    self.w["spatial"][self.phi(between), head].item() + self.c(between, head)
                )
            rows.append(row)
        return rows

    def attend(self, h: list[Tensor], biases, name: str, kept) -> list[Tensor]:
        size = self.config.width // self.config.heads
        q, k, v = (
            [self.linear(x, f"{name}.{part}") for x in h] for part in ("query", "key", "value")
        )
        out = []
        for i in range(len(h)):
            heads = []
            for head in range(self.config.heads):
                own = slice(head * size, (head + 1) * size)
                weights = {
                    j: math.exp(float(q[i][own] @ k[j][own]) / math.sqrt(size) + biases[head][i][j])
                    for j in kept
                }
                total = sum(weights.values())
                heads.append(sum(weights[j] / total * v[j][own] for j in kept))
            out.append(self.linear(torch.cat(heads), f"{name}.output"))
        return out

    def __call__(self, graph, removed=()) -> Tensor:
        """The logits, with some nodes taken out of the attention."""
        degree = [sum(i in edge for edge in graph.edges.tolist()) for i in range(len(graph))]
        h = [self.w["virtual"]]
        for x, d in zip(torch.from_numpy(graph.x).double(), degree, strict=True):
            z = self.w["centrality.weight"][min(d, self.config.max_degree)]
            h.append(self.w["nodes.weight"] @ x + z)
        kept = [0, *(i + 1 for i in range(len(graph)) if i not in removed)]
        biases = [self.bias(graph, head) for head in range(self.config.heads)]
        for number in range(self.config.layers):
            name = f"blocks.{number}"
            normed = [self.norm(x, f"{name}.attention_norm") for x in h]
            mixed = self.attend(normed, biases, name, kept)
            h = [x + m for x, m in zip(h, mixed, strict=True)]
            for i, x in enumerate(h):
                inner = self.linear(self.norm(x, f"{name}.network_norm"), f"{name}.network.0")
                gelu = 0.5 * inner * (1 + torch.erf(inner / math.sqrt(2)))
                h[i] = x + self.linear(gelu, f"{name}.network.2")
        return self.linear(self.norm(h[0], "norm"), "head")
