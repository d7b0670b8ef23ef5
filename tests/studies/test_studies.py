"""Studies in an evaluation: records, files, pictures, and models that do not support them."""

import math

import pytest
import torch

from tests.evaluation.additive import additive_explainer
from tests.studies.conftest import STUDIES, TEXTS
from wherefrom import evaluate
from wherefrom.core.runner import ModelRunner
from wherefrom.evaluation.results import Evaluation
from wherefrom.show.report import render_evaluation
from wherefrom.studies import StudySamples


def test_records_do_not_depend_on_the_window(explainer, result):
    at_once = evaluate(explainer, TEXTS, ["lrp", "random"], ["activation", *STUDIES], window=64)
    for name in STUDIES:
        _same(at_once.studies[name], result.studies[name])


def _same(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            _same(a[key], b[key])
    elif isinstance(a, list):
        for x, y in zip(a, b, strict=True):
            _same(x, y)
    else:
        assert a == (pytest.approx(b, rel=1e-9, abs=1e-12) if isinstance(a, float) else b)


def test_all_of_it_goes_to_json_and_back_and_to_tables(result, tmp_path):
    result.to_json(tmp_path / "e.json")
    assert Evaluation.from_json(tmp_path / "e.json") == result
    names = {path.name for path in result.to_csvs(tmp_path)}
    assert names == {
        "summary.csv", "conservation.csv", "layers.csv", "collapse.csv",
        "attention_erasure_weights.csv", "attention_erasure_flips.csv",
        "attention_erasure_to_flip.csv",
    }  # fmt: skip
    rows = (tmp_path / "conservation.csv").read_text().splitlines()
    assert rows[0] == "method,slope,r2,r2_diagonal,gap,relative_gap"
    assert len(rows) == 1 + len(result.methods)
    flips = result.study("attention_erasure")["flips"]
    assert math.isclose(sum(flips.values()), 1)


def test_plots_and_report_show_the_studies(result, tmp_path):
    pictures = result.plots(tmp_path)
    names = {path.stem for path in pictures}
    assert {"attention_erasure", "attention_to_flip", "layers", "collapse"} <= names
    page = render_evaluation(result, pictures)
    assert "Is attention a reason?" in page
    assert "R² of the diagonal" in page
    assert page.count("<img") == len(pictures)


def test_studies_alone_make_a_result(explainer, tmp_path):
    result = evaluate(explainer, TEXTS, ["lrp"], ["layers"])
    assert result.best is None
    assert result.recommendation is None
    assert result.to_csv().splitlines() == ["method,metric,mean,low,high,samples,better"]
    assert Evaluation.from_json(_written(result, tmp_path)) == result
    assert "trusted" in render_evaluation(result, [])


def _written(result, folder):
    result.to_json(folder / "e.json")
    return folder / "e.json"


def test_a_study_that_the_model_does_not_support_is_named(wordpiece):
    weights = torch.linspace(-1, 1, len(wordpiece)).tolist()
    explainer = additive_explainer(weights, wordpiece)
    result = evaluate(explainer, TEXTS, ["lrp"], ["activation", *STUDIES])
    assert result.studies == result.study_summaries == result.study_tables == {}
    notes = "\n".join(result.notes)
    assert "attention_erasure was left out" in notes
    assert "layers was left out" in notes


def test_targets_lie_on_the_device_of_the_model(explainer):
    executor = ModelRunner(torch.nn.Linear(2, 2, device="meta"))
    samples = StudySamples(executor, None, {"lrp": [explainer(text) for text in TEXTS]})
    target = samples.targets([0, 2])
    assert target.index.device.type == "meta"
    here = StudySamples(explainer.runner, None, samples.explanations)
    assert here.targets([0, 2]).index.tolist() == [explainer(TEXTS[i]).target.index for i in (0, 2)]
