"""The LN rule, for fused and hand-written norms."""

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import exactly, normal, through
from tests.oracles.rules import ln_rule
from wherefrom.methods.propagation import AH, AH_LN, ATTN_LRP, CONSERVATIVE, PLAIN

B, T, D, EPS = 2, 3, 6, 1e-5
FROZEN = pytest.mark.parametrize(
    "table", [AH_LN, CONSERVATIVE, ATTN_LRP], ids=["ah_ln", "conservative", "attn_lrp"]
)


@FROZEN
def test_ln_rule_is_the_papers(table, rng):
    x, relevance = normal(rng, B, T, D), normal(rng, B, T, D)
    y = F.layer_norm(x, (D,), eps=EPS)
    found = through(table, lambda x: F.layer_norm(x, (D,), eps=EPS), x, seed=relevance / y)
    exactly(found.out, y)
    exactly(found.relevance[0], ln_rule(x, relevance), tol=1e-9)
    assert found.tracer.touched["norm"] == 1


@FROZEN
def test_layer_norm_is_linear_with_its_bias_recorded(table, rng):
    x, seed = normal(rng, B, T, D), normal(rng, B, T, D)
    w, b = normal(rng, D), normal(rng, D)
    found = through(table, lambda x: F.layer_norm(x, (D,), w, b, EPS), x, seed=seed)
    scale = (x.var(-1, correction=0, keepdim=True) + EPS).rsqrt()
    g = seed * w * scale
    exactly(found.relevance[0], x * (g - g.mean(-1, keepdim=True)))
    exactly(found.recorded, float((b * seed).sum()))


@FROZEN
def test_layer_norm_over_two_axes(table, rng):
    x, seed = normal(rng, B, T, D), normal(rng, B, T, D)
    found = through(table, lambda x: F.layer_norm(x, (T, D)), x, seed=seed, ledger=False)
    g = seed * (x.var((1, 2), correction=0, keepdim=True) + 1e-5).rsqrt()
    exactly(found.relevance[0], x * (g - g.mean((1, 2), keepdim=True)))


def by_mean_and_sqrt(x, w, b):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + EPS) * w + b


def by_var_and_rsqrt(x, w, b):
    spread = torch.var(x, -1, correction=0, keepdim=True)
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(spread + EPS) * w + b


def by_power(x, w, b):
    spread = x.var(-1, correction=0, keepdim=True)
    return w * ((x - x.mean(-1, keepdim=True)) * (spread + EPS) ** -0.5) + b


def by_root_as_power(x, w, b):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + EPS) ** 0.5 * w + b


@FROZEN
@pytest.mark.parametrize("f", [by_mean_and_sqrt, by_var_and_rsqrt, by_power, by_root_as_power])
def test_hand_written_layer_norm_equals_the_fused(f, table, rng):
    x, seed = normal(rng, B, T, D), normal(rng, B, T, D)
    w, b = normal(rng, D), normal(rng, D)
    fused = through(table, lambda x: F.layer_norm(x, (D,), w, b, EPS), x, seed=seed)
    written = through(table, lambda x: f(x, w, b), x, seed=seed)
    exactly(written.out, fused.out)
    exactly(written.relevance[0], fused.relevance[0])
    exactly(written.recorded, fused.recorded)


@FROZEN
def test_norm_by_the_standard_deviation(table, rng):
    x, seed = normal(rng, B, T, D), normal(rng, B, T, D)

    def f(x):
        return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + EPS)

    g = seed / (x.std(-1, keepdim=True) + EPS)
    found = through(table, f, x, seed=seed)
    exactly(found.relevance[0], x * (g - g.mean(-1, keepdim=True)))


@FROZEN
@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: F.rms_norm(x, (D,), w, EPS),
        lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)),
        lambda x, w: x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * w,
        lambda x, w: w * x * (x * x).mean(-1, keepdim=True).add(EPS).pow(-0.5),
    ],
)
def test_rms_norm_holds_its_scale(f, table, rng):
    x, seed, w = normal(rng, B, T, D), normal(rng, B, T, D), normal(rng, D)
    y = x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * w
    found = through(table, lambda x: f(x, w), x, seed=seed)
    exactly(found.out, y)
    exactly(found.relevance[0], y * seed)


def test_rms_norm_without_an_epsilon_is_torchs(rng):
    x = normal(rng, B, T, D)
    exactly(through(AH_LN, lambda x: F.rms_norm(x, (D,)), x).out, F.rms_norm(x, (D,)), tol=1e-14)


@FROZEN
def test_group_norm_centres_and_scales_each_group(table, rng):
    x, seed = normal(rng, B, D, T), normal(rng, B, D, T)
    w, b = normal(rng, D), normal(rng, D)
    found = through(table, lambda x: F.group_norm(x, 2, w, b, EPS), x, seed=seed)
    exactly(found.out, F.group_norm(x, 2, w, b, EPS))
    rows = x.view(B, 2, -1)
    g = (seed * w[:, None]).view(B, 2, -1) * (
        rows.var(-1, correction=0, keepdim=True) + EPS
    ).rsqrt()
    exactly(found.relevance[0], x * (g - g.mean(-1, keepdim=True)).view_as(x))
    exactly(found.recorded, float((b[:, None] * seed).sum()))


@FROZEN
@pytest.mark.parametrize(
    "f",
    [
        lambda x: F.normalize(x, dim=-1),
        lambda x: F.normalize(x, 2.0, -1),
        lambda x: x / x.norm(dim=-1, keepdim=True),
        lambda x: x / torch.linalg.vector_norm(x, dim=-1, keepdim=True),
        lambda x: x / x.pow(2).sum(-1, keepdim=True).sqrt(),
    ],
)
def test_a_length_is_a_constant(f, table, rng):
    x, seed = normal(rng, B, T, D), normal(rng, B, T, D)
    found = through(table, f, x, seed=seed)
    exactly(found.out, F.normalize(x, dim=-1))
    exactly(found.relevance[0], F.normalize(x, dim=-1) * seed)


@FROZEN
def test_normalize_takes_the_length_along_its_own_axis(table, rng):
    x, seed = normal(rng, B, T, D), normal(rng, B, T, D)
    for dim in (0, 1, -1):
        found = through(table, lambda x, dim=dim: F.normalize(x, dim=dim), x, seed=seed)
        exactly(found.relevance[0], x / x.norm(dim=dim, keepdim=True) * seed)
    exactly(through(table, F.normalize, x, seed=seed).out, x / x.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("table", [PLAIN, AH], ids=["plain", "ah"])
@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: F.layer_norm(x, (D,), w, w),
        lambda x, w: F.rms_norm(x, (D,), w),
        lambda x, w: F.normalize(x, dim=-1),
        lambda x, w: by_mean_and_sqrt(x, w, w),
    ],
)
def test_without_the_ln_rule_a_norm_keeps_its_derivative(f, table, rng):
    x, seed, w = normal(rng, B, T, D), normal(rng, B, T, D), normal(rng, D)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(f(leaf, w), leaf, seed)
    exactly(through(table, lambda x: f(x, w), x, seed=seed).relevance[0], x * gradient)


@FROZEN
def test_batch_norm_in_evaluation_is_affine(table, rng):
    x, seed = normal(rng, B, D, T), normal(rng, B, D, T)
    mean, var = normal(rng, D), normal(rng, D).square()
    w, b = normal(rng, D), normal(rng, D)

    def f(x):
        return F.batch_norm(x, mean, var, w, b)

    slope = (w / (var + 1e-5).sqrt())[:, None]
    found = through(table, f, x, seed=seed)
    exactly(found.relevance[0], x * slope * seed)
    exactly(found.recorded, float(((b[:, None] - mean[:, None] * slope) * seed).sum()))
