"""Gates, with what each unit contributes carried forward: number = constant + Σ contributions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]


class Traced:
    """`value` (…), of which each unit contributes `parts` (units, …), and `constant` the rest.

    `at_zero` is what a gate is without input; it is None for any other number, all of whose
    constant is then a bias of its own.
    """

    def __init__(self, parts: Tensor, constant: Tensor, at_zero: Tensor | None = None) -> None:
        self.parts, self.constant, self.at_zero = parts, constant, at_zero
        self.value = parts.sum(0) + constant

    @classmethod
    def of(cls, x: Tensor) -> Traced:
        """The embedded input (units, D): unit i contributes row i."""
        parts = torch.zeros(len(x), *x.shape, dtype=x.dtype)
        for unit in range(len(x)):
            parts[unit, unit] = x[unit]
        return cls(parts, torch.zeros_like(x))

    def linear(self, weight: Tensor, bias: Tensor | float = 0.0) -> Traced:
        return Traced(self.parts @ weight.T, self.constant @ weight.T + bias)

    def row(self, index: int) -> Traced:
        return Traced(self.parts[:, index], self.constant[index])

    def row_of(self, feature: int) -> Traced:
        """One feature, of the last axis."""
        return Traced(self.parts[..., feature], self.constant[..., feature])

    def plus(self, other: Traced) -> Traced:
        return Traced(self.parts + other.parts, self.constant + other.constant)

    def secant(self, f: Function) -> Traced:
        """f(0) + z · [(f(z) − f(0)) / z], for f that is no gate."""
        zero = f(torch.zeros_like(self.value))
        slope = (f(self.value) - zero) / self.value
        return Traced(self.parts * slope, self.constant * slope + zero)

    def gate(self, f: Function, bias: Tensor | float = 0.0) -> Traced:
        """f(b) + (z − b) · [(f(z) − f(b)) / (z − b)] for z with the bias b."""
        at_zero = f(torch.zeros_like(self.value) + bias)
        slope = (f(self.value) - at_zero) / (self.value - bias)
        return Traced(self.parts * slope, at_zero + (self.constant - bias) * slope, at_zero=at_zero)

    def one_minus(self) -> Traced:
        assert self.at_zero is not None
        return Traced(-self.parts, 1 - self.constant, 1 - self.at_zero)

    def times(self, gate: Traced) -> Traced:
        """v · γ for a gate γ = γ₀ + δ: v γ₀ is linear in v, v δ is shared half and half."""
        assert gate.at_zero is not None
        if not self.parts.any():  # a constant: the product is linear in the gate
            return Traced(gate.parts * self.value, gate.constant * self.value)
        delta = gate.value - gate.at_zero
        of_value = gate.at_zero + delta / 2  # what multiplies the value's own parts
        of_gate = self.value / 2  # and those of δ
        return Traced(
            self.parts * of_value + gate.parts * of_gate,
            self.constant * of_value + (gate.constant - gate.at_zero) * of_gate,
        )


def gru(x: Tensor, weights: list[Tensor]) -> Traced:
    """The last state of `torch.nn.GRU` on x (units, D), step by step; r, z, n as torch has them."""
    w, u, b, c = weights
    inputs, size = Traced.of(x), u.shape[1]
    state = Traced(torch.zeros(len(x), size, dtype=x.dtype), torch.zeros(size, dtype=x.dtype))
    rows = [slice(k * size, (k + 1) * size) for k in range(3)]
    for t in range(len(x)):
        now = inputs.row(t)
        r, z = (
            now.linear(w[k], b[k]).plus(state.linear(u[k], c[k])).gate(torch.sigmoid, b[k] + c[k])
            for k in rows[:2]
        )
        n = now.linear(w[rows[2]], b[rows[2]]).plus(state.linear(u[rows[2]], c[rows[2]]).times(r))
        state = n.secant(torch.tanh).times(z.one_minus()).plus(state.times(z))
    return state


def lstm(x: Tensor, weights: list[Tensor]) -> Traced:
    """The last state of `torch.nn.LSTM` on x (units, D); i, f, g, o as torch has them."""
    w, u, b, c = weights
    inputs, size = Traced.of(x), u.shape[1]
    zero = torch.zeros(len(x), size, dtype=x.dtype)
    state = memory = Traced(zero, zero[0])
    for t in range(len(x)):
        i, f, g, o = (
            inputs.row(t).linear(w[k], b[k]).plus(state.linear(u[k], c[k]))
            for k in (slice(k * size, (k + 1) * size) for k in range(4))
        )
        biases = (b + c).reshape(4, size)
        i, f, o = (
            z.gate(torch.sigmoid, bias)
            for z, bias in ((i, biases[0]), (f, biases[1]), (o, biases[3]))
        )
        memory = memory.times(f).plus(g.secant(torch.tanh).times(i))
        state = memory.secant(torch.tanh).times(o)
    return state
