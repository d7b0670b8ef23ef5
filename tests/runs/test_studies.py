"""Corpora explained in parts have the tables and pages of a corpus in memory."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.corpus import planted
from wherefrom import Explainer, method
from wherefrom.corpus import bias, explain, explain_corpus, overview
from wherefrom.corpus.explain import CorpusJob, CorpusSettings
from wherefrom.corpus.statistics import Moments, naive_view
from wherefrom.corpus.studies import bias_study, corpus_overview
from wherefrom.corpus.views import records_of, text_columns, word_columns
from wherefrom.errors import InputError
from wherefrom.inputs.table import Rows
from wherefrom.runs.engine import ModelSource
from wherefrom.runs.parts import Location
from wherefrom.show.corpus import render_bias, render_overview

pyarrow = pytest.importorskip("pyarrow.parquet")
TEXTS = planted.texts(0)[:90]
LABELS = [["NEGATIVE", "POSITIVE"][i % 2] for i in range(len(TEXTS))]
SETTINGS = CorpusSettings(method("auto"))
NAMES = {"ambiguous": "drop", "ordinary": "drop", "stop": [], "min_capitalised": 0.5}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(explain, "PART_ROWS", 16)


@pytest.fixture(scope="module")
def explainer():
    made = planted.explainer(0, 0.0)
    made.runner.model.double()
    return made


@pytest.fixture
def data(tmp_path):
    """Two files with rows that are skipped; the same texts and labels for a corpus in memory."""
    rows = [{"text": t, "label": label} for t, label in zip(TEXTS, LABELS, strict=True)]
    rows.insert(3, {"text": "", "label": "POSITIVE"})
    rows.insert(40, {"text": "the film", "label": ""})
    rows.insert(50, {"text": "film " * 40, "label": "NEGATIVE"})
    for name, some in (("a.jsonl", rows[:50]), ("b.jsonl", rows[50:])):
        content = "\n".join(json.dumps(row) for row in some)
        (tmp_path / name).write_text(content, encoding="utf-8")
    in_memory = Rows([row["text"] for row in rows], [row["label"] or None for row in rows])
    return [Location(tmp_path / "a.jsonl"), Location(tmp_path / "b.jsonl")], in_memory


def close(actual, expected):
    """Tables with the same rows in the same order, numbers to 1e-6."""
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert one.keys() == other.keys()
        for key, value in other.items():
            if isinstance(value, float):
                assert one[key] == pytest.approx(value, abs=1e-6), key
            else:
                assert one[key] == value, key


def rows_of(folder, name):
    return pyarrow.read_table(folder / name).to_pylist()


@pytest.mark.parametrize("target", [{}, {"target": 0}, {"predicted": True}])
def test_words_of_parts_are_those_of_the_corpus(explainer, data, tmp_path, target, bert, wordpiece):
    paths, rows = data
    settings = CorpusSettings(method("auto"), target.get("target"))
    if "predicted" in target:  # three classes: the predicted one is explained, no common target
        explainer = Explainer(bert, wordpiece)
        names = {"NEGATIVE": "bad", "POSITIVE": "good"}
        rows = Rows(rows.texts, [names.get(label) for label in rows.labels])
        for path in paths:
            content = Path(path).read_text("utf-8")
            for old, new in names.items():
                content = content.replace(old, new)
            Path(path).write_text(content, "utf-8")
    expected = overview(explain_corpus(explainer, rows, target=settings.target), 2)
    out = tmp_path / "out"
    with corpus_overview(CorpusJob(ModelSource(explainer), paths, out, settings), 2) as view:
        for name, table in expected.tables().items():
            close(view.tables()[name], table)
        assert view.wrong == expected.wrong > 0
        assert view.misleading
        assert str(view) == str(expected)
        assert _rounded(render_overview(view)) == _rounded(render_overview(expected))
        assert view.corpus.skipped == dict(expected.corpus.skipped)
    close(list(rows_of(out, "texts.parquet")), records_of(text_columns(expected.corpus)))
    close(list(rows_of(out, "occurrences.parquet")), records_of(word_columns(expected.corpus)))


def test_only_the_texts_of_examples_are_kept(explainer, tmp_path, monkeypatch):
    monkeypatch.setattr("wherefrom.corpus.studies._SHOWN", 1)
    texts = [f"film {name}" for name in planted.WOMEN[:10]] * 9
    job = CorpusJob(ModelSource(explainer), texts, tmp_path, SETTINGS)
    with corpus_overview(job) as view:
        assert view.corpus.explained == 90
        assert 0 < len(view.corpus) < 60


def test_a_bias_study_of_parts_is_that_of_the_corpus(explainer, data, tmp_path):
    paths, rows = data
    expected = bias(explain_corpus(explainer, rows), planted.LEXICON)
    out = tmp_path / "out"
    job = CorpusJob(ModelSource(explainer), paths, out, SETTINGS)
    with bias_study(job, planted.LEXICON, NAMES) as study:
        study.write_summary(tmp_path / "parts")
        expected.write_summary(tmp_path / "whole")
        assert str(study) == str(expected)
        assert _rounded(render_bias(study)) == _rounded(render_bias(expected))
    parts, whole = (
        json.loads((tmp_path / name / "bias.json").read_text()) for name in ("parts", "whole")
    )
    close(parts["groups"], whole["groups"])
    close(parts["comparisons"], whole["comparisons"])
    for name in ("dropped", "suspects", "cased", "notes", "settings", "texts", "skipped"):
        assert parts[name] == whole[name]
    occurrences = list(rows_of(out, "occurrences.parquet"))
    assert len(occurrences) == len(expected.occurrences)
    for row, o, value in zip(occurrences, expected.occurrences, expected.relevance, strict=True):
        place = (int(expected.corpus.rows[o.text]), o.name, o.start)
        assert (row["row"], row["name"], row["start"]) == place
        assert row["relevance"] == pytest.approx(value, abs=1e-6)


def _rounded(page):
    """A page with its numbers to five digits: those of two sums may differ in the last."""
    return re.sub(r"-?\d+\.\d{4,}", lambda match: f"{float(match[0]):.3f}", page)


def test_whether_texts_are_cased_is_decided_over_all_parts(explainer, tmp_path):
    lower = [text.lower() for text in TEXTS]
    texts = TEXTS[:60] + lower[60:]  # the last part alone would be taken for lower case
    expected = bias(explain_corpus(explainer, texts), planted.LEXICON)
    job = CorpusJob(ModelSource(explainer), texts, tmp_path, SETTINGS)
    with bias_study(job, planted.LEXICON, NAMES) as study:
        assert study.cased
        assert study.dropped == expected.dropped
        assert [vars(e)["name"] for e in study.entities] == [e.name for e in expected.entities]


def test_a_study_resumes_and_refuses_other_names(explainer, data, tmp_path, monkeypatch):
    paths, _ = data
    job = CorpusJob(ModelSource(explainer), paths, tmp_path / "out", SETTINGS)
    calls = []

    def stop(done, total, note):
        calls.append(done)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with bias_study(job, planted.LEXICON, NAMES, progress=stop) as study:
        assert study.corpus.interruption.startswith("interrupted: 3")
    with bias_study(job, planted.LEXICON, NAMES, resume=True) as study:
        assert study.corpus.complete
    whole = bias(explain_corpus(explainer, data[1]), planted.LEXICON)
    assert str(study) == str(whole)
    with (
        pytest.raises(OSError, match="names"),
        bias_study(job, planted.LEXICON, NAMES | {"stop": ["anna"]}, resume=True),
    ):
        pass


def test_errors_before_the_model_runs(explainer, tmp_path, bert, wordpiece):
    three = ModelSource(Explainer(bert, wordpiece))
    with (
        pytest.raises(InputError, match="difference of two outputs"),
        bias_study(CorpusJob(three, TEXTS, tmp_path, SETTINGS), planted.LEXICON, NAMES),
    ):
        pass
    labelled = list(zip(TEXTS, ["other"] * len(TEXTS), strict=True))
    with (
        pytest.raises(InputError, match="1 label is not a class of the model: 'other'"),
        corpus_overview(CorpusJob(ModelSource(explainer), labelled, tmp_path, SETTINGS)),
    ):
        pass


def test_moments_of_parts_are_those_of_the_whole():
    values = np.random.default_rng(0).normal(3, 2, 100)
    merged = Moments()
    for part in (values[:1], values[1:60], values[60:60], values[60:]):
        merged = merged.merged(Moments.of(part))
    assert merged.mean == pytest.approx(values.mean(), abs=1e-12)
    assert merged.squares == pytest.approx(values.var() * 100, rel=1e-12)
    inside = np.zeros(100, dtype=bool)
    inside[[3, 50, 77]] = True
    view = naive_view(values, [3, 50, 77], merged)
    assert view.correlation == pytest.approx(np.corrcoef(values, inside)[0, 1], abs=1e-12)
    assert view.lift == pytest.approx(values[inside].mean() - values.mean(), abs=1e-12)
    assert naive_view(np.full(5, 0.1), [1]).correlation == 0
