"""Frozen attention in parts, against explicit weights."""

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import exactly, normal, through
from wherefrom.methods.propagation import CONSERVATIVE
from wherefrom.rules import attention as module
from wherefrom.rules.attention import explicit_attention, frozen_attention

B, H, T, D = 2, 4, 7, 3


def masks(rng):
    closed = torch.rand(B, 1, T, T, generator=rng) < 0.3
    closed[0, 0, 2] = True  # a fully masked query
    return {
        "none": {},
        "causal": {"is_causal": True},
        "boolean": {"attn_mask": ~closed},
        "padding": {"attn_mask": ~closed[:, :, -1:]},
        "added": {"attn_mask": normal(rng, T, T)},
        "by head": {"attn_mask": normal(rng, B, H, T, T)},
        "scale": {"scale": 0.3, "is_causal": True},
    }


@pytest.mark.parametrize("name", list(masks(torch.Generator())))
@pytest.mark.parametrize("shared", [1, 2, 4])
@pytest.mark.parametrize("numbers", [1, 1 << 22])
@pytest.mark.parametrize(
    "log_sums", [True, False]
)  # with and without the normaliser from the kernel
def test_only_the_values_get_what_the_weights_pass_on(
    rng, monkeypatch, name, shared, numbers, log_sums
):
    monkeypatch.setattr(module, "_NUMBERS", numbers)
    if not log_sums:
        attend = module.attention_with_log_sums
        monkeypatch.setattr(
            module, "attention_with_log_sums", lambda *a, **k: (attend(*a, **k)[0], None)
        )
    settings = masks(rng)[name]
    if shared > 1:
        settings["enable_gqa"] = True
    query, gradient = normal(rng, B, H, T, D), normal(rng, B, H, T, D)
    key, value = normal(rng, B, H // shared, T, D), normal(rng, B, H // shared, T, D)
    value.requires_grad_()
    out = frozen_attention(query, key, value, **settings)
    exactly(out, F.scaled_dot_product_attention(query, key, value, **settings))
    (actual,) = torch.autograd.grad(out, value, gradient)
    weights, spread = explicit_attention(query, key, value, **settings)
    (expected,) = torch.autograd.grad(weights @ spread, value, gradient)
    exactly(actual, expected)


def test_many_queries_are_taken_in_parts(rng, monkeypatch):
    monkeypatch.setattr(module, "_NUMBERS", 1)  # 16 queries at a time
    query, key = normal(rng, 1, 2, 50, D), normal(rng, 1, 2, 40, D)
    value, gradient = normal(rng, 1, 2, 40, D).requires_grad_(), normal(rng, 1, 2, 50, D)
    for settings in ({}, {"is_causal": True}):
        out = frozen_attention(query, key, value, **settings)
        (actual,) = torch.autograd.grad(out, value, gradient)
        weights, _ = explicit_attention(query, key, value.detach(), **settings)
        exactly(actual, weights.mT @ gradient)


def test_without_heads_and_in_half_precision(rng):
    query, key, gradient = (normal(rng, 2, 20, D) for _ in range(3))
    value = normal(rng, 2, 20, D).requires_grad_()
    (actual,) = torch.autograd.grad(frozen_attention(query, key, value), value, gradient)
    exactly(actual, (query @ key.mT / D**0.5).softmax(-1).mT @ gradient)
    half = [t.detach().to(torch.bfloat16) for t in (query, key, value, gradient)]
    half[2].requires_grad_()
    (rough,) = torch.autograd.grad(frozen_attention(*half[:3]), half[2], half[3])
    torch.testing.assert_close(rough.double(), actual, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("heads", [(), (2,)])
@pytest.mark.parametrize(("keys", "in_parts"), [(6, False), (7, True)])
def test_the_number_of_keys_decides_whether_weights_are_kept(
    rng, monkeypatch, heads, keys, in_parts
):
    monkeypatch.setattr("wherefrom.rules.product.FEW_KEYS", 6)
    calls = []

    def recorded(*arguments, **settings):
        calls.append(arguments)
        return frozen_attention(*arguments, **settings)

    monkeypatch.setattr("wherefrom.rules.product.frozen_attention", recorded)
    value = normal(rng, 1, *heads, keys, 3)
    key, query = normal(rng, 1, *heads, keys, 9), normal(rng, 1, *heads, 4, 9)
    seed = normal(rng, 1, *heads, 4, 3)
    run = through(
        CONSERVATIVE,
        lambda value: F.scaled_dot_product_attention(query, key, value),
        value,
        seed=seed,
    )
    assert bool(calls) is in_parts
    exactly(run.relevance[0], value * ((query @ key.mT / 3).softmax(-1).mT @ seed))
