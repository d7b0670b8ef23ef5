"""Relevance inside a small model equals plain matrix algebra."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.oracles import inside as oracle
from wherefrom import Explainer

UNITS, WIDTH, HEADS, NEURONS = 5, 8, 2, 11


class Block(nn.Module):
    def __init__(self, weights):
        super().__init__()
        for name in ("q", "k", "v", "o"):
            parameter = nn.Parameter(torch.from_numpy(getattr(weights, name)))
            self.register_parameter(name, parameter)
        self.up = _linear(weights.w1, weights.b1)
        self.down = _linear(weights.w2, weights.b2)

    def forward(self, x):  # (B, T, D)
        q, k, v = (torch.matmul(x[:, None], w.mT) for w in (self.q, self.k, self.v))
        heads = F.scaled_dot_product_attention(q, k, v)
        x = x + torch.matmul(heads, self.o.mT).sum(1)
        return x + self.down(F.gelu(self.up(x)))


def _linear(weight, bias):
    layer = nn.Linear(*weight.T.shape, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
        layer.bias.copy_(torch.from_numpy(bias))
    return layer


class Model(nn.Module):
    def __init__(self, blocks, readout):
        super().__init__()
        self.blocks = nn.ModuleList(map(Block, blocks))
        self.readout = nn.Parameter(torch.from_numpy(readout))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return F.linear(x[:, -1], self.readout[None])


def weights(rng):
    inner = (HEADS, WIDTH // HEADS, WIDTH)
    shapes = {
        "q": inner, "k": inner, "v": inner, "o": (HEADS, WIDTH, WIDTH // HEADS),
        "w1": (NEURONS, WIDTH), "b1": (NEURONS,), "w2": (WIDTH, NEURONS), "b2": (WIDTH,),
    }  # fmt: skip
    return oracle.Block(**{name: 0.5 * rng.normal(size=shape) for name, shape in shapes.items()})


@pytest.mark.parametrize("seed", range(3))
def test_every_part_has_the_relevance_of_matrix_algebra(seed):
    rng = np.random.default_rng(seed)
    blocks, readout = [weights(rng), weights(rng)], rng.normal(size=WIDTH)
    x = rng.normal(size=(UNITS, WIDTH))
    inside = Explainer(Model(blocks, readout)).inside(
        torch.from_numpy(x), "lrp", root=None, attention=0.0
    )
    for layer, expected in enumerate(oracle.relevance(blocks, x, readout)):
        exact = {"rtol": 1e-12, "atol": 1e-12}
        np.testing.assert_allclose(inside.layers[layer], expected.stream, **exact)
        np.testing.assert_allclose(inside.heads[layer], expected.heads, **exact)
        np.testing.assert_allclose(inside.edges(layer), expected.edges, **exact)
        np.testing.assert_allclose(inside.neurons(layer), expected.neurons, **exact)
        np.testing.assert_allclose(inside.attention[layer], expected.edges.sum((0, 2)), **exact)
        np.testing.assert_allclose(inside.mlps[layer], expected.neurons.sum(1), **exact)
        moved = inside.moved(layer)[:-1, :-1]
        np.testing.assert_allclose(moved, expected.edges.sum(0).T, **exact)
        top = dict(inside.top("neuron", 2 * NEURONS))
        for neuron, total in enumerate(expected.neurons.sum(0)):
            assert top[f"layer.{layer}.neuron.{neuron}"] == pytest.approx(total, abs=1e-12)
