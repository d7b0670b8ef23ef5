"""Relevance within a two-layer Transformer without norms, as plain matrix algebra.

Attention weights are constant, and an activation f is the factor f(z) / z, so each block is a
linear map of its input x (T, D) plus constants:

    y = x + Σ_h A_h x V_hᵀ O_hᵀ        z = y W₁ᵀ + b₁        out = y + (f(z) / z · z) W₂ᵀ + b₂
"""

from dataclasses import dataclass
from math import erf, sqrt

import numpy as np


@dataclass
class Block:
    """The weights of a block; q, k, v (H, d, D), o (H, D, d)."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    o: np.ndarray
    w1: np.ndarray
    b1: np.ndarray
    w2: np.ndarray
    b2: np.ndarray


@dataclass
class Layer:
    """Relevance of the stream that enters a block, and of its parts."""

    stream: np.ndarray  # (T,)
    heads: np.ndarray  # (H,)
    edges: np.ndarray  # (H, Q, K)
    neurons: np.ndarray  # (T, N)


def gelu(z):
    return z * 0.5 * (1 + np.vectorize(erf)(z / sqrt(2)))


def weights(block, x):
    """The attention weights (H, Q, K)."""
    maps = []
    for q, k in zip(block.q, block.k, strict=True):
        scores = (x @ q.T) @ (x @ k.T).T / sqrt(len(q))
        powers = np.exp(scores - scores.max(1, keepdims=True))
        maps.append(powers / powers.sum(1, keepdims=True))
    return np.array(maps)


def relevance(blocks, x, readout):
    """Σ readout · x at the last row, and the relevance of every part of each block."""
    passes = []
    for block in blocks:
        maps = weights(block, x)
        y = x + sum(a @ x @ v.T @ o.T for a, v, o in zip(maps, block.v, block.o, strict=True))
        z = y @ block.w1.T + block.b1
        passes.append((x, maps, z))
        x = y + gelu(z) @ block.w2.T + block.b2
    gradient = np.zeros_like(x)
    gradient[-1] = readout
    layers = []
    for block, (x, maps, z) in zip(reversed(blocks), reversed(passes), strict=True):
        at_neurons = gradient @ block.w2
        neurons = at_neurons * gelu(z)
        gradient = gradient + (at_neurons * gelu(z) / z) @ block.w1
        edges, before = [], gradient.copy()
        for a, v, o in zip(maps, block.v, block.o, strict=True):
            at_head = gradient @ o  # (Q, d)
            edges.append(a * (at_head @ (x @ v.T).T))
            before += a.T @ at_head @ v
        gradient, edges = before, np.array(edges)
        layers.append(Layer((gradient * x).sum(1), edges.sum((1, 2)), edges, neurons))
    return layers[::-1]
