"""Secants between a root and the input, forwards: what each unit contributes to every number.

A `Pair` has a number at the input, at the root, and the parts of the difference that each unit
contributes. Each rule is written for pairs, so nothing here is a gradient.
"""

import numpy as np
import torch
from torch import Tensor
from torch.autograd.functional import jvp


class Pair:
    """Numbers at both points, and parts (units, …) that add up to their difference."""

    def __init__(self, x: Tensor, root: Tensor, parts: Tensor):
        self.x, self.root, self.parts = x, root, parts

    @property
    def mean(self):
        return (self.x + self.root) / 2

    @staticmethod
    def enter(x: Tensor, root: Tensor) -> "Pair":
        """Each unit contributes the difference of its own row."""
        units = x.shape[0]
        parts = torch.zeros(units, *x.shape, dtype=x.dtype)
        for i in range(units):
            parts[i, i] = x[i] - root[i]
        return Pair(x, root, parts)

    def linear(self, f, part=None) -> "Pair":
        """An affine f; `part` is f without its constant."""
        part = part or f
        return Pair(f(self.x), f(self.root), torch.stack([part(p) for p in self.parts]))

    def with_rows(self, rows, kind):
        """Constants of the places of units, such as positions."""
        return self.linear(lambda t: t + rows, lambda t: t)

    def one_minus(self):
        return self.linear(lambda t: 1 - t, lambda t: -t)

    def closed(self, where):
        """Attention scores under a mask."""
        return Pair(*(t.masked_fill(where, -torch.inf) for t in (self.x, self.root)), self.parts)

    def plus(self, other) -> "Pair":
        return Pair(self.x + other.x, self.root + other.root, self.parts + other.parts)

    def through(self, f) -> "Pair":
        """An element-wise function: the slope of the secant; equal numbers have no parts."""
        y, root = f(self.x), f(self.root)
        slope = torch.where(self.x == self.root, 0.0, (y - root) / (self.x - self.root))
        return Pair(y, root, self.parts * slope)

    def times(self, other) -> "Pair":
        parts = self.parts * other.mean + self.mean * other.parts
        return Pair(self.x * other.x, self.root * other.root, parts)

    def scaled(self, eps: float) -> "Pair":
        """Over the root of the mean square of the last axis."""
        square = self.times(self).linear(lambda t: t.mean(-1, keepdim=True))
        return self.times(square.through(lambda v: (v + eps) ** -0.5))

    def normed(self, norm) -> "Pair":
        centred = self.linear(lambda t: t - t.mean(-1, keepdim=True))
        out = centred.scaled(norm.eps)
        return out.linear(lambda t: t * norm.weight + norm.bias, lambda t: t * norm.weight)

    def transposed(self) -> "Pair":
        return self.linear(lambda t: t.mT)

    def product(self, other: "Pair") -> "Pair":
        """A matrix product: each factor's difference with the mean of the other."""
        parts = self.parts @ other.mean + self.mean @ other.parts
        return Pair(self.x @ other.x, self.root @ other.root, parts)

    def softmax(self) -> "Pair":
        """Δp_i = L_i (Δz_i − Σ L Δz / Σ L), row by row, one number after the other."""
        p, p0 = self.x.softmax(-1), self.root.softmax(-1)
        log_mean = torch.where(p == p0, p, (p - p0) / (p.log() - p0.log()))
        parts = torch.zeros_like(self.parts)
        for unit, part in enumerate(self.parts):
            for row in range(len(p)):
                weights, change = log_mean[row], part[row]
                mean = sum(w * c for w, c in zip(weights, change, strict=True)) / sum(weights)
                for i in range(len(weights)):
                    parts[unit, row, i] = weights[i] * (change[i] - mean)
        return Pair(p, p0, parts)

    def largest(self, sharpness: float = 1e12) -> "Pair":
        """The largest of the last axis, as the limit of log Σ exp β z / β for large β."""
        logs, logs0 = ((sharpness * t).log_softmax(-1) for t in (self.x, self.root))
        near = (logs - logs0).abs() < 1e-12
        weights = torch.where(near, logs.exp(), (logs.exp() - logs0.exp()) / (logs - logs0))
        parts = (self.parts * weights).sum(-1) / weights.sum(-1)
        return Pair(self.x.amax(-1), self.root.amax(-1), parts)

    def smooth(self, f) -> "Pair":
        """The mean of the derivatives on the line between both points, along each part."""
        parts = torch.zeros(len(self.parts), *f(self.x).shape, dtype=self.x.dtype)
        for place, weight in zip(*np.polynomial.legendre.leggauss(60), strict=True):
            point = self.root + (1 + place) / 2 * (self.x - self.root)
            for unit, part in enumerate(self.parts):
                parts[unit] += weight / 2 * jvp(f, point, part)[1]
        return Pair(f(self.x), f(self.root), parts)


def affine(layer):
    """A linear layer, and the same without its bias."""
    bias = 0 if layer.bias is None else layer.bias
    return (lambda t: t @ layer.weight.T + bias), (lambda t: t @ layer.weight.T)
