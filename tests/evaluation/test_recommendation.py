"""The recommendation: who is level, who is better than chance, and in which words."""

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


def test_lrp_of_those_that_are_level(numbers):
    values = {
        "integrated_gradients": measured(numbers, 0.9, 1.2),
        "lrp": measured(numbers, 0.9, 1.2),
        "gae": measured(numbers, 0.7, 3.0),
    }
    seconds = {"integrated_gradients": 30.0, "lrp": 1.0, "gae": 0.001}
    result = recommend(values, BETTER, TITLES, seconds)
    assert result.method == "lrp"
    assert set(result.level) == {"lrp", "integrated_gradients"}
    assert result.text == (
        "lrp and integrated_gradients cannot be told apart by AUAC and AU-MSE on 200 samples. "
        "Use lrp: 30 × cheaper than integrated_gradients."
    )


def test_without_lrp_the_better_mean_and_then_the_cheaper(numbers):
    # level, though the dearer one is ahead on most samples
    b = numbers.standard_normal(40)
    values = {
        "a": {"activation": list(b + numbers.standard_normal(40) + 0.05)},
        "b": {"activation": list(b)},
    }
    assert np.mean(values["a"]["activation"]) > np.mean(values["b"]["activation"])
    result = recommend(values, {"activation": "higher"}, TITLES, {"a": 9.0, "b": 1.0})
    assert result.text == (
        "a and b cannot be told apart by AUAC on 40 samples. Use a, which has the best mean rank."
    )
    same = {"a": values["b"], "b": values["b"]}
    assert recommend(same, {"activation": "higher"}, TITLES, {"a": 9.0, "b": 1.0}).method == "b"


def test_a_method_that_is_not_better_than_the_control_is_no_candidate(numbers):
    control = {"random": measured(numbers, 0.7, 3.0)}
    values = {
        "lrp": measured(numbers, 0.9, 1.2),
        "gae": measured(numbers, 0.7, 3.0),
        "cheat": measured(numbers, 0.95, 4.0),  # better by one metric, worse by the other
    }
    result = recommend(values, BETTER, TITLES, {"gae": 0.1}, control)
    assert (result.method, result.level) == ("lrp", ("lrp",))
    del values["lrp"]
    result = recommend(values, BETTER, TITLES, {}, control)
    assert (result.method, result.level) == (None, ())
    assert result.text == (
        "No method here is better than the control random by AUAC and AU-MSE (200 samples)."
    )


def test_one_method_beside_the_control(numbers):
    control = {"random": measured(numbers, 0.7, 3.0)}
    result = recommend({"lrp": measured(numbers, 0.9, 1.2)}, BETTER, TITLES, {}, control)
    assert result.method == "lrp"
    only = "lrp is the only method here besides the control random, and "
    assert result.text == f"{only}better than it by AUAC and AU-MSE (200 samples)."
    result = recommend({"lrp": measured(numbers, 0.7, 3.0)}, BETTER, TITLES, {}, control)
    assert result.method is None
    assert result.text == f"{only}not better than it by AUAC and AU-MSE (200 samples)."


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


@pytest.mark.parametrize(("n", "start"), [(1, "1 sample is"), (9, "9 samples are")])
def test_few_samples_recommend_nothing(n, start):
    values = {"a": {"activation": [0.9] * n}, "b": {"activation": [0.1] * n}}
    result = recommend(values, {"activation": "higher"}, TITLES, {"a": 2.0, "b": 1.0})
    assert (result.method, result.level) == (None, ())
    assert result.text == f"{start} too few for a recommendation; use a few hundred."


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
