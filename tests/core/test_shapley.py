"""Shapley values equal the sum over all orders, and their errors say how far they are off."""

import numpy as np
import pytest
import torch

from tests.helpers import exactly
from tests.oracles import protocols
from wherefrom.core.shapley import coalitions, shapley_values
from wherefrom.errors import InputError


def game(units, seed=0):
    """An output with interactions of all orders, for masks (M, units)."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(units, 8, generator=generator, dtype=torch.float64)
    second = torch.randn(8, generator=generator, dtype=torch.float64)
    return lambda masks: torch.tanh(masks.double() @ first) @ second


def of_set(value, units):
    """The same output for a set of units."""

    def output(present):
        mask = torch.zeros(1, units, dtype=torch.bool)
        mask[0, list(present)] = True
        return value(mask)[0]

    return output


@pytest.mark.parametrize("units", [1, 2, 6])
def test_few_units_are_enumerated(units):
    value = game(units)
    result = shapley_values(value, units)
    exactly(result.values, protocols.shapley(of_set(value, units), units), 1e-12)
    assert not result.errors.any()


def test_sampled_values_are_those_of_the_enumeration_within_their_errors():
    units = 10
    value = game(units)
    exact = shapley_values(value, units).values
    deviations = []
    for seed in range(60):
        sampled = shapley_values(value, units, budget=1000, seed=seed)
        deviations.append((sampled.values - exact) / sampled.errors)
    deviations = torch.stack(deviations)
    assert deviations.mean(0).abs().max() < 0.5  # unbiased: 60 runs have an error of 0.13
    assert 0.85 < float(deviations.square().mean().sqrt()) < 1.15


@pytest.mark.parametrize(
    ("units", "budget"), [(12, 4096), (13, 4096), (13, 8192), (5, 31), (40, 500)]
)
def test_values_add_up_to_the_difference_of_the_ends_within_the_budget(units, budget):
    value, masks = game(units), []
    result = shapley_values(lambda m: (masks.append(m), value(m))[1], units, budget)
    (masks,) = masks
    assert len(masks) <= budget
    assert masks.dtype == torch.bool
    assert bool(result.errors.any()) == (2**units > budget)
    ends = value(torch.tensor([[True], [False]]).expand(2, units))
    assert float(result.values.sum()) == pytest.approx(float(ends[0] - ends[1]), rel=1e-12)


def test_an_antithetic_pair_is_exact_for_interactions_of_two():
    """The gain in an order and in its reverse add up to the same for every order."""
    interaction = torch.randn(20, 20, dtype=torch.float64)
    interaction = interaction + interaction.T

    def value(masks):
        present = masks.double()
        return ((present @ interaction) * present).sum(1) / 2

    result = shapley_values(value, 20, budget=100)
    torch.testing.assert_close(result.values, interaction.sum(1) / 2, rtol=1e-10, atol=1e-12)
    assert float(result.errors.max()) < 1e-12


def test_a_seed_draws_the_same_orders():
    first, again, other = (coalitions(20, 200, seed).orders for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert np.array_equal(np.sort(first, 1), np.tile(np.arange(20), (len(first), 1)))


def test_a_budget_below_two_pairs_is_refused():
    assert len(coalitions(20, 78).masks) == 78
    with pytest.raises(
        InputError, match="20 units need at least 78 evaluations, got a budget of 7"
    ):
        coalitions(20, 77)
