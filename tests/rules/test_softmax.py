"""A softmax is attention only where it is multiplied by values."""

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import exactly, normal, through
from wherefrom.methods.propagation import AH, AH_LN, ATTN_LRP, CONSERVATIVE, PLAIN

B, T, D = 1, 4, 3


@pytest.mark.parametrize("table", [AH, AH_LN, CONSERVATIVE])
def test_softmax_at_the_output_keeps_its_derivative(table, rng):
    x, seed = normal(rng, B, T, D), normal(rng, B, T, D)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(leaf.softmax(-1), leaf, seed)
    found = through(table, lambda x: x.softmax(-1), x, seed=seed)
    exactly(found.relevance[0], x * gradient)
    assert not found.tracer.touched["attention"]


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 2, 3, 4)])
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_a_softmax_without_an_axis_takes_the_one_that_torch_takes(shape, rng):
    x, seed = normal(rng, *shape), normal(rng, *shape)
    found = through(ATTN_LRP, lambda x: F.softmax(x), x, seed=seed)
    exactly(found.out, F.softmax(x))
    exactly(float(found.relevance[0].sum()) + found.recorded, float((found.out * seed).sum()))


@pytest.mark.parametrize("table", [AH, AH_LN])
def test_softmax_that_is_only_pooled_is_not_frozen(table, rng):
    x = normal(rng, B, T, D)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(leaf.softmax(-1).square().sum(), leaf)
    found = through(table, lambda x: x.softmax(-1).square().sum(), x)
    exactly(found.relevance[0], x * gradient)


def test_a_routers_weight_is_a_constant_under_conservative_and_true_under_ah(rng):
    x, router = normal(rng, B, T, D), normal(rng, D, 2)
    experts = [normal(rng, D, D), normal(rng, D, D)]

    def mixture(x, held=lambda w: w):
        weights = held((x @ router).softmax(-1))
        return sum(weights[..., e, None] * (x @ expert) for e, expert in enumerate(experts))

    found = through(CONSERVATIVE, mixture, x)
    leaf = x.clone().requires_grad_()
    (frozen,) = torch.autograd.grad(mixture(leaf, torch.Tensor.detach).sum(), leaf)
    exactly(found.relevance[0], x * frozen)
    exactly(found.relevance[0].sum(), mixture(x).sum())
    assert not found.tracer.touched["attention"]
    (true,) = torch.autograd.grad(mixture(leaf).sum(), leaf)
    exactly(through(AH, mixture, x).relevance[0], x * true)


@pytest.mark.parametrize(
    "between",
    [
        lambda w: F.dropout(w, 0.3, training=False),
        lambda w: w.view(B, 1, T, T).squeeze(1),
        lambda w: w.to(torch.float64),
        lambda w: w.type_as(torch.zeros((), dtype=torch.float64)),
        lambda w: w.contiguous().clone(),
        lambda w: w.masked_fill(torch.zeros(T, T, dtype=torch.bool), 0.0),
        lambda w: w[..., :T],
        lambda w: w.transpose(1, 2).transpose(1, 2),
        lambda w: w * 1.0,
        lambda w: w / w.sum(-1, keepdim=True),
        torch.nan_to_num,
    ],
)
def test_softmax_is_followed_through_calls_that_keep_it(between, rng):
    x = normal(rng, B, T, D)

    def f(x):
        return between((x @ x.mT).softmax(-1)) @ x

    found = through(AH, f, x)
    weights = (x @ x.mT).softmax(-1)
    exactly(found.relevance[0], x * (weights.mT @ torch.ones_like(x)))
    assert found.tracer.touched["attention"] == 1


def test_the_mark_ends_at_a_linear_layer(rng):
    x, weight = normal(rng, B, T, D), normal(rng, T, T)

    def f(x):
        mixed = F.linear((x @ x.mT).softmax(-1), weight)  # not attention weights
        return mixed @ x

    leaf = x.clone().requires_grad_()
    (true,) = torch.autograd.grad(f(leaf).sum(), leaf)
    found = through(AH, f, x)
    exactly(found.relevance[0], x * true)
    assert not found.tracer.touched["attention"]


def test_exponential_that_is_no_softmax_is_no_attention(rng):
    x = normal(rng, B, T, D)

    def f(x):
        return torch.exp(x @ x.mT) @ x

    assert not through(AH, f, x).tracer.touched["attention"]


def test_plain_counts_attention_too_so_that_maps_can_be_checked(rng):
    x = normal(rng, B, T, D)
    found = through(PLAIN, lambda x: (x @ x.mT).softmax(-1) @ x, x)
    assert found.tracer.touched["attention"] == 1
