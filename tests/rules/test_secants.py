"""Secants between a root and the input, against contributions that are propagated forwards."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from tests.helpers import exactly, normal
from tests.methods.calling import asked, of_tensor, runner_of
from tests.modules import Plain
from tests.oracles.two_points import Pair, affine
from wherefrom.core.target import Case
from wherefrom.errors import MethodError
from wherefrom.methods import method
from wherefrom.rules.secant_softmax import logarithmic_mean

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
    scores = query.product(key.transposed()).linear(lambda t: t / math.sqrt(D))
    pair = pair.plus(scores.softmax().product(h.linear(*affine(model.v))))
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
    secant = method("secant", root=root)
    result = secant(Case(runner_of(model, inputs), inputs, asked(inputs, 1)))
    with torch.no_grad():
        for i in range(2):
            expected = contributions(model, x[i], root[i])
            exactly(expected.parts.sum(0), expected.x - expected.root)
            exactly(result.values[i], expected.parts[:, 1])
            exactly(result.lines["reference", "reference"][i], expected.root[1])
            assert {kind for _, kind in result.lines} == {"word", "reference"}


def test_splits_go_by_every_second_unit_and_the_other_way_round(rng):
    model, x, root = GatedBlock("fused"), normal(rng, 1, 5, D), normal(rng, 1, 5, D)
    inputs = of_tensor(x)
    split = method("secant", root=root, splits=1)
    result = split(Case(runner_of(model, inputs), inputs, asked(inputs, 1)))
    expected = torch.zeros(5, dtype=torch.float64)
    with torch.no_grad():
        for side in (0, 1):
            present = (torch.arange(5) % 2 == side)[:, None]
            half = torch.where(present, x[0], root[0])
            for end, start in ((half, root[0]), (x[0], half)):
                moved = (end != start).any(-1)
                parts = contributions(model, end, start).parts[:, 1]
                expected += torch.where(moved, parts, 0.0) / 2
        at_root, whole = model(root)[0, 1], model(x)[0]
    exactly(result.values[0], expected)
    exactly(result.logits[0], whole)
    exactly(result.lines["reference", "reference"][0], at_root)
    exactly(sum(result.lines.values())[0], whole[1])


def test_fused_attention_over_many_keys_is_the_same(rng, monkeypatch):
    model, x, root = GatedBlock("fused"), normal(rng, 1, 5, D), normal(rng, 1, 5, D)
    inputs = of_tensor(x)
    secant = method("secant", root=root)
    few = secant(Case(runner_of(model, inputs), inputs, asked(inputs, 1)))
    monkeypatch.setattr("wherefrom.rules.secant_softmax._NUMBERS", 1)  # a query at a time
    many = secant(Case(runner_of(model, inputs), inputs, asked(inputs, 1)))
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
    secant = method("secant", root=root)
    result = secant(Case(runner_of(wrapped, inputs), inputs, asked(inputs, 2)))
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
    secant = method("secant", root=root)
    result = secant(Case(runner_of(model, inputs), inputs, asked(inputs, 1)))
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
    result = method("secant", root=root)(Case(runner_of(model, inputs), inputs, asked(inputs, 0)))
    exactly(result.values.sum(1) + result.lines["reference", "reference"], model(x)[:, 0].detach())


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
    result = method("secant", root=root)(Case(runner_of(model, inputs), inputs, asked(inputs, 0)))
    exactly(result.values.sum(1) + result.lines["reference", "reference"], model(x)[:, 0].detach())


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
    result = method("secant", root=root)(Case(runner_of(model, inputs), inputs, asked(inputs, 0)))
    exactly(result.values.sum(1) + result.lines["reference", "reference"], model(x)[:, 0].detach())


def test_where_input_and_root_are_close_the_slope_is_the_derivative(rng):
    model, x = GatedBlock("fused"), normal(rng, 1, 4, D)
    way = normal(rng, 1, 4, D)
    inputs = of_tensor(x)
    root = x + 1e-7 * way
    secant = method("secant", root=root)
    result = secant(Case(runner_of(model, inputs), inputs, asked(inputs, 0)))
    leaf = x.clone().requires_grad_()
    with torch.enable_grad():
        h = model.first(leaf)
        weights = (model.q(h) @ model.k(h).mT / math.sqrt(D)).softmax(-1)
        y = leaf + weights @ model.v(h)
        h = model.second(y)
        y = y + model.down(F.gelu(model.gate(h)) * model.up(h))
        (gradient,) = torch.autograd.grad(model.head(torch.tanh(y.mean(1)))[0, 0], leaf)
    exactly(result.values / 1e-7, (gradient * -way).sum(-1), 1e-4)


class Repeated(Plain):
    """Makes more calls for larger inputs, by way of a Python number."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(D, 2)
        self.shaken()

    def forward(self, x):
        for _ in range(int(x.detach().sum().item() > 0)):
            x = torch.tanh(x)
        return self.layer(torch.tanh(x)[:, :1].mean(1))


def test_a_model_that_makes_other_calls_at_the_root_is_refused():
    model, x = Repeated(), torch.ones(1, 3, D, dtype=torch.float64)
    inputs = of_tensor(x)
    secant = method("secant", root=-x)
    with pytest.raises(MethodError, match="same calls at the root"):
        secant(Case(runner_of(model, inputs), inputs, asked(inputs, 0)))


@given(st.floats(-800, 0), st.floats(-800, 0))
def test_the_logarithmic_mean_is_between_and_exact(log_a, log_b):
    a, b = (torch.tensor(x, dtype=torch.float64) for x in (log_a, log_b))
    mean = float(logarithmic_mean(a, b))
    low, high = sorted((float(a.exp()), float(b.exp())))
    assert low * (1 - 1e-12) <= mean <= high * (1 + 1e-12)
    exactly(mean * float(a - b), float(a.exp() - b.exp()), 1e-12)
    assert float(logarithmic_mean(b, a)) == mean


def test_where_a_mask_closes_both_points_the_mean_is_zero():
    closed = torch.tensor([-math.inf, -math.inf, 0.0])
    assert logarithmic_mean(closed, torch.tensor([-math.inf, -1.0, 0.0])).tolist() == [0, 0, 1]


class Softmaxes(Plain):
    """Every way to write a softmax and its logarithm; `shift` is added to all logits."""

    def __init__(self, shift, spread):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, CLASSES)
        self.shift, self.spread = shift, spread
        self.shaken()

    def forward(self, x):
        z = self.a(x) * self.spread + self.shift
        y = z.softmax(-1) + z.log_softmax(-1) + z.logsumexp(-1, keepdim=True)
        written = (z - z.amax(-1, keepdim=True)).exp()
        y = y + written / written.sum(-1, keepdim=True) + z.softmax(1).log1p()
        y = y + z.logsumexp(2).unsqueeze(-1) * self.b(x)
        return self.head(y.mean(1))


@settings(deadline=None, max_examples=60)
@given(
    shift=st.sampled_from([0.0, 50.0, -1000.0]),
    spread=st.sampled_from([1e-6, 1.0, 30.0, 300.0]),
    distance=st.sampled_from([0.0, 1e-9, 1e-3, 1.0]),
    seed=st.integers(0, 5),
)
def test_softmaxes_add_up_whatever_the_logits(shift, spread, distance, seed):
    rng = torch.Generator().manual_seed(seed)
    model, x = Softmaxes(shift, spread), normal(rng, 2, 4, D)
    root = x + distance * normal(rng, 2, 4, D)
    inputs = of_tensor(x)
    secant = method("secant", root=root)
    result = secant(Case(runner_of(model, inputs), inputs, asked(inputs, 1)))
    with torch.no_grad():
        expected = model(x)[:, 1] - model(root)[:, 1]
        scale = float(model(x).abs().max()) + float(result.values.abs().max())
    assert torch.isfinite(result.values).all()
    assert float((result.values.sum(1) - expected).abs().max()) < 1e-9 * scale


class Grouped(Plain):
    """Fused attention whose heads share keys, under a mask."""

    def __init__(self, mask):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(D, 16), nn.Linear(D, 8), nn.Linear(D, 8)
        self.head, self.mask = nn.Linear(16, CLASSES), mask
        self.shaken()

    def forward(self, x):
        q, k, v = (
            layer(x).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        mask: dict[str, object] = {"is_causal": True}
        if self.mask == "window":
            near = torch.arange(x.shape[1])
            mask = {"attn_mask": (near[:, None] - near[None]).abs() < 2}
        elif self.mask == "live":
            mask = {"attn_mask": q.sum((1, 3))[:, None, None, :]}
        out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **mask)
        return self.head(out.transpose(1, 2).flatten(2).mean(1))


@pytest.mark.parametrize("mask", ["causal", "window", "live"])
@pytest.mark.parametrize("numbers", [1, 1 << 22])
def test_attention_of_shared_keys_under_a_mask_adds_up(mask, numbers, rng, monkeypatch):
    monkeypatch.setattr("wherefrom.rules.secant_softmax._NUMBERS", numbers)
    model, x, root = Grouped(mask), normal(rng, 2, 6, D), normal(rng, 2, 6, D)
    inputs = of_tensor(x)
    secant = method("secant", root=root)
    result = secant(Case(runner_of(model, inputs), inputs, asked(inputs, 0)))
    exactly(result.values.sum(1), (model(x) - model(root))[:, 0].detach())


@pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM])
def test_recurrent_layers_add_up(layer, rng):
    class Steps(Plain):
        def __init__(self):
            super().__init__()
            self.layer, self.head = layer(D, D, batch_first=True), nn.Linear(D, CLASSES)
            self.shaken()

        def forward(self, x):
            return self.head(self.layer(x)[0].mean(1))

    model, x, root = Steps(), normal(rng, 2, 5, D), normal(rng, 2, 5, D)
    inputs = of_tensor(x)
    secant = method("secant", root=root)
    result = secant(Case(runner_of(model, inputs), inputs, asked(inputs, 0)))
    exactly(result.values.sum(1), (model(x) - model(root))[:, 0].detach())
