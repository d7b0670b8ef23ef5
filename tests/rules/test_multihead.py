"""torch's attention module from its parts, and its encoder."""

import math

import pytest
import torch
from torch import nn

from tests.helpers import captured, exactly, normal, through
from tests.oracles.rules import ah_rule
from wherefrom.methods.propagation import AH, CONSERVATIVE, PLAIN
from wherefrom.tracing.observers.attention_maps import Maps

B, T, S, D, H = 2, 4, 5, 6, 2


def attention(**settings):
    torch.manual_seed(0)
    made = nn.MultiheadAttention(D, H, dtype=torch.float64, **settings).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return made


def masks(kind, rng, queries, keys):
    wide = normal(rng, queries, keys)
    each = normal(rng, B * H, queries, keys)
    padding = torch.zeros(B, keys, dtype=torch.bool)
    padding[1, -2:] = True
    closed = torch.ones(queries, keys, dtype=torch.bool).triu(1)
    return {
        "none": {},
        "bool": {"attn_mask": closed},
        "float": {"attn_mask": wide},
        "each head": {"attn_mask": each},
        "padding": {"key_padding_mask": padding},
        "float padding": {"key_padding_mask": padding.double() * -3.0},
        "both": {"attn_mask": wide, "key_padding_mask": padding.double() * -1e9},
        "causal": {"attn_mask": closed, "is_causal": True, "need_weights": False},
    }[kind]


KINDS = ("none", "bool", "float", "each head", "padding", "float padding", "both", "causal")
SETTINGS = [
    {},
    {"bias": False},
    {"batch_first": True},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
    {"kdim": 3, "vdim": 5},
]


def given(rng, settings, queries=T, keys=S):
    shapes = [(queries, D), (keys, settings.get("kdim", D)), (keys, settings.get("vdim", D))]
    first = settings.get("batch_first", False)
    return [normal(rng, *((B, n, d) if first else (n, B, d))) for n, d in shapes]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_spelled_out_forward_is_torchs_own(kind, settings, rng):
    module = attention(**settings)
    q, k, v = given(rng, settings, T, T if kind == "causal" else S)
    extra = masks(kind, rng, q.shape[1 if module.batch_first else 0], T if kind == "causal" else S)

    def f(q, k, v):
        return module(q, k, v, **extra)[0]

    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = f(*leaves)
    seed = normal(rng, *expected.shape)
    gradients = torch.autograd.grad(expected, leaves, seed)
    found = through(PLAIN, f, q, k, v, seed=seed, ledger=False)
    exactly(found.out, expected.detach())
    for x, g, r in zip((q, k, v), gradients, found.relevance, strict=True):
        exactly(r, x * g)
    assert found.tracer.touched["attention"] == 1


def test_unbatched_input_is_torchs_own(rng):
    module = attention()
    x = normal(rng, T, D)
    padding = torch.tensor([False, False, True, False])

    def f(x):
        return module(x, x, x, key_padding_mask=padding)[0]

    exactly(through(PLAIN, f, x, ledger=False).out, f(x).detach())


def test_weights_of_unbatched_input_have_no_axis_of_samples(rng):
    module = attention()
    x = normal(rng, T, D)
    expected = module(x, x, x)[1].detach()
    results = []

    def f(x):
        results.extend(module(x, x, x, need_weights=need)[1] for need in (True, False))
        return x

    through(PLAIN, f, x, ledger=False)
    exactly(results[0].detach(), expected)
    assert results[1] is None


@pytest.mark.parametrize("average", [True, False])
def test_weights_that_a_model_asks_for_are_given(average, rng):
    module = attention(batch_first=True)
    x = normal(rng, B, T, D)
    expected = module(x, x, x, average_attn_weights=average)[1].detach()
    kept = []

    def f(x):
        out, held = module(x, x, x, average_attn_weights=average)
        kept.append(held)
        return out

    through(AH, f, x)
    exactly(kept[0].detach(), expected)


@pytest.mark.parametrize("batch_first", [True, False])
def test_captured_maps_are_the_modules_own_weights(batch_first, rng):
    module = attention(batch_first=batch_first)
    x = normal(rng, B, T, D) if batch_first else normal(rng, T, B, D)
    expected = module(x, x, x, average_attn_weights=False)[1].detach()
    maps = Maps(B)
    through(AH, lambda x: module(x, x, x)[0], x, maps=maps, ledger=False)
    exactly(captured(maps)[0].detach(), expected)


def test_ah_rule_is_the_papers_within_the_module(rng):
    module = attention(batch_first=True, bias=False)
    x = normal(rng, B, T, D)
    heads = module(x, x, x, average_attn_weights=False)[1].detach()
    values = x @ module.in_proj_weight.detach()[2 * D :].T
    split = values.unflatten(-1, (H, -1)).transpose(1, 2)  # (B, H, T, d)
    mixed = (heads @ split).transpose(1, 2).flatten(2)
    out = module.out_proj.weight.detach()
    seed = normal(rng, B, T, D)
    at_mixed = mixed * (seed @ out)  # relevance of a linear layer's input
    back = ah_rule(split, heads, at_mixed.unflatten(-1, (H, -1)).transpose(1, 2))
    at_values = back.transpose(1, 2).flatten(2)
    expected = x * ((at_values / values) @ module.in_proj_weight.detach()[2 * D :])
    found = through(AH, lambda x: module(x, x, x)[0], x, seed=seed)
    exactly(found.relevance[0], expected, tol=1e-9)


def encoder(batch_first=True, norm_first=False, activation="gelu"):
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(
        D, H, 8, batch_first=batch_first, norm_first=norm_first, activation=activation,
        dtype=torch.float64,
    )  # fmt: skip
    made = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_transformer_encoder_is_seen_and_conserved(batch_first, norm_first, trainable, rng):
    module = encoder(batch_first, norm_first).requires_grad_(trainable)
    x = normal(rng, 1, T, D) if batch_first else normal(rng, T, 1, D)
    padding = torch.tensor([[False, False, False, True]])

    def f(x):
        return module(x, src_key_padding_mask=padding)

    plain = f(x.clone().requires_grad_()).detach()  # torch's fused inference path rounds otherwise
    seed = normal(rng, *plain.shape)
    sources = x.transpose(0, 1) if not batch_first else x
    found = through(
        CONSERVATIVE,
        lambda x: f(x if batch_first else x.transpose(0, 1)),
        sources,
        seed=seed,
    )
    exactly(found.out, plain)
    assert found.tracer.touched["attention"] == 2
    assert found.tracer.touched["norm"] == 4
    exactly(found.relevance[0].sum() + found.recorded, (plain * seed).sum())


def test_maps_of_an_encoder_sum_to_one_and_come_in_order(rng):
    module = encoder()
    x = normal(rng, B, T, D)
    maps = Maps(B)
    through(AH, module, x, maps=maps)
    assert [tuple(m.shape) for m in captured(maps)] == [(B, H, T, T)] * 2
    for held in captured(maps):
        exactly(held.sum(-1).detach(), torch.ones(B, H, T))
    first = module.layers[0].self_attn(x, x, x, average_attn_weights=False)[1].detach()
    exactly(captured(maps)[0].detach(), first)
    assert not math.isclose(float(first[0, 0, 0, 0]), 1 / T)
