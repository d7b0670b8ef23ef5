"""Relevance that gradient × input loses in a Transformer (Ali et al., ICML 2022) and rules keep."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from tests.helpers import exactly, normal, through
from wherefrom.methods.propagation import AH, AH_LN, CONSERVATIVE, CONSERVATIVE_SHARED, PLAIN

N, M, D = 4, 3, 5


def head(x, other, keys, queries, b_k=0.0, b_q=0.0):
    """y_j = Σ_i x_i p_ij with p the softmax over i of q_ij; q is kept for its gradient."""
    q = (x @ keys + b_k) @ (other @ queries + b_q).mT / math.sqrt(D)  # (1, N, M)
    return q, q.softmax(1).mT @ x


def sums(rng, b_k=0.0, b_q=0.0):
    x, other = normal(rng, 1, N, D), normal(rng, 1, M, D)
    keys, queries, seed = normal(rng, D, D), normal(rng, D, D), normal(rng, 1, M, D)
    leaf, turned = x.clone().requires_grad_(), other.clone().requires_grad_()
    q, y = head(leaf, turned, keys, queries, b_k, b_q)
    (at_q,) = torch.autograd.grad(y, q, seed)
    found = through(
        PLAIN, lambda x, other: head(x, other, keys, queries, b_k, b_q)[1], x, other, seed=seed
    )
    total = float(sum(r.sum() for r in found.relevance))
    return (
        total,
        float((y.detach() * seed).sum()),
        q.detach(),
        at_q,
        (x @ keys + b_k, other @ queries + b_q),
    )


def test_proposition_1_an_attention_head_breaks_conservation_by_its_scores(rng):
    total, out, q, at_q, _ = sums(rng)
    exactly(total, out + 2 * float((q * at_q).sum()))
    assert abs(total - out) > 1e-3


def test_with_biased_projections_each_score_counts_by_its_degree_in_the_inputs(rng):
    b_k, b_q = normal(rng, D), normal(rng, D)
    total, out, q, at_q, (keys, queries) = sums(rng, b_k, b_q)
    by_bias = (queries @ b_k)[:, None, :] / math.sqrt(D) + (keys @ b_q)[:, :, None] / math.sqrt(D)
    exactly(total, out + float(((2 * q - by_bias) * at_q).sum()))
    assert abs(total - out - 2 * float((q * at_q).sum())) > 1e-3


@pytest.mark.parametrize("table", [AH, AH_LN, CONSERVATIVE])
def test_under_the_ah_rule_an_attention_head_conserves(table, rng):
    x, other = normal(rng, 1, N, D), normal(rng, 1, M, D)
    keys, queries, seed = normal(rng, D, D), normal(rng, D, D), normal(rng, 1, M, D)

    def f(x, other):
        return head(x, other, keys, queries, 0.3, -0.2)[1]

    found = through(table, f, x, other, seed=seed, ledger=False)
    exactly(found.relevance[0].sum(), (f(x, other) * seed).sum())
    exactly(found.relevance[1], torch.zeros_like(other))


@pytest.mark.parametrize("eps", [1e-12, 1e-2, 1.0, 30.0])
@pytest.mark.parametrize("table", [PLAIN, AH], ids=["plain", "ah"])
def test_proposition_2_a_layer_norm_collapses_relevance(eps, table, rng):
    x, seed = normal(rng, 2, N, D) + 0.5, normal(rng, 2, N, D)
    y = F.layer_norm(x, (D,), eps=eps)
    found = through(table, lambda x: F.layer_norm(x, (D,), eps=eps), x, seed=seed)
    var = x.var(-1, correction=0)
    exactly(found.relevance[0].sum(-1), (1 - var / (eps + var)) * (y * seed).sum(-1), tol=1e-9)


@pytest.mark.parametrize("table", [AH_LN, CONSERVATIVE], ids=["ah_ln", "conservative"])
@pytest.mark.parametrize("eps", [1e-12, 1.0])
def test_under_the_ln_rule_a_layer_norm_conserves(eps, table, rng):
    x, seed = normal(rng, 2, N, D) + 0.5, normal(rng, 2, N, D)
    y = F.layer_norm(x, (D,), eps=eps)
    found = through(table, lambda x: F.layer_norm(x, (D,), eps=eps), x, seed=seed)
    exactly(found.relevance[0].sum(-1), (y * seed).sum(-1))


@settings(max_examples=25)
@given(degree=st.integers(1, 5), number=st.integers(0, 2**16))
def test_gradient_x_input_multiplies_by_the_degree_and_shared_products_do_not(degree, number):
    rng = torch.Generator().manual_seed(number)
    x, weights = normal(rng, 1, N, D), [normal(rng, D, D) for _ in range(degree)]

    def f(x):
        out = x @ weights[0]
        for weight in weights[1:]:
            out = out * (x @ weight)
        return out

    exactly(through(PLAIN, f, x).relevance[0].sum(), degree * f(x).sum(), tol=1e-8)
    exactly(through(CONSERVATIVE_SHARED, f, x).relevance[0].sum(), f(x).sum(), tol=1e-8)


@settings(max_examples=25)
@given(number=st.integers(0, 2**16), layers=st.integers(1, 3))
def test_any_block_of_attention_norm_and_gate_adds_up(number, layers):
    rng = torch.Generator().manual_seed(number)
    x, shapes = normal(rng, 1, N, D), [(D, D)] * 5
    stack = [[normal(rng, *shape) for shape in shapes] for _ in range(layers)]
    bias = normal(rng, D)

    def f(x):
        for q, k, v, up, side in stack:
            attended = F.scaled_dot_product_attention(x @ q + bias, x @ k, x @ v + bias)
            x = F.layer_norm(x + attended, (D,), bias, bias)
            x = x + F.silu(x @ side + bias) * (x @ up)
        return torch.tanh(x.mean(1) + 0.1).sum()

    for table in (CONSERVATIVE, CONSERVATIVE_SHARED):
        found = through(table, f, x)
        exactly(float(found.relevance[0].sum()) + found.recorded, float(f(x)), tol=1e-9)
