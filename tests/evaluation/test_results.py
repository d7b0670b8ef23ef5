"""Summaries, intervals, the best method, and every form of output."""

import json
import locale
import math
import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.helpers import exactly
from tests.oracles import protocols
from wherefrom import Explainer, evaluate
from wherefrom.errors import FileError, MethodError
from wherefrom.evaluation import results
from wherefrom.evaluation.metrics import Metric
from wherefrom.evaluation.results import Evaluation, fit, summarise
from wherefrom.show.report import render_evaluation
from wherefrom.studies import Study

TEXTS = ["the film is good", "a dull movie", "i love the great script and it is not bad .", "bad"]


@pytest.fixture(scope="module")
def explainer(bert, wordpiece):
    return Explainer(bert, wordpiece)


@pytest.fixture(scope="module")
def result(explainer):
    metrics = ["activation", "pruning", "flip", "conservation", "entropy"]
    return evaluate(explainer, TEXTS, ["lrp", "gradient", "random"], metrics)


def means(values, **options):
    """A result with one sample; `values` by method and metric."""
    return Evaluation(
        model="m",
        methods=list(values),
        metrics=list(next(iter(values.values()))),
        values={label: {k: [v] for k, v in row.items()} for label, row in values.items()},
        series={},
        sums={},
        agreement={},
        **options,
    )


# Intervals.


def test_the_interval_is_that_of_an_independent_bootstrap():
    values = np.random.default_rng(3).gamma(2.0, size=60)
    summary = summarise(values)
    low, high = protocols.resampled_interval(values.tolist(), 4000, seed=1)
    error = values.std() / math.sqrt(len(values))
    # two bootstraps differ by chance by 0.1 errors; an interval of 90 % would by 0.3
    assert summary.low == pytest.approx(low, abs=0.2 * error)
    assert summary.high == pytest.approx(high, abs=0.2 * error)
    assert summary.mean == pytest.approx(values.mean(), rel=1e-12)
    assert summary.samples == 60


def test_the_interval_covers_the_true_mean_in_95_of_100_cases():
    chance = np.random.default_rng(0)
    intervals = [summarise(chance.normal(size=50), seed) for seed in range(400)]
    covered = np.mean([interval.low <= 0 <= interval.high for interval in intervals])
    assert 0.92 < covered < 0.98


def test_the_interval_depends_on_the_seed_alone():
    values = np.random.default_rng(3).random(30)
    assert summarise(values, 1) == summarise(values, 1)
    assert summarise(values, 1) != summarise(values, 2)
    assert summarise(values[:1]) == results.Summary(values[0], values[0], values[0], 1)
    constant = summarise(np.full(9, 0.25))
    assert (constant.low, constant.high) == (0.25, 0.25)


def test_the_interval_of_many_samples_takes_little_memory():
    values = np.random.default_rng(0).random(20_000)
    tracemalloc.start()
    summarise(values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6  # all resamples at once would be 320 MB


def test_intervals_are_computed_once(result, monkeypatch):
    fresh = Evaluation(**{k: v for k, v in vars(result).items() if not k.startswith("_")})
    calls = []
    monkeypatch.setattr(results, "summarise", lambda *args: calls.append(args) or summarise(*args))
    for _ in range(2):
        str(fresh)
        fresh.to_json()
        fresh.to_csv()
    assert len(calls) == len(fresh.methods) * len(fresh.metrics)


# The best method.


def test_best_is_what_the_samples_show_and_never_random():
    numbers = np.linspace(0, 1, 40)
    result = means({"a": {"activation": 0}, "b": {"activation": 0}, "random": {"activation": 0}})
    result.values = {
        "a": {"activation": list(numbers + 0.1)},
        "b": {"activation": list(numbers + 0.3)},
        "random": {"activation": list(numbers)},
    }
    result.sums = dict.fromkeys(result.methods, [(0.0, 0.0)] * 40)
    assert result.best == "b"
    undecided = {**result.values, "b": {"activation": list(numbers[::-1] + 0.25)}}
    assert replace(result, values=undecided).best is None
    few = {label: {"activation": of["activation"][:29]} for label, of in result.values.items()}
    assert replace(result, values=few).best is None
    only_random = replace(result, values={"random": result.values["random"]}, methods=["random"])
    assert only_random.best is None


@pytest.mark.parametrize(("metric", "best"), [("deletion", "low"), ("insertion", "high")])
def test_the_best_mean_follows_the_direction_of_the_metric(metric, best):
    result = means({"low": {metric: 0.1}, "middle": {metric: 0.4}, "high": {metric: 0.9}})
    assert result.best_by(metric) == best


def test_without_a_metric_that_has_a_direction_no_method_is_best():
    result = means({"a": {"entropy": 0.1}, "b": {"entropy": 0.4}})
    assert result.best is None
    assert result.recommendation is None


def test_the_recommendation_compares_with_the_random_methods():
    numbers = list(np.linspace(0, 1, 40))
    result = means({"gae": {"insertion": 0}, "random(seed=1)": {"insertion": 0}})
    result.values = {label: {"insertion": numbers} for label in result.methods}
    result.sums = dict.fromkeys(result.methods, [(0.0, 0.0)] * 40)
    assert result.recommendation.method is None
    assert "gae is not shown to be better than random(seed=1)" in result.recommendation.text


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_never_ranked(bad):
    result = means({"a": {"insertion": 0}, "broken": {"insertion": 0}, "random": {"insertion": 0}})
    result.values = {"a": {"insertion": [0.9] * 40}, "random": {"insertion": [0.1] * 40}}
    result.values["broken"] = {"insertion": [bad] + [0.99] * 39}
    result.sums = dict.fromkeys(result.methods, [(0.0, 0.0)] * 40)
    assert result.best == result.best_by("insertion") == result.recommendation.method == "a"
    assert [row for row in result.table().splitlines() if "*" in row] == [
        row for row in result.table().splitlines() if row.startswith("a ")
    ]
    alone = replace(result, methods=["broken"])
    assert alone.best is alone.best_by("insertion") is None


# Output.


def test_the_table_marks_the_best_and_shows_the_direction(result):
    text = str(result)
    assert "AUAC ↑" in text
    assert "AU-MSE ↓" in text
    assert result.recommendation.text in text
    assert "too few for a recommendation" in result.recommendation.text
    header, *rows = result.table().splitlines()
    assert len(rows) == 3
    for name, column in (("activation", "AUAC ↑"), ("pruning", "AU-MSE ↓")):
        at = header.index(column)
        marked = [row.split()[0] for row in rows if row[at:].partition("  ")[0].endswith(" *")]
        assert marked == [result.best_by(name)]


def test_it_goes_to_json_and_csv_and_back(result, tmp_path):
    result.to_json(tmp_path / "e.json")
    back = Evaluation.from_json(tmp_path / "e.json")
    assert back == result
    assert str(back) == str(result)
    assert len(result.to_csv().splitlines()) == 1 + len(result.methods) * len(result.metrics)
    bad = {'{"schema": "x"}': "an evaluation of schema", "[]": "a list", "{": "not JSON"}
    for content, says in bad.items():
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(FileError, match=says):
            Evaluation.from_json(tmp_path / "bad.json")


def test_files_are_utf_8_whatever_the_locale(tmp_path):
    values = {"größer": {"entropy": 1.0}}
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, "C")
        paths = means(values).to_csvs(tmp_path)
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
    assert any("größer" in path.read_text("utf-8") for path in paths)


def test_plots_are_written_for_each_metric(result, tmp_path):
    paths = result.plots(tmp_path)
    names = ["activation", "pruning", "conservation", "flip", "agreement"]
    assert sorted(path.stem for path in paths) == sorted(names)
    assert all(path.stat().st_size > 5000 for path in paths)


class Half(Metric):
    """The probability with half of the units, which any third party could write."""

    name = "half"
    better = "higher"

    def masks(self, sample):
        return (np.arange(len(sample.erasable)) % 2 == np.array([[0], [1], [0]])).astype(bool)

    def value(self, sample, logits):
        return logits[:, sample.target].mean(), logits[:, sample.target]


class Length(Metric):
    """No direction, no title, no perturbed input."""

    name = "length"

    def value(self, sample, logits):
        assert logits.shape == (0, 0)
        return len(sample.scores), None


class Positions(Study):
    """A study that is not built in."""

    name = "positions"

    def records(self, samples, progress):
        return [{"length": samples.length(i)} for i in range(len(samples))]

    def summary(self, records):
        return {"mean": float(np.mean([record["length"] for record in records]))}

    def tables(self, records):
        return {"positions": list(records)}


def test_own_metrics_and_studies_work_in_every_output(explainer, wordpiece, tmp_path):
    metrics = [Half(), Length(), Positions()]
    result = evaluate(explainer, TEXTS, ["lrp", "random"], metrics, out=tmp_path)
    lengths = [len(wordpiece(text)["input_ids"]) for text in TEXTS]
    assert result.values["lrp"]["length"] == lengths
    for at, text in enumerate(TEXTS):
        ids = wordpiece(text)["input_ids"]
        index = explainer(text).target.index
        halves = [[t if i % 2 == k else 1 for i, t in enumerate(ids)] for k in (0, 1)]
        even, odd = (protocols.outputs(explainer.runner.model, row)[index] for row in halves)
        exactly(result.values["lrp"]["half"][at], (2 * even + odd) / 3, 1e-12)
    assert result.best is None  # of four samples
    assert "half ↑" in str(result)
    assert "length" in result.table(markdown=True)
    assert {row["better"] for row in result.rows()} == {"higher", ""}
    pictures = result.plots(tmp_path)
    assert "half.png" in {path.name for path in pictures}
    page = render_evaluation(result, pictures)
    assert re.search("half.{0,40}↑ higher is better", page)
    assert page.count("<img") == len(pictures)
    assert result.meaning("half") == ""
    result.to_json(tmp_path / "e.json")
    back = Evaluation.from_json(tmp_path / "e.json")
    assert back == result
    assert str(back) == str(result)
    assert back.study("positions") == {"mean": np.mean(lengths)}
    assert "positions.csv" in {path.name for path in back.to_csvs(tmp_path)}
    again = evaluate(explainer, TEXTS, ["lrp", "random"], metrics, out=tmp_path, resume=True)
    assert again.values == result.values
    assert again.timing["computed"] == 0


class Nameless(Metric):
    def value(self, sample, logits):
        return 0.0, None


class Sideways(Length):
    better = "sideways"


class Slashed(Length):
    name = "a/b"


class Backslashed(Length):
    name = "a\\b"


class Unnamed(Length):
    name = ""


class Numbered(Length):
    name = 5


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ([Nameless()], "needs a name"),
        ([Slashed()], "valid in a file name"),
        ([Backslashed()], "valid in a file name"),
        ([Unnamed()], "needs a name .* got ''"),
        ([Numbered()], "needs a name .* got 5"),
        ([Sideways()], 'must be "higher", "lower" or ""'),
        ([Length(), Length()], "two metrics have the same name: length"),
        ([], "no metric was selected"),
    ],
)
def test_a_metric_that_breaks_the_contract_is_refused(explainer, metrics, words):
    with pytest.raises(MethodError, match=words):
        evaluate(explainer, TEXTS, ["lrp"], metrics)


class Broken(Length):
    name = "broken"

    def value(self, sample, logits):
        return (float("nan") if len(sample.scores) < 4 else 1.0), None


def test_samples_with_a_value_that_is_not_finite_are_counted(explainer):
    result = evaluate(explainer, TEXTS, ["lrp"], [Broken(), "activation"])
    assert result.skipped == {"broken not finite": 1}  # "bad" has three tokens
    assert len(result.values["lrp"]["activation"]) == 3


# Conservation.


def test_the_numbers_of_conservation_are_those_of_the_line(rng):
    pairs = torch.randn(20, 2, generator=rng, dtype=torch.float64).numpy()
    numbers = fit(pairs)
    exactly((numbers.slope, numbers.r2, numbers.r2_diagonal), protocols.line(pairs))
    exactly(numbers.gap, np.mean([abs(a - b) for a, b in pairs]))
    exactly(numbers.relative_gap, numbers.gap / np.abs(pairs[:, 1]).mean())
    assert fit([(1.0, 2.0), (3.0, 2.0)]).slope is None  # one output says nothing of a slope
    assert fit([(1.0, 2.0), (1.0, 3.0)]).r2 == 0
    assert json.dumps(vars(numbers))  # plain numbers


def test_sums_in_float32_are_compared_in_float64():
    pairs = np.array([[2**24, -1], [0, 0]], dtype=np.float32)
    assert fit(list(pairs)).gap == (2**24 + 1) / 2  # 2²⁴ + 1 is not a number of float32


def test_scores_of_lrp_add_up_to_the_output(result):
    numbers = result.conservation
    assert numbers["lrp"].slope == pytest.approx(1, abs=1e-6)
    assert numbers["lrp"].r2_diagonal == pytest.approx(1, abs=1e-6)
    assert numbers["lrp"].relative_gap < 1e-6
    assert numbers["random"].relative_gap > 0.01
    assert max(result.values["lrp"]["conservation"]) < 1e-9
    assert min(result.values["gradient"]["conservation"]) > 1e-3
