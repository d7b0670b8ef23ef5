"""The three problems of gradients that the course names, and the axioms that answer them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from tests.helpers import exactly
from wherefrom import Explainer

IG = "integrated_gradients"


class Formula(nn.Module):
    """A function of the units' single numbers, (batch, units) to (batch,)."""

    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x.squeeze(-1)).unsqueeze(-1)


def explained(f, numbers, method, **options):
    """The scores of numbers, one unit each."""
    x = torch.tensor(numbers, dtype=torch.float64).unsqueeze(-1)
    return torch.tensor(Explainer(Formula(f))(x, method, **options).scores)


def saturated(x):
    """Y = min(1, x1 + x2): it does not change when either grows."""
    return 1 - F.relu(1 - x.sum(-1))


def hinge(x):
    """Y = max(0, x − 10)."""
    return F.relu(x[:, 0] - 10)


def capped(x):
    """F(x) = 1 − ReLU(1 − x), the example of Sundararajan et al."""
    return 1 - F.relu(1 - x[:, 0])


class TestSaturation:
    def test_the_gradient_sees_nothing(self):
        for method in ("gradient", "gradient_x_input"):
            exactly(explained(saturated, [1.0, 1.0], method), [0.0, 0.0])

    def test_integrated_gradients_give_each_its_half(self):
        exactly(explained(saturated, [1.0, 1.0], IG), [0.5, 0.5], tol=1e-6)
        exactly(explained(saturated, [1.0, 1.0], "path_gradients"), [0.5, 0.5], tol=1e-6)

    def test_softplus_lets_a_gradient_through(self):
        found = explained(saturated, [1.0, 1.0], "gradient", softplus=1.0)
        expected = torch.sigmoid(torch.tensor(-1.0))  # the slope of softplus at 1 − 2
        exactly(found, [expected, expected], tol=1e-6)

    def test_leaving_one_out_sees_nothing_either(self):
        exactly(explained(saturated, [1.0, 1.0], "occlusion"), [0.0, 0.0])


class TestDiscontinuity:
    step = 1e-6

    def at_the_bend(self, method, **settings):
        """The jump of the score at 10."""
        below, above = (
            explained(hinge, [10 + sign * self.step], method, **settings) for sign in (-1, 1)
        )
        return float(above - below)

    def test_the_gradient_jumps(self):
        assert self.at_the_bend("gradient") == pytest.approx(1)

    def test_gradient_x_input_jumps_by_ten(self):
        assert self.at_the_bend("gradient_x_input") == pytest.approx(10, rel=1e-5)

    @pytest.mark.parametrize("steps", [100, 1000])
    def test_integrated_gradients_do_not_beyond_one_step_of_the_path(self, steps):
        assert abs(self.at_the_bend(IG, steps=steps, rule="right")) <= 10.001 / steps

    def test_integrated_gradients_follow_the_function(self):
        for x in (8.0, 9.9, 10.1, 12.0, 20.0):
            found = float(explained(hinge, [x], IG, steps=1000, rule="middle"))
            assert found == pytest.approx(max(0, x - 10), abs=x / 1000)

    def test_smoothgrad_is_smooth_at_the_bend(self):
        """Half of the noise around 10 lies on either side."""
        found = float(
            explained(two_hinges, [10.0, 0.0], "smoothgrad", samples=400, reduce="sum")[0]
        )
        assert 0.4 < found < 0.6


def two_hinges(x):
    """A second unit, so that the input has a range for noise to be a share of."""
    return F.relu(x[:, 0] - 10) + x[:, 1]


class TestAxioms:
    def test_sensitivity_fails_for_the_gradient_and_holds_for_ig(self):
        for method in ("gradient", "gradient_x_input"):
            assert float(explained(capped, [2.0], method)) == 0
        assert float(explained(capped, [2.0], IG)) == pytest.approx(1, abs=1e-6)

    def test_what_the_function_does_not_read_gets_nothing(self):
        for method in ("gradient", "gradient_x_input", IG, "path_gradients", "lrp", "occlusion"):
            found = explained(lambda x: torch.tanh(x[:, 0]), [0.7, 3.0], method)
            assert found[0] != 0
            assert found[1] == 0

    def test_two_implementations_of_one_function_are_explained_alike(self):
        def one(x):
            return F.relu(F.relu(x[:, 0]) - 1 - F.relu(x[:, 1]))

        def other(x):
            return F.relu(F.relu(x[:, 0] - 1) - F.relu(x[:, 1]))

        for point in ([3.0, 1.0], [2.5, 1.2], [0.5, -1.0], [4.0, -2.0]):
            at = torch.tensor([point])
            assert torch.equal(one(at), other(at))
            for options in ({}, {"rule": "right"}, {"baseline": torch.full((1,), 0.25)}):
                exactly(
                    explained(one, point, IG, **options), explained(other, point, IG, **options)
                )
        assert explained(one, [3.0, 1.0], IG).abs().min() > 0.1

    @settings(max_examples=25)
    @given(a=st.floats(-3, 3), b=st.floats(-2, 2))
    def test_units_that_can_be_exchanged_get_the_same(self, a, b):
        def symmetric(x):
            return torch.tanh(x[:, 0] * x[:, 1] + x[:, 0] + x[:, 1] + b * x[:, 2])

        found = explained(symmetric, [a, a, 1.0], IG)
        assert float(found[0]) == pytest.approx(float(found[1]), abs=1e-6)

    def test_a_path_that_turns_a_corner_is_complete_but_not_symmetric(self):
        def corner(start, end, a):
            first, second = min(2 * a, 1.0), max(2 * a - 1, 0.0)
            return start + torch.tensor([[first], [second]]).to(start) * (end - start)

        def product(x):
            return x[:, 0] * x[:, 1]

        exactly(explained(product, [2.0, 2.0], IG), [2.0, 2.0], tol=1e-6)
        found = explained(product, [2.0, 2.0], "path_gradients", path=corner)
        exactly(found, [0.0, 4.0], tol=1e-6)

    @settings(max_examples=25)
    @given(st.lists(st.floats(-3, 3), min_size=2, max_size=4))
    def test_ig_adds_up_to_the_rise_of_a_smooth_function(self, numbers):
        def smooth(x):
            return torch.tanh(x.sum(-1)) + x.square().sum(-1)

        rise = float(smooth(torch.tensor([numbers]).double())[0])
        found = explained(smooth, numbers, IG)
        assert float(found.sum()) == pytest.approx(rise, abs=1e-4)
