"""The library under attack: every input is explained, or refused by an error of ours."""

import csv
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers import assert_unchanged
from tests.hostile.corpus import EXPLAINED, LABELS, SETTINGS, TABLES, TEXTS
from wherefrom import Explainer, Explanation, WherefromError, evaluate, read_table
from wherefrom.cli.reading import parsed
from wherefrom.corpus import explain_corpus, overview
from wherefrom.errors import TargetError
from wherefrom.inputs.table import records
from wherefrom.show.corpus import render_overview
from wherefrom.show.terminal import render, render_rows
from wherefrom.testing import snapshot

CONTROLS = {chr(code) for code in (*range(32), *range(127, 160), *range(0x202A, 0x202F))} - {"\n"}


@pytest.fixture(scope="module")
def explainer(bert, wordpiece):
    before = snapshot(bert)
    yield Explainer(bert, wordpiece)
    assert_unchanged(before, snapshot(bert))


def entries(table):
    return pytest.mark.parametrize("case", list(table.values()), ids=list(table))


def refused(words, call):
    with pytest.raises(WherefromError) as failure:
        call()
    assert words in str(failure.value)
    assert "\n" not in str(failure.value).replace("go\nod", "")


@entries(TEXTS)
def test_a_text_is_explained_and_shown_or_refused(explainer, case, tmp_path):
    text, error = case
    if error != EXPLAINED:
        refused(error, lambda: explainer(text))
        return
    explanation = explainer(text)
    assert explanation.text == text
    assert np.isfinite(explanation.scores).all()
    assert abs(explanation.ledger.residual) < 1e-9
    explanation.to_json(tmp_path / "a.json")
    again = Explanation.from_json(tmp_path / "a.json")
    assert (again.text, again.units) == (text, explanation.units)
    page = explanation.to_html()
    assert "<script>alert" not in page
    assert " onload='alert" not in page
    for shown in (str(explanation), render_rows([explanation], color=False)):
        assert not set(shown) & CONTROLS


def test_no_escape_of_a_text_reaches_a_terminal_with_colours(explainer):
    for text, error in TEXTS.values():
        if error == EXPLAINED and len(text) < 1000:
            for shown in (
                render(explainer(text), color=True),
                render_rows([explainer(text)], color=True),
            ):
                # rich's own codes set colours: ESC [ numbers m
                codes = shown.split("\x1b[")[1:]
                assert shown.count("\x1b") == len(codes)
                assert all(code.split("m")[0].replace(";", "").isdecimal() for code in codes)
                assert not set(shown) & (CONTROLS - {"\x1b"})


def test_brackets_in_a_name_are_not_markup(explainer):
    explanation = replace(
        explainer("good"), method="[bold]x[/]", label="[bold]x[/]", model="[/red]"
    )
    for shown in (render(explanation, color=False), render_rows([explanation], color=False)):
        assert "[bold]x[/]" in shown
        assert "[/red]" in shown


def test_all_texts_at_once_are_counted_one_by_one(explainer, tmp_path):
    texts = [text for text, _ in TEXTS.values()]
    bad = sum(error != EXPLAINED for _, error in TEXTS.values())
    results = explainer.encode(texts)
    assert sum(isinstance(result, WherefromError) for result in results) == bad
    result = evaluate(explainer, texts, ["random"], ["entropy"], out=tmp_path / "evaluation")
    only_special = result.skipped["only special tokens"]
    assert result.samples + only_special + bad == len(texts)
    assert sum(result.skipped.values()) == bad + only_special
    corpus = explain_corpus(explainer, texts, target=1, against=0, out=tmp_path / "corpus")
    assert len(corpus) + sum(corpus.skipped.values()) == len(texts)
    view = overview(corpus, min_count=1)
    view.write(tmp_path / "corpus")
    render_overview(view)
    rows = list(records(tmp_path / "corpus" / "texts.csv"))
    assert [int(row["row"]) for row in rows] == corpus.rows.tolist()
    assert not [row["text"] for row in rows if row["text"].startswith(("=", "+", "-", "@"))]


@entries(TABLES)
def test_a_table_is_read_or_refused(case, tmp_path):
    path = tmp_path / case.name
    path.write_bytes(case.content)
    limit = csv.field_size_limit()
    if case.error != EXPLAINED:
        refused(case.error, lambda: read_table(path))
    else:
        assert len(read_table(path)) == case.rows
    assert csv.field_size_limit() == limit


@entries(LABELS)
def test_a_label_is_found_or_refused(explainer, case):
    label, error = case
    if error != EXPLAINED:
        refused(error, lambda: explainer("good film", target=label))
        refused(error, lambda: explainer("good film", target=0, against=label))
        refused(error, lambda: evaluate(explainer, [("good film", label)], ["random"]))
    else:
        assert explainer("good film", target=label).target.label == "good"


@pytest.mark.parametrize(
    "target", [10**30, -(10**30), 1 << 63, 1.5, float("nan"), b"1", [], object()]
)
def test_a_target_of_any_type_is_refused(explainer, gpt2, bytepairs, target):
    for model in (explainer, Explainer(gpt2, bytepairs)):
        with pytest.raises(TargetError):
            model("the movie", target=target)


@entries(SETTINGS)
def test_a_setting_is_taken_or_refused(explainer, case):
    method, setting, error = case
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of Python, about the literal
        if error != EXPLAINED:
            refused(error, lambda: explainer("good film", method, **parsed([setting])))
        else:
            explainer("good film", method, **parsed([setting]))


def test_labels_of_any_kind_in_a_file_are_refused(explainer, tmp_path):
    for value in ("9" * 50, "[1]", '{"a": 1}', "1.5", '"²"', '"\\ud800"', "-1"):
        path = tmp_path / "a.jsonl"
        path.write_text(json.dumps({"text": "good"})[:-1] + f', "label": {value}}}')
        refused("there is no", lambda path=path: evaluate(explainer, read_table(path), ["random"]))
