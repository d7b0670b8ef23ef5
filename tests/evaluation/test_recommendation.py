"""Each sentence of the recommendation follows from the numbers, and goes when they deny it."""

import itertools

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from wherefrom.evaluation.recommendation import FEWEST, MARGIN, difference, is_level, recommend

BETTER = {"activation": "higher", "pruning": "lower"}
TITLES = {"activation": "AUAC", "pruning": "AU-MSE"}
N = 200


def measured(activation, pruning, seed, n=N, noise=0.01):
    """Values of one method with these means; samples differ more than methods do."""
    chance = np.random.default_rng(seed)

    def around(mean, spread):
        values = noise * mean * chance.standard_normal(n)
        return list(mean + values - values.mean() + np.linspace(-spread, spread, n))

    return {"activation": around(activation, 0.2), "pruning": around(pruning, 1.0)}


def methods(**means):
    """Methods by name, each of (AUAC, AU-MSE) or further arguments of `measured`."""
    return {name: measured(*of[:2], i, *of[2:]) for i, (name, of) in enumerate(means.items())}


def text_of(values, seconds=None, controls=None):
    return recommend(values, BETTER, TITLES, seconds or {}, controls).text


# "it is better than every other method"


def test_a_method_is_better_than_every_other_only_if_all_intervals_say_so():
    values = methods(a=(0.9, 1.0), b=(0.8, 1.5), c=(0.7, 2.0))
    result = recommend(values, BETTER, TITLES, {})
    assert (result.method, result.level) == ("a", ("a",))
    assert result.text == (
        "Use a: it is better than every other method by AUAC and AU-MSE (200 samples)."
    )


@pytest.mark.parametrize(
    "other",
    [
        (0.8, 0.9),  # ahead by one metric
        (0.899, 1.5, N, 0.5),  # not distinguishable by one metric
        (0.9, 1.5),  # level by one metric
    ],
)
def test_one_other_method_that_is_not_worse_denies_it(other):
    values = methods(a=(0.9, 1.0), b=other, c=(0.7, 2.0))
    assert "it is better than" not in text_of(values)


def test_worse_or_level_is_what_is_left_where_one_metric_shows_no_lead():
    values = methods(a=(0.9, 1.0), b=(0.9, 1.5))
    result = recommend(values, BETTER, TITLES, {})
    assert (result.method, result.level) == ("a", ("a",))
    assert result.text == (
        "Use a: by AUAC and AU-MSE, every other method is worse or level (within 2 %, 200 samples)."
    )
    assert "worse or level" not in text_of(methods(a=(0.9, 1.0), b=(0.87, 1.5, N, 2.0)))


# "are level"


def test_methods_are_level_if_their_difference_is_shown_to_be_small():
    values = methods(a=(0.9, 1.0), b=(0.9, 1.0), c=(0.7, 3.0))
    result = recommend(values, BETTER, TITLES, {"a": 30.0, "b": 1.0, "c": 0.1})
    assert (result.method, result.level) == ("b", ("a", "b"))
    assert result.text == (
        "a and b are level by AUAC and AU-MSE (within 2 %, 200 samples); every other method is "
        "worse than or level with them. Use b: 30 × faster than a."
    )


@pytest.mark.parametrize(
    "b",
    [
        (0.9, 1.0, N, 1.0),  # no difference is found, nor excluded
        (0.9, 1.03),  # a difference beyond the margin
        (0.85, 1.0),
    ],
)
def test_a_failed_test_of_difference_does_not_make_methods_level(b):
    values = methods(a=(0.9, 1.0), b=b)
    assert "are level" not in text_of(values)
    if len(b) > 2:
        low, high = difference(values["a"]["pruning"], values["b"]["pruning"])
        assert low < 0 < high
        assert recommend(values, BETTER, TITLES, {}).method is None


def test_level_is_two_one_sided_tests_at_five_percent():
    chance = np.random.default_rng(0)
    outcomes = []
    for shift, spread in itertools.product(np.linspace(0, 0.03, 13), (0.05, 0.1)):
        b = 1 + 0.3 * chance.standard_normal(150)
        gaps = spread * chance.standard_normal(150) + shift
        bound = MARGIN * min(abs(b.mean()), abs((b + gaps).mean()))
        above = ttest_1samp(gaps, -bound, alternative="greater").pvalue
        below = ttest_1samp(gaps, bound, alternative="less").pvalue
        if 0.03 < max(above, below) < 0.08:
            continue  # two ways of testing may differ there
        outcomes.append(max(above, below) < 0.05)
        assert is_level(b + gaps, b) == is_level(b, b + gaps) == outcomes[-1]
    assert {True, False} == set(outcomes)


def test_without_times_that_differ_any_of_the_level_methods_will_do():
    values = methods(a=(0.9, 1.0), b=(0.9, 1.0))
    for seconds in ({}, {"a": 1.0}, {"a": 1.0, "b": 1.2}):
        result = recommend(values, BETTER, TITLES, seconds)
        assert (result.method, result.level) == (None, ("a", "b"))
        assert result.text == (
            "a and b are level by AUAC and AU-MSE (within 2 %, 200 samples). Use any of them."
        )


# Where the samples do not decide.


def test_a_trade_off_recommends_nothing():
    result = recommend(methods(a=(0.95, 2.0), b=(0.8, 1.0)), BETTER, TITLES, {"a": 1.0, "b": 1.0})
    assert (result.method, result.level) == (None, ())
    assert result.text == (
        "No method is recommended by AUAC and AU-MSE (200 samples): a is better than every other "
        "method by AUAC; b is better than every other method by AU-MSE."
    )


def test_a_lead_within_the_interval_is_the_best_mean_and_no_more():
    """As on a sentiment model: ahead by one metric, behind another method by the second."""
    values = methods(lrp=(0.92, 1.24), occlusion=(0.924, 0.97, N, 1.0), random2=(0.5, 3.0))
    text = text_of(values)
    assert text.startswith("No method is recommended by AUAC and AU-MSE (200 samples): ")
    assert "by AUAC occlusion has the best mean, but is not shown to be better than lrp" in text
    assert "occlusion is better than every other method by AU-MSE" in text
    many = {str(i): measured(0.9, 1.0, i, noise=1.0) for i in range(7)}
    assert "and 3 more" in text_of(many)


@pytest.mark.parametrize(("n", "start"), [(1, "1 sample is"), (FEWEST - 1, "29 samples are")])
def test_few_samples_recommend_nothing(n, start):
    values = {"a": {"activation": [0.9] * n}, "b": {"activation": [0.1] * n}}
    result = recommend(values, {"activation": "higher"}, TITLES, {"a": 2.0, "b": 1.0})
    assert (result.method, result.level) == (None, ())
    assert result.text == (
        f"{start} too few for a recommendation: at least 30 are needed, better a few hundred."
    )
    enough = {name: {"activation": of["activation"][:1] * FEWEST} for name, of in values.items()}
    assert recommend(enough, {"activation": "higher"}, TITLES, {}).method == "a"


# No method is favoured.


@pytest.mark.parametrize("b", [(0.9, 1.0), (0.8, 1.5), (0.8, 0.8), (0.9, 1.0, N, 1.0)])
def test_neither_names_nor_their_order_decide(b):
    values = methods(lrp=(0.9, 1.0), other=b)
    swap = {"lrp": "other", "other": "lrp"}
    for seconds in ({}, {"lrp": 1.0, "other": 9.0}, {"lrp": 9.0, "other": 1.0}):
        result = recommend(values, BETTER, TITLES, seconds)
        again = recommend(dict(reversed(values.items())), BETTER, TITLES, seconds)
        assert (again.method, set(again.level)) == (result.method, set(result.level))
        swapped = recommend(
            {swap[name]: of for name, of in values.items()},
            BETTER,
            TITLES,
            {swap[name]: time for name, time in seconds.items()},
        )
        assert swapped.method == swap.get(result.method)


# The control.

CONTROL = {"random": measured(0.7, 3.0, 99)}


def test_a_method_that_does_not_pass_the_control_takes_no_part():
    values = methods(lrp=(0.9, 1.2), gae=(0.7, 3.0), cheat=(0.95, 4.0), gradient=(0.8, 2.0))
    result = recommend(values, BETTER, TITLES, {}, CONTROL)
    assert (result.method, result.level) == ("lrp", ("lrp",))
    assert result.text == (
        "Use lrp: it is better than every other method that is better than random by AUAC and "
        "AU-MSE (200 samples). gae is not shown to be better than random. cheat is worse than "
        "random by AU-MSE."
    )
    del values["lrp"], values["gradient"]
    result = recommend(values, BETTER, TITLES, {}, CONTROL)
    assert (result.method, result.level) == (None, ())
    assert result.text == (
        "No method is recommended (200 samples). gae is not shown to be better than random. cheat "
        "is worse than random by AU-MSE."
    )


@pytest.mark.parametrize(
    ("means", "text"),
    [
        (
            (0.9, 1.2),
            "Use lrp: it is better than random by AUAC and AU-MSE (200 samples).",
        ),
        ((0.9, 3.0), "Use lrp: it is better than random by AUAC (200 samples)."),
        (
            (0.7, 3.0),
            "No method is recommended (200 samples). lrp is not shown to be better than random.",
        ),
        (
            (0.9, 4.0),
            "No method is recommended (200 samples). lrp is worse than random by AU-MSE.",
        ),
    ],
)
def test_one_method_and_the_control(means, text):
    result = recommend(methods(lrp=means), BETTER, TITLES, {}, CONTROL)
    assert result.text == text
    assert result.method == ("lrp" if text.startswith("Use") else None)


def test_one_method_alone_is_not_the_best_of_any():
    result = recommend(methods(lrp=(0.9, 1.2)), BETTER, TITLES, {"lrp": 1.0})
    assert (result.method, result.level) == (None, ())
    assert result.text == ("Only lrp was measured, so there is no comparison (200 samples).")


# Intervals.


def test_differences_are_paired():
    # the means differ by a tenth of the spread over samples: only pairs can tell them apart
    values = methods(a=(0.90, 1.2), b=(0.87, 1.2))
    assert recommend(values, {"activation": "higher"}, TITLES, {}).method == "a"


def test_the_interval_is_that_of_the_mean_difference():
    chance = np.random.default_rng(4)
    a, b = chance.standard_normal(400) + 0.5, chance.standard_normal(400)
    for confidence, quantile in ((0.95, 1.96), (0.9, 1.645)):
        low, high = difference(a, b, confidence=confidence)
        half = quantile * np.std(a - b) / np.sqrt(400)
        assert low == pytest.approx(np.mean(a - b) - half, abs=0.02)
        assert high == pytest.approx(np.mean(a - b) + half, abs=0.02)
    assert difference([1.0, 1.0], [0.5, 0.5]) == (0.5, 0.5)
