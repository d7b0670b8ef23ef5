"""Secants between a root and the input, against contributions that are propagated forwards."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers import exactly, normal
from tests.methods.calling import asked, of_tensor, runner_of
from tests.modules import Plain
from tests.oracles.two_points import Pair, affine
from wherefrom.core.runner import Case
from wherefrom.errors import MethodError
from wherefrom.methods import method

D, CLASSES = 6, 3


class GatedBlock(Plain):
    """Attention of one head, a gated layer with GELU, LayerNorm before each, and a mean."""

    def __init__(self, spelling):
        super().__init__()
        self.spelling = spelling
        self.first, self.second = nn.LayerNorm(D), nn.LayerNorm(D)
        self.q, self.k, self.v, self.gate, self.up = (nn.Linear(D, D) for _ in range(5))
        self.down, self.head = nn.Linear(D, D), nn.Linear(D, CLASSES)
        self.shaken()

    def attend(self, q, k, v):
        if self.spelling == "fused":
            return F.scaled_dot_product_attention(q, k, v)
        scores = q @ k.transpose(-1, -2) / math.sqrt(D)
        if self.spelling == "exponentials":
            weights = scores.exp()
            return (weights / weights.sum(-1, keepdim=True)) @ v
        weights = scores.softmax(-1)
        if self.spelling == "einsum":
            return torch.einsum("bqk,bkd->bqd", weights, v)
        if self.spelling == "values first":
            return (v.mT @ weights.mT).mT
        return weights @ v

    def norm(self, layer, x):
        if self.spelling != "explicit":
            return layer(x)
        centred = x - x.mean(-1, keepdim=True)
        scale = torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + layer.eps)
        return centred * scale * layer.weight + layer.bias

    def forward(self, x):
        h = self.norm(self.first, x)
        x = x + self.attend(self.q(h), self.k(h), self.v(h))
        h = self.norm(self.second, x)
        x = x + self.down(F.gelu(self.gate(h)) * self.up(h))
        return self.head(torch.tanh(x.mean(1)))


def contributions(model, x, root):
    """What each unit and attention contribute to each logit."""
    pair = Pair.enter(x, root)
    h = pair.normed(model.first)
    query, key = h.linear(*affine(model.q)), h.linear(*affine(model.k))
    weights = Pair(
        (query.x @ key.x.T / math.sqrt(D)).softmax(-1),
        (query.root @ key.root.T / math.sqrt(D)).softmax(-1),
        torch.empty(0),
    )
    pair = pair.plus(h.linear(*affine(model.v)).weighed(weights))
    h = pair.normed(model.second)
    gated = h.linear(*affine(model.gate)).through(F.gelu).times(h.linear(*affine(model.up)))
    pair = pair.plus(gated.linear(*affine(model.down)))
    return pair.linear(lambda t: t.mean(-2)).through(torch.tanh).linear(*affine(model.head))


@pytest.mark.parametrize(
    "spelling", ["fused", "explicit", "exponentials", "einsum", "values first"]
)
def test_relevance_is_what_each_unit_contributes(rng, spelling):
    model = GatedBlock(spelling)
    x, root = normal(rng, 2, 5, D), normal(rng, 2, 5, D)
    inputs = of_tensor(x)
    lrp = method("lrp", root=root, secants="root")
    result = lrp(Case(runner_of(model, inputs), inputs, asked(inputs, 1)))
    with torch.no_grad():
        for i in range(2):
            expected = contributions(model, x[i], root[i])
            exactly(expected.parts.sum(0), expected.x - expected.root)
            exactly(result.values[i], expected.parts[:-1, 1])
            exactly(result.lines["root", "root"][i], expected.root[1])
            attention = sum(v[i] for (_, kind), v in result.lines.items() if kind == "attention")
            exactly(attention, expected.parts[-1, 1])


def test_fused_attention_over_many_keys_is_the_same(rng, monkeypatch):
    model, x, root = GatedBlock("fused"), normal(rng, 1, 5, D), normal(rng, 1, 5, D)
    inputs = of_tensor(x)
    lrp = method("lrp", root=root, secants="root")
    few = lrp(Case(runner_of(model, inputs), inputs, asked(inputs, 1)))
    monkeypatch.setattr("wherefrom.rules.secants.FEW_KEYS", 0)
    many = lrp(Case(runner_of(model, inputs), inputs, asked(inputs, 1)))
    exactly(many.values, few.values)
    for key, line in few.lines.items():
        exactly(many.lines[key], line)


def test_without_attention_and_products_it_is_deep_lift(rng):
    from captum.attr import DeepLift

    model = nn.Sequential(
        nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, CLASSES)
    ).double()
    wrapped = nn.Sequential(nn.Flatten(0, 1), model)  # rows of one unit
    x, root = normal(rng, 4, 1, D), normal(rng, 4, 1, D)
    inputs = of_tensor(x)
    lrp = method("lrp", root=root, secants="root")
    result = lrp(Case(runner_of(wrapped, inputs), inputs, asked(inputs, 2)))
    leaf = x[:, 0].clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Captum's hooks
        expected = DeepLift(model).attribute(leaf, root[:, 0], target=2).detach()
    exactly(result.values[:, 0], expected.sum(-1), 1e-9)


class Decay(Plain):
    """Earlier rows fade, later ones are masked: exponentials that are no attention weights."""

    def __init__(self):
        super().__init__()
        self.rate, self.value, self.head = nn.Linear(D, 1), nn.Linear(D, D), nn.Linear(D, CLASSES)
        self.shaken()

    def forward(self, x):
        rate = self.rate(x).squeeze(-1).cumsum(-1)
        between = rate[:, :, None] - rate[:, None, :]
        later = torch.ones(between.shape[-2:], dtype=torch.bool).triu(1)
        decay = between.masked_fill(later, -math.inf).exp()
        return self.head((decay @ self.value(x)).mean(1))


def test_exponentials_under_a_mask_add_up(rng):
    x, root = normal(rng, 2, 4, D), normal(rng, 2, 4, D)
    inputs, model = of_tensor(x), Decay()
    lrp = method("lrp", root=root, secants="root")
    result = lrp(Case(runner_of(model, inputs), inputs, asked(inputs, 1)))
    with torch.no_grad():
        exactly(result.values.sum(1), model(x)[:, 1] - model(root)[:, 1])


class Lengths(Plain):
    """Norms of other kinds: RMS, groups, unit length, a norm that is divided by."""

    def __init__(self):
        super().__init__()
        self.rms, self.groups = nn.RMSNorm(D), nn.GroupNorm(2, 4)
        self.head = nn.Linear(D, CLASSES)
        self.shaken()

    def forward(self, x):
        y = self.rms(x) + F.normalize(x, dim=-1) + x / x.norm(dim=-1, keepdim=True)
        return self.head((y + self.groups(x)).square().mean(1).log1p().sqrt())


def test_all_norms_close(rng):
    model, x, root = Lengths(), normal(rng, 3, 4, D), normal(rng, 3, 4, D)
    inputs = of_tensor(x)
    result = method("lrp", root=root, secants="root")(
        Case(runner_of(model, inputs), inputs, asked(inputs, 0))
    )
    exactly(result.values.sum(1) + result.lines["root", "root"], model(x)[:, 0].detach())


class Constants(Plain):
    """Norms of what does not depend on the input, and lengths below the least."""

    def __init__(self):
        super().__init__()
        self.constant = nn.Parameter(torch.ones(1, 4, D))
        self.layer, self.rms, self.groups = nn.LayerNorm(D), nn.RMSNorm(D), nn.GroupNorm(2, 4)
        self.head = nn.Linear(D, CLASSES)
        self.shaken()

    def forward(self, x):
        c = self.constant
        scale = self.layer(c) + self.rms(c) + self.groups(c) + F.normalize(c) + c.norm() + c.tanh()
        return self.head((F.normalize(x, dim=-1, eps=10.0) * scale).square().mean(1))


def test_norms_of_constants_and_short_vectors_close(rng):
    model, x, root = Constants(), normal(rng, 3, 4, D), normal(rng, 3, 4, D)
    inputs = of_tensor(x)
    result = method("lrp", root=root, secants="root")(
        Case(runner_of(model, inputs), inputs, asked(inputs, 0))
    )
    exactly(result.values.sum(1) + result.lines["root", "root"], model(x)[:, 0].detach())


class Writes(Plain):
    """Writes into what it has: activations, products and quotients in place."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, CLASSES)
        self.shaken()

    def forward(self, x):
        a, b = self.a(x), self.b(x)
        h = a.tanh_().mul_(b)
        h.div_(b.exp() + 1)
        F.silu(h, inplace=True)
        h += x
        return self.head(F.glu(torch.cat([h, h], -1), -1).mean(1))


def test_writing_in_place_changes_nothing(rng):
    model, x, root = Writes(), normal(rng, 2, 4, D), normal(rng, 2, 4, D)
    inputs = of_tensor(x)
    result = method("lrp", root=root, secants="root")(
        Case(runner_of(model, inputs), inputs, asked(inputs, 0))
    )
    exactly(result.values.sum(1) + result.lines["root", "root"], model(x)[:, 0].detach())


def test_where_input_and_root_are_close_the_slope_is_the_derivative(rng):
    model, x = GatedBlock("fused"), normal(rng, 1, 4, D)
    way = normal(rng, 1, 4, D)
    inputs = of_tensor(x)
    root = x + 1e-7 * way
    lrp = method("lrp", root=root, secants="root")
    result = lrp(Case(runner_of(model, inputs), inputs, asked(inputs, 0)))
    leaf = x.clone().requires_grad_()
    with torch.enable_grad():
        h = model.first(leaf)
        weights = (model.q(h) @ model.k(h).mT / math.sqrt(D)).softmax(-1).detach()
        y = leaf + weights @ model.v(h)
        h = model.second(y)
        y = y + model.down(F.gelu(model.gate(h)) * model.up(h))
        (gradient,) = torch.autograd.grad(model.head(torch.tanh(y.mean(1)))[0, 0], leaf)
    exactly(result.values / 1e-7, (gradient * -way).sum(-1), 1e-4)


class Routed(Plain):
    """Sends rows to one of two experts, by what they are."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = (nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, 2))
        self.shaken()

    def forward(self, x):
        out = torch.zeros_like(x)
        for expert, chosen in ((self.first, x[..., 0] > 0), (self.second, x[..., 0] <= 0)):
            out[chosen] = torch.tanh(expert(x[chosen]))
        return self.head(out.mean(1))


def test_a_model_that_takes_another_way_at_the_root_is_refused():
    model = Routed()
    x = torch.ones(1, 3, D, dtype=torch.float64)
    root = x.clone()
    root[0, 1] = -1
    inputs = of_tensor(x)
    with pytest.raises(MethodError, match="same calls at the root"):
        method("lrp", root=root, secants="root")(
            Case(runner_of(model, inputs), inputs, asked(inputs, 0))
        )
