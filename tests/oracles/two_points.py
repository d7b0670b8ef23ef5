"""Secants between a root and the input, forwards: what each unit contributes to every number.

A `Pair` has a number at the input, at the root, and the parts of the difference that each unit
(and, last, attention) contributes. Each rule is written for pairs, so nothing here is a gradient.
"""

import torch
from torch import Tensor


class Pair:
    """Numbers at both points, and parts (units + 1, …) that add up to their difference."""

    def __init__(self, x: Tensor, root: Tensor, parts: Tensor):
        self.x, self.root, self.parts = x, root, parts

    @property
    def mean(self):
        return (self.x + self.root) / 2

    @staticmethod
    def enter(x: Tensor, root: Tensor) -> "Pair":
        """Each unit contributes the difference of its own row."""
        units = x.shape[0]
        parts = torch.zeros(units + 1, *x.shape, dtype=x.dtype)
        for i in range(units):
            parts[i, i] = x[i] - root[i]
        return Pair(x, root, parts)

    def linear(self, f, part=None) -> "Pair":
        """An affine f; `part` is f without its constant."""
        part = part or f
        return Pair(f(self.x), f(self.root), torch.stack([part(p) for p in self.parts]))

    def plus(self, other) -> "Pair":
        return Pair(self.x + other.x, self.root + other.root, self.parts + other.parts)

    def through(self, f) -> "Pair":
        """An element-wise function: the slope of the secant."""
        y, root = f(self.x), f(self.root)
        slope = (y - root) / (self.x - self.root)
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

    def weighed(self, weights: "Pair") -> "Pair":
        """Values weighed by attention, whose own change is the last part."""
        parts = weights.mean @ self.parts
        parts[-1] += (weights.x - weights.root) @ self.mean
        return Pair(weights.x @ self.x, weights.root @ self.root, parts)


def affine(layer):
    """A linear layer, and the same without its bias."""
    bias = 0 if layer.bias is None else layer.bias
    return (lambda t: t @ layer.weight.T + bias), (lambda t: t @ layer.weight.T)
