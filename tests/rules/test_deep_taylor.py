"""Deep Taylor relevance where sums have no positive part."""

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
