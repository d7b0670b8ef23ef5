"""Deep Taylor relevance of single calls, and where sums have no positive part."""

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import exactly, normal, through
from wherefrom.rules.deep_taylor import DEEP_TAYLOR


def test_a_sum_without_a_positive_part_hands_on_nothing(rng):
    x = normal(rng, 1, 4, 60).abs()
    weight = -normal(rng, 3, 60).abs()  # every product is negative: x⁺W⁺ + x⁻W⁻ is zero
    run = through(DEEP_TAYLOR, lambda x: F.linear(x, weight), x, seed=torch.ones(1, 4, 3).double())
    exactly(run.relevance[0] / x, torch.zeros(1, 4, 60), 0.0)


def test_a_linear_layer_hands_on_what_it_gets(rng):
    x, weight, bias = normal(rng, 1, 4, 6), normal(rng, 3, 6), normal(rng, 3)
    seed = normal(rng, 1, 4, 3).abs()
    run = through(DEEP_TAYLOR, lambda x: F.linear(x, weight, bias), x, seed=seed)
    relevance = run.relevance[0] / x
    positive = x.clamp_min(0)[..., None, :] * weight.clamp_min(0) + x.clamp_max(0)[
        ..., None, :
    ] * weight.clamp_max(0)  # (1, 4, outputs, inputs)
    expected = (positive / positive.sum(-1, keepdim=True) * seed[..., None]).sum(-2)
    exactly(relevance, expected)


def test_a_matrix_product_with_a_scaled_constant_is_a_linear_layer(rng):
    x, weight, bias = normal(rng, 1, 4, 6), normal(rng, 6, 3), normal(rng, 3)
    seed = normal(rng, 4, 3).abs()

    def scaled(x):
        return torch.addmm(bias, x[0], weight, beta=0.5, alpha=2.0)

    run = through(DEEP_TAYLOR, scaled, x, seed=seed)
    layer = through(DEEP_TAYLOR, lambda x: F.linear(x[0], 2 * weight.T, 0.5 * bias), x, seed=seed)
    exactly(run.out, layer.out)
    exactly(run.relevance[0], layer.relevance[0])


@pytest.mark.parametrize(
    "f",
    [
        lambda x, c: torch.addmm(torch.ones(4, 3).double(), c[0], x[0].T[:, :3]),
        lambda x, c: torch.addmm(x[0], x[0], torch.ones(6, 6).double()),
        lambda x, c: torch.baddbmm(torch.ones(1, 4, 2).double(), x, torch.ones(1, 6, 2).double()),
    ],
    ids=["a live matrix on the right", "a live matrix added", "batches of matrices"],
)
def test_an_added_product_that_is_no_linear_layer_has_the_gradient(f, rng):
    x, constant = normal(rng, 1, 4, 6), normal(rng, 1, 4, 6)
    leaf = x.clone().requires_grad_()
    expected = f(leaf, constant)
    seed = normal(rng, *expected.shape)
    (gradient,) = torch.autograd.grad(expected, leaf, seed)
    run = through(DEEP_TAYLOR, lambda x: f(x, constant), x, seed=seed)
    exactly(run.out, expected.detach())
    exactly(run.relevance[0], x * gradient)


def test_an_activation_in_place_is_the_identity_and_spares_what_a_rule_keeps(rng):
    x, weight = normal(rng, 1, 4, 6), normal(rng, 3, 6)
    seed = normal(rng, 1, 4, 3).abs()

    def f(activation):
        def call(x):
            h = x * 1.0
            before = F.linear(h, weight)  # the rule needs h before the write
            return before + F.linear(activation(h), weight)

        return through(DEEP_TAYLOR, call, x, seed=seed)

    expected = f(F.relu)
    for activation in (lambda h: F.relu(h, inplace=True), torch.relu_):
        run = f(activation)
        exactly(run.out, expected.out)
        exactly(run.relevance[0], expected.relevance[0])


@pytest.mark.parametrize("alpha", [0, 1, -2.5])
def test_a_sum_with_a_factor_is_that_of_the_scaled_operand(alpha, rng):
    x, y, seed = (normal(rng, 1, 4, 6) for _ in range(3))
    run = through(DEEP_TAYLOR, lambda x, y: torch.add(x, y, alpha=alpha), x, y, seed=seed)
    scaled = alpha * y
    shares = [part * seed / (x + scaled) for part in (x, scaled)]
    sizes = [abs(float(share.sum())) for share in shares]
    for value, share, size, relevance in zip((x, y), shares, sizes, run.relevance, strict=True):
        total = float(seed.sum()) * size / sum(sizes)
        expected = share / share.sum() * total if size else torch.zeros_like(share)
        exactly(relevance / value, expected)


def test_rows_added_to_rows_of_zeros_are_shared_out_sample_by_sample(rng):
    x, seed = normal(rng, 2, 3, 4), normal(rng, 2, 3, 4)
    first, second = torch.tensor([0, 1, 4]), torch.tensor([1, 2, 3, 4, 5])

    def written(x, *rows):
        flat = x.flatten(0, 1)
        out = torch.zeros(flat.shape, dtype=flat.dtype)
        for number, index in enumerate(rows, 1):
            out.index_add_(0, index, flat[index] * number)
        return out.view_as(x)

    together = through(DEEP_TAYLOR, lambda x: written(x, first, second), x, seed=seed)
    for i in range(2):
        own = [rows[(rows >= 3 * i) & (rows < 3 * i + 3)] - 3 * i for rows in (first, second)]
        alone = through(
            DEEP_TAYLOR, lambda x, own=own: written(x, *own), x[i : i + 1], seed=seed[i : i + 1]
        )
        exactly(together.relevance[0][i], alone.relevance[0][0])
