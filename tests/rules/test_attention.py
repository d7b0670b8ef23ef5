"""The AH rule for all spellings of attention."""

import math

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import captured, exactly, normal, through
from tests.oracles.rules import ah_rule
from wherefrom.methods.propagation import AH, AH_LN, ATTN_LRP, CONSERVATIVE, PLAIN, conservative
from wherefrom.tracing.observers.attention_maps import Maps

B, H, T, D = 2, 3, 5, 4


def sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def weights(q, k):
    return F.softmax(q @ k.transpose(-2, -1) / math.sqrt(D), -1)


def eager(q, k, v):
    return weights(q, k) @ v


def with_dropout(q, k, v):
    held = F.dropout(weights(q, k), 0.5, training=False)
    return torch.matmul(held.view(B, H, T, T).to(q.dtype).contiguous(), v)


def by_method(q, k, v):
    return q.matmul(k.mT).div(math.sqrt(D)).softmax(dim=-1).matmul(v)


def by_bmm(q, k, v):
    q, k, v = (x.reshape(B * H, T, D) for x in (q, k, v))
    return torch.bmm(F.softmax(torch.bmm(q, k.mT) * D**-0.5, -1), v).view(B, H, T, D)


def by_einsum(q, k, v):
    held = torch.einsum("bhqd,bhkd->bhqk", q, k).mul(D**-0.5).softmax(-1)
    return torch.einsum("bhqk,bhkd->bhqd", held, v)


def by_einsum_elsewhere(q, k, v):
    held = torch.einsum("bhqd,bhkd->qkbh", q, k).mul(D**-0.5).softmax(1)
    return torch.einsum("bhkd,qkbh->bhqd", v, held)


def by_baddbmm(q, k, v):
    q, k, v = (x.reshape(B * H, T, D) for x in (q, k, v))
    scores = torch.baddbmm(torch.zeros(1, 1, 1, dtype=q.dtype), q, k.mT, alpha=D**-0.5)
    return torch.bmm(scores.softmax(-1), v).view(B, H, T, D)


def by_columns(q, k, v):
    held = (k @ q.mT / math.sqrt(D)).softmax(-2)  # (…, key, query)
    return held.mT @ v


def values_first(q, k, v):
    held = (k @ q.mT / math.sqrt(D)).softmax(-2)
    return (v.transpose(-2, -1) @ held).transpose(-2, -1)


def by_exponentials(q, k, v):
    powers = torch.exp(q @ k.mT / math.sqrt(D))
    return (powers / powers.sum(-1, keepdim=True)) @ v


def by_stable_exponentials(q, k, v):
    scores = q @ k.mT / math.sqrt(D)
    powers = (scores - scores.amax(-1, keepdim=True).detach()).exp()
    return torch.div(powers, powers.sum(-1, keepdim=True)) @ v


WAYS = [
    sdpa, eager, with_dropout, by_method, by_bmm, by_einsum, by_einsum_elsewhere, by_baddbmm,
    by_columns, values_first, by_exponentials, by_stable_exponentials,
]  # fmt: skip


@pytest.fixture
def qkv(rng):
    return [normal(rng, B, H, T, D) for _ in range(3)]


@pytest.mark.parametrize("attend", WAYS)
@pytest.mark.parametrize("table", [AH, AH_LN, CONSERVATIVE], ids=["ah", "ah_ln", "conservative"])
def test_ah_rule_is_the_papers_lrp_rule_for_an_attention_head(attend, table, qkv, rng):
    q, k, v = qkv
    relevance = normal(rng, B, H, T, D)
    values = eager(q, k, v)
    found = through(table, attend, q, k, v, seed=relevance / values, ledger=False)
    exactly(found.out, values)
    exactly(found.relevance[2], ah_rule(v, weights(q, k), relevance))
    exactly(found.relevance[0], torch.zeros_like(q))
    exactly(found.relevance[1], torch.zeros_like(k))
    assert found.tracer.touched["attention"] == 1


@pytest.mark.parametrize("attend", WAYS)
def test_plain_table_gives_the_true_gradient(attend, qkv, rng):
    seed = normal(rng, B, H, T, D)
    leaves = [x.clone().requires_grad_() for x in qkv]
    expected = torch.autograd.grad(eager(*leaves), leaves, seed)
    found = through(PLAIN, attend, *qkv, seed=seed)
    for x, g, r in zip(qkv, expected, found.relevance, strict=True):
        exactly(r, x * g)


@pytest.mark.parametrize("attend", WAYS[1:7])
def test_attn_lrp_shares_products_alike_in_fused_and_eager_attention(attend, qkv, rng):
    seed = normal(rng, B, H, T, D)
    leaves = [x.clone().requires_grad_() for x in qkv]
    gradients = torch.autograd.grad(eager(*leaves), leaves, seed)
    shares = (0.25, 0.25, 0.5)
    fused, written = (through(ATTN_LRP, f, *qkv, seed=seed) for f in (sdpa, attend))
    for i in range(3):
        exactly(fused.relevance[i], qkv[i] * gradients[i] * shares[i])
        exactly(written.relevance[i], fused.relevance[i])


@pytest.mark.parametrize("attend", [way for way in WAYS if way is not by_einsum_elsewhere])
@pytest.mark.parametrize("part", [0.25, 0.5, 1.0])
def test_what_the_softmax_leaves_is_a_line_of_the_ledger(attend, part, qkv, rng):
    seed = normal(rng, B, H, T, D)
    run = through(conservative("shared", part), attend, *qkv, seed=seed)
    lines = sum(entry.total.sum() for entry in run.tracer.ledger.entries.values())
    relevance = sum(r.sum() for r in run.relevance)
    exactly(relevance + lines, (run.out * seed).sum())
    assert any(kind == "softmax" for _, kind in run.tracer.ledger.entries)


@pytest.mark.parametrize("attend", [sdpa, eager, by_einsum])
def test_the_weights_get_their_share_and_the_values_the_rest(attend, qkv, rng):
    seed = normal(rng, B, H, T, D)
    leaves = [x.clone().requires_grad_() for x in qkv]
    gradients = torch.autograd.grad(eager(*leaves), leaves, seed)
    run = through(conservative("shared", 0.3), attend, *qkv, seed=seed)
    for x, g, r, part in zip(qkv, gradients, run.relevance, (0.15, 0.15, 0.7), strict=True):
        exactly(r, x * g * part)


@pytest.mark.parametrize("case", range(5))
@pytest.mark.parametrize("constant", ["query", "key", "value"])
def test_the_line_of_the_softmax_is_exact_under_every_mask(case, constant, qkv, rng):
    settings, seed = _masks(rng)[case], normal(rng, B, H, T, D)
    depends_on_input = [
        x for x, name in zip(qkv, ("query", "key", "value"), strict=True) if name != constant
    ]

    def attend(*tensors):
        names = [name for name in ("query", "key", "value") if name != constant]
        every = dict(zip(names, tensors, strict=True))
        every[constant] = qkv[("query", "key", "value").index(constant)]
        return F.scaled_dot_product_attention(**every, **settings)

    run = through(ATTN_LRP, attend, *depends_on_input, seed=seed)
    lines = sum(entry.total.sum() for entry in run.tracer.ledger.entries.values())
    relevance = sum(r.sum() for r in run.relevance)
    exactly(relevance + lines, (run.out * seed).sum())


@pytest.mark.parametrize("attend", WAYS)
@pytest.mark.parametrize("table", [PLAIN, CONSERVATIVE, ATTN_LRP])
def test_captured_map_is_the_softmax(attend, table, qkv):
    q, k, v = qkv
    maps = Maps(B)
    through(table, attend, q, k, v, maps=maps, ledger=False)
    (found,) = captured(maps)
    exactly(found, weights(q, k))


@pytest.mark.parametrize("attend", WAYS)
def test_gradient_of_a_captured_map_is_a_finite_difference(attend, qkv, rng):
    q, k, v = qkv
    seed = normal(rng, B, H, T, D)
    maps = Maps(B)
    gradients = []

    def f(*given):
        out = attend(*given)
        gradients.extend(torch.autograd.grad((out * seed).sum(), captured(maps), retain_graph=True))
        return out

    through(PLAIN, f, q, k, v, maps=maps, ledger=False)
    plain, step = weights(q, k), 1e-6
    for at in [(0, 0, 0, 0), (1, 2, 4, 1), (0, 1, 3, 3)]:
        up, down = plain.clone(), plain.clone()
        up[at] += step
        down[at] -= step
        slope = ((up @ v - down @ v) * seed).sum() / (2 * step)
        exactly(gradients[0][at], slope, tol=1e-8)


@pytest.mark.parametrize("attend", WAYS)
def test_replaced_map_is_what_the_values_are_weighed_with(attend, qkv):
    even = torch.full((B, H, T, T), 1 / T, dtype=torch.float64)
    numbers = []

    def replace(number, held):
        numbers.append(number)
        assert held.shape == even.shape
        return even

    found = through(AH, attend, *qkv, maps=Maps(B, replace), ledger=False)
    exactly(found.out, qkv[2].mean(2, keepdim=True).expand(B, H, T, D))
    assert numbers == [0]


@pytest.mark.parametrize("table", [AH, CONSERVATIVE, ATTN_LRP, PLAIN])
def test_maps_change_no_relevance(table, qkv, rng):
    seed = normal(rng, B, H, T, D)
    fused = through(table, sdpa, *qkv, seed=seed)
    spelled = through(table, sdpa, *qkv, seed=seed, maps=Maps(B))
    exactly(spelled.out, fused.out)
    for a, b in zip(spelled.relevance, fused.relevance, strict=True):
        exactly(a, b)


def _masks(rng):
    bias = normal(rng, B, 1, T, T)
    return [
        {"is_causal": True},
        {"attn_mask": bias},
        {"attn_mask": bias.masked_fill(bias > 0.5, -math.inf)},
        {"attn_mask": torch.ones(T, T, dtype=torch.bool).tril()},
        {"scale": 0.3},
    ]


@pytest.mark.parametrize("case", range(5))
@pytest.mark.parametrize("table", [AH, ATTN_LRP])
def test_explicit_attention_is_the_fused_one_under_every_mask(case, table, qkv, rng):
    settings = _masks(rng)[case]
    q, k, v = qkv

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **settings)

    fused = through(table, attend, q, k, v)
    maps = Maps(B)
    spelled = through(table, attend, q, k, v, maps=maps)
    exactly(fused.out, attend(q, k, v))
    exactly(spelled.out, fused.out)
    exactly(captured(maps)[0].sum(-1), torch.ones(B, H, T))
    for a, b in zip(spelled.relevance, fused.relevance, strict=True):
        exactly(a, b)


def test_a_query_that_sees_no_key_gets_zeros_with_and_without_maps(qkv):
    mask = torch.ones(T, T, dtype=torch.bool)
    mask[2] = False

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    spelled = through(AH, attend, *qkv, maps=Maps(B))
    exactly(spelled.out, attend(*qkv))


def test_grouped_queries_are_the_same_as_repeated_keys(rng):
    q, k, v = normal(rng, B, 4, T, D), normal(rng, B, 2, T, D), normal(rng, B, 2, T, D)
    seed = normal(rng, B, 4, T, D)

    def grouped(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def repeated(q, k, v):
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        return F.softmax(q @ k.mT / math.sqrt(D), -1) @ v

    for table in (AH, ATTN_LRP, PLAIN):
        maps = Maps(B)
        one, two = (through(table, f, q, k, v, seed=seed) for f in (grouped, repeated))
        three = through(table, grouped, q, k, v, seed=seed, maps=maps)
        assert captured(maps)[0].shape == (B, 4, T, T)
        for other in (two, three):
            for a, b in zip(one.relevance, other.relevance, strict=True):
                exactly(a, b)


def test_dropout_within_fused_attention_is_off(qkv):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.9)

    exactly(through(AH, attend, *qkv).out, sdpa(*qkv))


@pytest.mark.parametrize("masked", [False, True])
def test_a_mask_that_depends_on_the_input_gets_what_a_sum_of_scores_would_give_it(rng, masked):
    x = normal(rng, 1, 5, 4)
    into = [normal(rng, 4, 4) for _ in range(3)]
    closed = torch.ones(5, 5, dtype=torch.bool).triu(1) & masked

    def parts(x):
        q, k, v = (x @ weight for weight in into)
        bias = (q @ into[0][:, :1] + torch.arange(5.0).double()) / 3  # of relative positions
        return q, k, v, bias.masked_fill(closed, -math.inf)

    def fused(x):
        q, k, v, bias = parts(x)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    def written_out(x):
        q, k, v, bias = parts(x)
        return (q @ k.mT / 2 + bias).softmax(-1) @ v

    one, other = (through(ATTN_LRP, f, x) for f in (fused, written_out))
    exactly(one.out, other.out)
    exactly(one.relevance[0], other.relevance[0])
    exactly(float(one.relevance[0].sum()) + one.recorded, float(one.out.sum()))
