"""What each unit and each constant contributes to the outputs of `tests.random_models`.

A second computation of one sample, without padding, in float64: no gradient, no graph, no torch
module. `Carried` has every number with the parts of it that come from each source; `Pair` of
`two_points` has the parts of a difference. `network` is the model, written for both.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.random_models import ACTIVATIONS, EPS, Spec, distances, rotations, turned, types_of

Key = tuple[str, str]  # a layer and a kind


@dataclass
class Rules:
    """What a method does with the calls that are not linear."""

    to_weights: float  # share of the relevance of P V that P gets, through the softmax
    to_values: float
    constant_norms: bool
    secants: bool  # of activations, from their value without input; else their derivative
    to_factor: float  # share of each factor of any other product
    keys: list[Key] = field(default_factory=list)  # of the rows behind those of the units
    where: str = ""

    def row(self, kind: str) -> int:
        key = (self.where, kind)
        if key not in self.keys:
            self.keys.append(key)
        return self.keys.index(key)


class Carried:
    """Numbers x, and parts (sources, …): the units first, then each layer's constants.

    `bias` is what a linear layer has added, `offset` what an activation is without input.
    """

    def __init__(self, x, parts, rules, bias=None, offset=None, softmax_of=None):
        self.x, self.parts, self.rules = x, parts, rules
        self.bias, self.offset, self.softmax_of = bias, offset, softmax_of

    def _like(self, x, parts, **more) -> "Carried":
        return Carried(x, parts, self.rules, **more)

    def _with_constant(self, parts: Tensor, constant: Tensor, kind: str = "bias") -> Tensor:
        parts = parts.clone()
        parts[self.rules.row(kind)] += constant
        return parts

    def linear(self, f, part=None) -> "Carried":
        parts = (part or f)(self.parts)
        if part is None:
            return self._like(f(self.x), parts)
        constant = f(self.x) - part(self.x)
        return self._like(f(self.x), self._with_constant(parts, constant), bias=constant)

    def with_rows(self, rows: Tensor, kind: str) -> "Carried":
        """Constants of the places of units, such as positions."""
        parts = self.parts.clone()
        for i, row in enumerate(rows):
            parts[self.rules.keys.index((kind, str(i))), i] += row
        return self._like(self.x + rows, parts)

    def plus(self, other) -> "Carried":
        both = self.bias is not None and other.bias is not None
        bias = self.bias + other.bias if both else None
        return self._like(self.x + other.x, self.parts + other.parts, bias=bias)

    def through(self, f) -> "Carried":
        if not self.rules.secants:
            leaf = self.x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(f(leaf).sum(), leaf)
            return self._like(f(self.x), self.parts * slope)
        at_zero = f(torch.zeros_like(self.x))
        if not at_zero.any():
            return self._like(f(self.x), self.parts * (f(self.x) / self.x))
        start = torch.zeros_like(self.x) if self.bias is None else self.bias
        slope = (f(self.x) - f(start)) / (self.x - start)
        parts = self._with_constant(self.parts, -start) * slope
        return self._like(f(self.x), self._with_constant(parts, f(start)), offset=f(start))

    def one_minus(self) -> "Carried":
        offset = None if self.offset is None else 1 - self.offset
        return self._like(1 - self.x, self._with_constant(-self.parts, 1.0), offset=offset)

    def times(self, other) -> "Carried":
        if self.rules.to_factor == 1:
            return self._like(self.x * other.x, self.parts * other.x + self.x * other.parts)
        (a, c), (b, d) = ((t, 0.0 if t.offset is None else t.offset) for t in (self, other))
        of_a, of_b = (t._with_constant(t.parts, -o) for t, o in ((a, c), (b, d)))
        parts = of_a * (b.x + d) / 2 + of_b * (a.x + c) / 2
        return self._like(a.x * b.x, self._with_constant(parts, c * d))

    def scaled(self, eps: float) -> "Carried":
        scale = (self.x.square().mean(-1, keepdim=True) + eps) ** -0.5
        parts = self.parts * scale
        if not self.rules.constant_norms:
            change = (self.parts * self.x).mean(-1, keepdim=True)
            parts = parts - self.x * scale**3 * change
        return self._like(self.x * scale, parts)

    def transposed(self) -> "Carried":
        return self.linear(lambda t: t.mT)

    def closed(self, where: Tensor) -> "Carried":
        return self._like(self.x.masked_fill(where, -torch.inf), self.parts)

    def softmax(self) -> "Carried":
        p = self.x.softmax(-1)
        parts = p * (self.parts - (p * self.parts).sum(-1, keepdim=True))
        return self._like(p, parts, softmax_of=self.x)

    def product(self, other) -> "Carried":
        rules, x = self.rules, self.x @ other.x
        if self.softmax_of is None:
            parts = self.parts @ other.x + self.x @ other.parts
            return self._like(x, parts * rules.to_factor)
        parts = rules.to_weights * self.parts @ other.x + rules.to_values * self.x @ other.parts
        if rules.secants and rules.to_weights:
            z = self.softmax_of.masked_fill(self.x == 0, 0.0)
            rest = self.x - self.x * (z - (self.x * z).sum(-1, keepdim=True))
            parts = self._with_constant(parts, rules.to_weights * rest @ other.x, "softmax")
        return self._like(x, parts)

    def largest(self) -> "Carried":
        """Of the last axis; equal numbers get equal shares."""
        largest = self.x.amax(-1, keepdim=True)
        shares = (self.x == largest).double()
        shares = shares / shares.sum(-1, keepdim=True)
        return self._like(largest[..., 0], (self.parts * shares).sum(-1))


class Layers:
    """The layers of a model by their names, from its weights in float64."""

    def __init__(self, spec: Spec, weights: dict[str, Tensor]) -> None:
        self.spec = spec
        self.weights = {name: w.double() for name, w in weights.items()}

    def linear(self, x, name, rows=slice(None), matrix="weight", *biases):
        w = self.weights[f"{name}.{matrix}"][rows]
        found = [self.weights.get(f"{name}.{bias}") for bias in biases or ("bias",)]
        if found[0] is None:
            return x.linear(lambda t: t @ w.T)
        total = sum(bias[rows] for bias in found)
        return x.linear(lambda t: t @ w.T + total, lambda t: t @ w.T)

    def norm(self, x, kind, name):
        if kind == "none":
            return x
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        if kind == "batch":
            weight = weight / (self.weights[f"{name}.var"] + EPS).sqrt()
            bias = bias - self.weights[f"{name}.mean"] * weight
        else:
            x = x.linear(lambda t: t.unflatten(-1, (2 if kind == "group" else 1, -1)))
            if kind != "rms":
                x = x.linear(lambda t: t - t.mean(-1, keepdim=True))
            x = x.scaled(EPS).linear(lambda t: t.flatten(-2))
        if bias is None:
            return x.linear(lambda t: t * weight)
        return x.linear(lambda t: t * weight + bias, lambda t: t * weight)

    def attention(self, x, name):
        spec, length = self.spec, x.x.shape[-2]
        size, group = spec.width // spec.heads, spec.heads // spec.key_heads
        cos, sin = (table[:length] for table in rotations(size))
        closed = torch.ones(length, length).triu(1).bool()
        joined = None
        for head in range(spec.heads):
            of_query, of_key = (slice(n * size, (n + 1) * size) for n in (head, head // group))
            q = self.linear(x, f"{name}.q", of_query)
            k = self.linear(x, f"{name}.k", of_key)
            if spec.positions == "rotary":
                q, k = (t.linear(lambda t: turned(t, cos, sin)) for t in (q, k))
            scores = q.product(k.transposed()).linear(lambda t: t * size**-0.5)
            if spec.positions == "distance":
                added = distances(spec.heads, length)[head]
                scores = scores.linear(lambda t, a=added: t + a, lambda t: t)
            if spec.causal:
                scores = scores.closed(closed)
            out = scores.softmax().product(self.linear(x, f"{name}.v", of_key))
            w = self.weights[f"{name}.o.weight"][:, of_query]
            out = out.linear(lambda t, w=w: t @ w.T)
            joined = out if joined is None else joined.plus(out)
        bias = self.weights.get(f"{name}.o.bias")
        return joined if bias is None else joined.linear(lambda t: t + bias, lambda t: t)

    def gru(self, x, name):
        length, size = x.x.shape[-2:]
        parts = [slice(n * size, (n + 1) * size) for n in range(3)]
        state, out = None, None

        def of_input(t, part, *biases):
            row = x.linear(lambda v: v[..., t, :])
            return self.linear(row, name, part, "weight_ih_l0", *(f"bias_{b}_l0" for b in biases))

        def of_state(part):
            return self.linear(state, name, part, "weight_hh_l0", "bias_hh_l0")

        for t in range(length):
            if state is None:
                reset, update = (
                    of_input(t, part, "ih", "hh").through(torch.sigmoid) for part in parts[:2]
                )
                bias = self.weights.get(f"{name}.bias_hh_l0", torch.zeros(3 * size).double())
                new = reset.linear(lambda v, b=bias[parts[2]]: v * b)
            else:
                reset, update = (
                    of_input(t, part, "ih").plus(of_state(part)).through(torch.sigmoid)
                    for part in parts[:2]
                )
                new = of_state(parts[2]).times(reset)
            new = of_input(t, parts[2], "ih").plus(new).through(torch.tanh)
            kept = None if state is None else state.times(update)
            state = new.times(update.one_minus())
            state = state if kept is None else state.plus(kept)
            at_place = torch.eye(length).double()[t][:, None]
            row = state.linear(lambda v, at=at_place: v.unsqueeze(-2) * at)
            out = row if out is None else out.plus(row)
        return out

    def block(self, x, number, own):
        name, act = f"blocks.{number}", ACTIVATIONS[own.activation]
        for part, norm in (("mix", "first"), ("feed", "second")):
            if getattr(own, part) == "none":
                continue
            h = self.norm(x, own.norm, f"{name}.{norm}") if own.norm_first else x
            if part == "mix":
                mix = self.attention if own.mix == "attention" else self.gru
                x = x.plus(mix(h, f"{name}.mix"))
            else:
                up = self.linear(h, f"{name}.up")
                gate = up if own.feed == "plain" else self.linear(h, f"{name}.gate")
                if own.feed == "highway":
                    gate = gate.through(torch.sigmoid)
                    x = up.through(act).times(gate).plus(x.times(gate.one_minus()))
                else:
                    h = gate.through(act)
                    h = h if own.feed == "plain" else up.times(h)
                    x = x.plus(self.linear(h, f"{name}.down"))
            x = x if own.norm_first else self.norm(x, own.norm, f"{name}.{norm}")
        return x


def network(spec: Spec, weights: dict[str, Tensor], x, enter):
    """The logits of one embedded sample; `enter` is told each layer that is entered."""
    layers = Layers(spec, weights)
    if spec.inputs == "floats":
        enter("project")
        x = layers.linear(x, "project")
    enter("model")
    if spec.positions in ("learned", "fixed"):
        table = layers.weights["fixed" if spec.positions == "fixed" else "positions.weight"]
        x = x.with_rows(table[: x.x.shape[-2]], "position")
    if spec.types:
        x = x.with_rows(layers.weights["types.weight"][types_of(x.x.shape[-2])], "type")
    enter("norm")
    x = layers.norm(x, spec.embedding_norm, "norm")
    for number, own in enumerate(spec.blocks):
        enter(f"blocks.{number}")
        x = layers.block(x, number, own)
    enter("model")
    if spec.pooling in ("first", "last"):
        row = 0 if spec.pooling == "first" else -1
        x = x.linear(lambda t: t[..., row, :])
    elif spec.pooling == "mean":
        x = x.linear(lambda t: t.mean(-2))
    elif spec.pooling == "max":
        x = x.transposed().largest()
    if spec.dense:
        enter("dense")
        x = layers.linear(x, "dense").through(torch.tanh)
    enter("head")
    return layers.linear(x, "head")
