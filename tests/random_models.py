"""Small random models: a description drawn from a seed, and modules that compute it.

The same description can be written in many ways (`Writing`), which must all get the same scores.
"""

import math
import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IDS, CLASSES, LONGEST, EPS = 12, 3, 8, 1e-3
ACTIVATIONS: dict[str, Any] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "elu": F.elu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
}
MODULES = {
    "relu": nn.ReLU(),
    "gelu": nn.GELU(),
    "silu": nn.SiLU(),
    "tanh": nn.Tanh(),
    "elu": nn.ELU(),
    "mish": nn.Mish(),
    "sigmoid": nn.Sigmoid(),
    "softplus": nn.Softplus(),
}


@dataclass(frozen=True)
class BlockSpec:
    """Rows that mix, then a feed-forward part; each with a norm and a skip connection."""

    mix: str  # attention, gru, none
    feed: str  # plain, gated, highway, none
    activation: str
    norm: str  # layer, rms, group, batch, none
    norm_first: bool
    bias: bool


@dataclass(frozen=True)
class Spec:
    """All that determines the output, but for the weights, which are drawn from the seed."""

    seed: int
    inputs: str  # ids, floats
    dtype: torch.dtype
    width: int
    heads: int
    key_heads: int
    causal: bool
    positions: str  # none, learned, fixed, rotary, distance
    types: bool
    embedding_norm: str
    blocks: tuple[BlockSpec, ...]
    pooling: str  # first, last, mean, max, none: an output for each position
    dense: bool
    lengths: tuple[int, ...]
    left: bool
    training: bool
    root: int | None = field(compare=False)  # the root of methods that need none

    @staticmethod
    def draw(seed: int) -> "Spec":
        chance = random.Random(seed)
        heads = chance.choice([1, 2, 2, 4])
        left = chance.random() < 0.4
        mixes = ["attention"] * 4 + ["none"] + ["gru"] * (not left)
        norms = ["layer", "layer", "rms", "group", "batch", "none"]

        def block() -> BlockSpec:
            return BlockSpec(
                chance.choice(mixes),
                chance.choice(["plain", "gated", "gated", "highway", "none"]),
                chance.choice(list(ACTIVATIONS)),
                chance.choice(norms),
                chance.random() < 0.5,
                chance.random() < 0.7,
            )

        blocks = tuple(block() for _ in range(chance.randint(1, 2)))
        if not any(part.mix == "attention" for part in blocks):
            blocks = (BlockSpec("attention", "none", "relu", "layer", True, True), *blocks)
        inputs = chance.choice(["ids", "ids", "floats"])
        types = inputs == "ids" and chance.random() < 0.3
        lengths = tuple(chance.randint(1 + types, 6) for _ in range(chance.randint(1, 3)))
        return Spec(
            seed,
            inputs,
            torch.float64 if chance.random() < 0.8 else torch.float32,
            heads * chance.choice([2, 4]),
            heads,
            chance.choice([n for n in (1, 2, 4) if heads % n == 0]),
            chance.random() < 0.4,
            chance.choice(["none", "learned", "fixed", "rotary", "distance"]),
            types,
            chance.choice(norms),
            blocks,
            chance.choice(["first", "last", "mean", "max", "none"]),
            chance.random() < 0.5,
            lengths,
            left,
            chance.random() < 0.5,
            chance.choice([None, 1]),
        )


class Writing:
    """How a description is written in torch calls, drawn at random."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.drawn: dict[str, str] = {}

    def of(self, what: str, *ways: str) -> str:
        """The way chosen for this part of the model: the same in every pass."""
        if what not in self.drawn:
            self.drawn[what] = self.chance.choice(ways)
        return self.drawn[what]


class Norm(nn.Module):
    def __init__(self, kind: str, width: int, writing: Writing, name: str) -> None:
        super().__init__()
        self.kind, self.writing, self.name = kind, writing, name
        self.weight = nn.Parameter(torch.ones(width))
        if kind != "rms":
            self.bias = nn.Parameter(torch.zeros(width))
        if kind == "batch":
            self.register_buffer("mean", torch.zeros(width))
            self.register_buffer("var", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        way = self.writing.of(self.name, "fused", "rsqrt", "power", "quotient")
        if self.kind == "batch":
            if way == "fused":
                args = self.mean, self.var, self.weight, self.bias, False, 0.1, EPS
                return F.batch_norm(x.transpose(1, 2), *args).transpose(1, 2)
            return (x - self.mean) / (self.var + EPS).sqrt() * self.weight + self.bias
        if way == "fused":
            if self.kind == "rms":
                return F.rms_norm(x, self.weight.shape, self.weight, EPS)
            if self.kind == "layer":
                return F.layer_norm(x, self.weight.shape, self.weight, self.bias, EPS)
            return F.group_norm(x.flatten(0, 1), 2, self.weight, self.bias, EPS).view(x.shape)
        rows = x.unflatten(-1, (2 if self.kind == "group" else 1, -1))
        if self.kind != "rms":
            rows = rows - rows.mean(-1, keepdim=True)
        mean_square = rows.pow(2).mean(-1, keepdim=True) + EPS
        if way == "rsqrt":
            rows = rows * torch.rsqrt(mean_square)
        else:
            rows = rows * mean_square**-0.5 if way == "power" else rows / mean_square.sqrt()
        x = rows.flatten(-2) * self.weight
        return x if self.kind == "rms" else x + self.bias


def rotations(width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary positions, (LONGEST, width)."""
    angles = torch.arange(LONGEST)[:, None] / 3.0 ** torch.arange(width // 2)
    return angles.cos().repeat(1, 2).double(), angles.sin().repeat(1, 2).double()


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: pairs of features turned by an angle for each position."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def distances(heads: int, width: int) -> Tensor:
    """What is added to attention scores, −|i − j| by a slope for each head."""
    apart = (torch.arange(width)[:, None] - torch.arange(width)).abs()
    return -apart / 2.0 ** torch.arange(heads)[:, None, None].double()


def types_of(length: int) -> Tensor:
    """Token types: the first two tokens have another than the rest."""
    return (torch.arange(length) > 1).long()


class Attention(nn.Module):
    def __init__(self, spec: Spec, bias: bool, writing: Writing, name: str) -> None:
        super().__init__()
        self.spec, self.writing, self.name = spec, writing, name
        size = spec.width // spec.heads
        self.q, self.o = (nn.Linear(spec.width, spec.width, bias) for _ in range(2))
        self.k, self.v = (nn.Linear(spec.width, spec.key_heads * size, bias) for _ in range(2))
        cos, sin = rotations(size)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        self.register_buffer("distances", distances(spec.heads, LONGEST))

    def join(self) -> None:
        """Copies the weights for the ways in which they are one tensor."""
        if self.way == "multihead":
            spec, bias = self.spec, self.q.bias is not None
            self.joined = nn.MultiheadAttention(spec.width, spec.heads, 0.1, bias, batch_first=True)
            parts = (self.q, self.k, self.v)
            self.joined.in_proj_weight.data = torch.cat([part.weight for part in parts]).data
            self.joined.out_proj = self.o
            if bias:
                self.joined.in_proj_bias.data = torch.cat([part.bias for part in parts]).data

    @property
    def way(self) -> str:
        ways = ["fused", "matmul", "einsum", "baddbmm", "values first"]
        spec = self.spec
        if spec.key_heads == spec.heads and spec.positions != "rotary":
            ways += ["multihead", "multihead"]
        return self.writing.of(self.name, *ways)

    def forward(self, x: Tensor, mask: Tensor | None, places: Tensor) -> Tensor:
        spec, length = self.spec, x.shape[1]
        is_open = torch.ones(length, length, dtype=torch.bool)
        is_open = (is_open.tril() if spec.causal else is_open)[None, None]
        if mask is not None:  # padding attends to itself
            is_open = is_open & mask.bool()[:, None, None] | torch.eye(length).bool()
        added = torch.zeros(is_open.shape, dtype=x.dtype).masked_fill(~is_open, -math.inf)
        if spec.positions == "distance":
            added = added + self.distances[:, :length, :length]
        if self.way == "multihead":
            full = added.expand(len(x), spec.heads, -1, -1).flatten(0, 1)
            weights = self.writing.of(f"{self.name} weights", "yes", "no") == "yes"
            return self.joined(x, x, x, attn_mask=full, need_weights=weights)[0]
        q, k, v = (
            layer(x).unflatten(-1, (-1, spec.width // spec.heads)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        if spec.positions == "rotary":
            cos, sin = (table[places].unsqueeze(1) for table in (self.cos, self.sin))
            q, k = turned(q, cos, sin), turned(k, cos, sin)
        out = self.attend(q, k, v, is_open, added, mask is None)
        return self.o(out.transpose(1, 2).flatten(2))

    def attend(self, q, k, v, is_open, added, unpadded: bool) -> Tensor:
        spec, scale = self.spec, q.shape[-1] ** -0.5
        if self.way == "fused":
            how: dict[str, Any] = {"enable_gqa": spec.key_heads != spec.heads}
            if unpadded and spec.positions != "distance":
                how["is_causal"] = spec.causal
            else:
                how["attn_mask"] = added if spec.positions == "distance" else is_open
            return F.scaled_dot_product_attention(q, k, v, **how)
        k, v = (t.repeat_interleave(spec.heads // spec.key_heads, 1) for t in (k, v))
        if self.way == "baddbmm":
            added = added.expand(len(q), spec.heads, -1, -1).flatten(0, 1)
            flat_q, flat_k, flat_v = (t.flatten(0, 1) for t in (q, k, v))
            scores = torch.baddbmm(added, flat_q, flat_k.mT, alpha=scale)
            return torch.bmm(scores.softmax(-1), flat_v).view(q.shape)
        if self.way == "einsum":
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * scale + added
            return torch.einsum("bhqk,bhkd->bhqd", F.softmax(scores, -1), v)
        scores = q @ k.transpose(-1, -2) * scale
        if spec.positions == "distance":
            scores = scores + added
        scores = scores.masked_fill(~is_open, torch.finfo(q.dtype).min)
        if self.way == "values first":
            return (v.mT @ scores.softmax(-1).mT).mT
        return F.dropout(torch.softmax(scores, -1), 0.1, self.training) @ v


class Block(nn.Module):
    def __init__(self, spec: Spec, own: BlockSpec, writing: Writing, name: str) -> None:
        super().__init__()
        self.own, self.writing, self.name = own, writing, name
        width = spec.width
        if own.norm != "none":
            self.first, self.second = (
                Norm(own.norm, width, writing, f"{name}.{part}") for part in ("first", "second")
            )
        if own.mix == "attention":
            self.mix: nn.Module = Attention(spec, own.bias, writing, f"{name}.attention")
        elif own.mix == "gru":
            self.mix = nn.GRU(width, width, bias=own.bias, batch_first=True)
        inner = width if own.feed == "highway" else width + 2
        if own.feed != "none":
            self.up = nn.Linear(width, inner, own.bias)
        if own.feed in ("gated", "highway"):
            self.gate = nn.Linear(width, inner, own.bias)
        if own.feed in ("plain", "gated"):
            self.down = nn.Linear(inner, width, own.bias)

    def mixed(self, x: Tensor, mask: Tensor | None, places: Tensor) -> Tensor:
        if self.own.mix == "attention":
            return self.mix(x, mask, places)
        if self.writing.of(f"{self.name}.gru", "fused", "cells") == "fused":
            return self.mix(x)[0]
        weights, states = list(self.mix.all_weights[0]), []
        state = torch.zeros_like(x[:, 0])
        for row in x.unbind(1):
            state = torch.gru_cell(row, state, *weights)
            states.append(state)
        return torch.stack(states, 1)

    def activated(self, x: Tensor) -> Tensor:
        name = self.own.activation
        way = self.writing.of(f"{self.name}.activation", "function", "module", "in place")
        if way == "module":
            return MODULES[name](x)
        if way == "in place" and name in ("relu", "silu", "elu", "mish"):
            return ACTIVATIONS[name](x, inplace=True)
        if way == "in place" and name in ("tanh", "sigmoid"):
            return getattr(x, f"{name}_")()
        return ACTIVATIONS[name](x)

    def feed(self, x: Tensor) -> Tensor:
        if self.own.feed == "plain":
            return self.down(self.activated(self.up(x)))
        way = self.writing.of(f"{self.name}.gate", "apart", "joined", "swapped", "glu")
        if way == "apart":
            gated = self.activated(self.gate(x)) * self.up(x)
        elif way == "swapped":
            gated = torch.mul(self.up(x), self.activated(self.gate(x)))
        else:
            bias = torch.cat([self.up.bias, self.gate.bias]) if self.own.bias else None
            both = F.linear(x, torch.cat([self.up.weight, self.gate.weight]), bias)
            if way == "glu" and self.own.activation == "sigmoid":
                return self.down(F.glu(both))
            up, gate = both.chunk(2, -1)
            gated = up * ACTIVATIONS[self.own.activation](gate)
        return self.down(gated)

    def forward(self, x: Tensor, mask: Tensor | None, places: Tensor) -> Tensor:
        own = self.own
        for part in ("mix", "feed"):
            if getattr(own, part) == "none":
                continue
            norm = nn.Identity()
            if own.norm != "none":
                norm = self.first if part == "mix" else self.second
            h = norm(x) if own.norm_first else x
            if part == "mix":
                x = x + self.mixed(h, mask, places)
            elif own.feed == "highway":
                share = torch.sigmoid(self.gate(h))
                x = share * self.activated(self.up(h)) + (1 - share) * x
            else:
                x = x + F.dropout(self.feed(h), 0.1, self.training)
            x = x if own.norm_first else norm(x)
        return x


class Net(nn.Module):
    """The model of a description, in one writing. All have the same weights by name."""

    def __init__(self, spec: Spec, writing: Writing) -> None:
        super().__init__()
        self.spec, width = spec, spec.width
        if spec.inputs == "ids":
            self.words = nn.Embedding(IDS, width)
        else:
            self.project = nn.Linear(5, width)
        if spec.positions == "learned":
            self.positions = nn.Embedding(LONGEST, width)
        if spec.positions == "fixed":
            self.register_buffer("fixed", torch.zeros(LONGEST, width))
        if spec.types:
            self.types = nn.Embedding(2, width)
        if spec.embedding_norm != "none":
            self.norm = Norm(spec.embedding_norm, width, writing, "norm")
        self.blocks = nn.ModuleList(
            Block(spec, own, writing, f"blocks.{i}") for i, own in enumerate(spec.blocks)
        )
        if spec.dense:
            self.dense = nn.Linear(width, width)
        self.head = nn.Linear(width, CLASSES)
        self._draw_weights()
        self.train(spec.training)

    def _draw_weights(self) -> None:
        rng = torch.Generator().manual_seed(self.spec.seed)
        for name, tensor in sorted(self.state_dict().items()):
            if name.split(".")[-1] in ("cos", "sin", "distances"):
                continue
            drawn = torch.randn(tensor.shape, generator=rng, dtype=torch.float64)
            if name.endswith(("norm.weight", "first.weight", "second.weight")):
                drawn = 1 + drawn * 0.3
            elif name.endswith("var"):
                drawn = drawn.square() + 0.3
            elif drawn.ndim > 1 and "words" not in name:
                drawn = drawn * 1.2 / math.sqrt(drawn.shape[-1])
            elif drawn.ndim == 1:
                drawn = drawn * 0.4
            tensor.copy_(drawn)
        self.to(self.spec.dtype)
        for part in self.modules():
            if isinstance(part, Attention):
                part.join()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        spec, mask = self.spec, attention_mask
        x = self.words(input_ids) if spec.inputs == "ids" else self.project(input_ids)
        places = torch.arange(x.shape[1]).expand(len(x), -1)
        if mask is not None:
            places = (mask.long().cumsum(1) - 1).clamp(min=0)
        if spec.positions == "learned":
            x = x + self.positions(places)
        if spec.positions == "fixed":
            x = x + self.fixed[places]
        if spec.types:
            x = x + self.types(token_type_ids)
        if spec.embedding_norm != "none":
            x = self.norm(x)
        for block in self.blocks:
            x = block(x, mask, places)
        x = self.pooled(x, torch.ones(x.shape[:2]) if mask is None else mask)
        return self.head(torch.tanh(self.dense(x)) if spec.dense else x)

    def pooled(self, x: Tensor, mask: Tensor) -> Tensor:
        rows, pooling = torch.arange(len(x)), self.spec.pooling
        lengths = mask.long().sum(1)
        first = x.shape[1] - lengths if self.spec.left else torch.zeros_like(lengths)
        if pooling == "first":
            return x[rows, first]
        if pooling == "last":
            return x[rows, first + lengths - 1]
        if pooling == "mean":
            weights = mask.to(x.dtype).unsqueeze(-1)
            return (x * weights).sum(1) / weights.sum(1)
        if pooling == "max":
            return x.masked_fill(~mask.bool().unsqueeze(-1), -math.inf).amax(1)
        return x
