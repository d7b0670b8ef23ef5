"""The recommendation: who is level, who is cheapest, and in which words."""

import numpy as np
import pytest

from wherefrom.evaluation.recommendation import difference, recommend

BETTER = {"activation": "higher", "pruning": "lower"}
TITLES = {"activation": "AUAC", "pruning": "AU-MSE"}


def measured(rng, activation, pruning, n=200):
    """Values of one method around two means; samples differ more than methods do."""
    return {
        "activation": list(activation + 0.01 * rng.standard_normal(n) + np.linspace(-0.2, 0.2, n)),
        "pruning": list(pruning + 0.05 * rng.standard_normal(n) + np.linspace(-1, 1, n)),
    }


@pytest.fixture
def numbers():
    return np.random.default_rng(4)


def test_the_cheapest_of_those_that_are_level(numbers):
    values = {
        "integrated_gradients": measured(numbers, 0.9, 1.2),
        "lrp": measured(numbers, 0.9, 1.2),
        "random": measured(numbers, 0.7, 3.0),
    }
    seconds = {"integrated_gradients": 30.0, "lrp": 1.0, "random": 0.001}
    result = recommend(values, BETTER, TITLES, seconds)
    assert result.method == "lrp"
    assert set(result.level) == {"lrp", "integrated_gradients"}
    assert result.text == (
        "lrp and integrated_gradients cannot be told apart by AUAC and AU-MSE on 200 samples. "
        "Use lrp: 30 × cheaper than integrated_gradients."
    )


def test_differences_are_paired(numbers):
    # the means differ by a fifth of the spread over samples: only pairs can tell them apart
    values = {"a": measured(numbers, 0.90, 1.2), "b": measured(numbers, 0.88, 1.2)}
    result = recommend(values, {"activation": "higher"}, TITLES, {"a": 9.0, "b": 1.0})
    assert result.method == "a"
    assert result.level == ("a",)
    assert "beyond what chance explains" in result.text


def test_a_trade_off_is_said(numbers):
    values = {"a": measured(numbers, 0.95, 2.0), "b": measured(numbers, 0.8, 1.0)}
    result = recommend(values, BETTER, TITLES, {"a": 1.0, "b": 1.0})
    assert result.level == ()
    assert "a is best by AUAC; b is best by AU-MSE" in result.text


def test_one_sample_tells_nothing_apart():
    values = {"a": {"activation": [0.9]}, "b": {"activation": [0.1]}}
    result = recommend(values, {"activation": "higher"}, TITLES, {"a": 2.0, "b": 1.0})
    assert result.method == "b"
    assert "1 sample." in result.text


def test_the_interval_is_that_of_the_mean_difference(numbers):
    a, b = numbers.standard_normal(400) + 0.5, numbers.standard_normal(400)
    low, high = difference(a, b)
    half = 1.96 * np.std(a - b) / np.sqrt(400)
    assert low == pytest.approx(np.mean(a - b) - half, abs=0.02)
    assert high == pytest.approx(np.mean(a - b) + half, abs=0.02)
    assert difference([1.0, 1.0], [0.5, 0.5]) == (0.5, 0.5)


def test_one_method_is_not_the_best_of_any(numbers):
    result = recommend({"lrp": measured(numbers, 0.9, 1.2)}, BETTER, TITLES, {"lrp": 1.0})
    assert result.method == "lrp"
    assert result.text == (
        "lrp alone was measured: there is nothing to compare it with (200 samples)."
    )
