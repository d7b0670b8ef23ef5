"""Results in notebooks, as pages, tables and plots; and equal to themselves after a round trip."""

import itertools
import pickle
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import wherefrom
from tests.corpus.test_bias import study as bias_study
from wherefrom import Answer, Audit, Comparison, Evaluation, Explainer, Explanation
from wherefrom.core.progress import shown, terminal_bar
from wherefrom.corpus.explain import explain_corpus
from wherefrom.corpus.views import overview
from wherefrom.errors import FileError, InputError, MethodError, MissingExtra
from wherefrom.show.explanation_figure import waterfall_bars
from wherefrom.show.text_marks import signed, whole_percent

TEXTS = ["the film is good", "a dull movie", "i love the great script ."]


@pytest.fixture(scope="module")
def explainer(bert, wordpiece):
    return Explainer(bert, wordpiece)


@pytest.fixture(scope="module")
def results(explainer, gpt2):
    """One of every kind of result."""
    return {
        "answer": Explainer(gpt2).answer([2, 5, 9, 8], [17, 3]),
        "explanation": explainer(TEXTS[0]),
        "comparison": explainer.compare(TEXTS[0], ["lrp", "gradient"]),
        "evaluation": wherefrom.evaluate(
            explainer, TEXTS, ["lrp", "random"], ["activation", "layers"], progress=False
        ),
        "audit": wherefrom.audit(explainer, TEXTS[:1], ["lrp"], progress=False),
        "overview": overview(explain_corpus(explainer, TEXTS * 6), min_count=2),
        "bias": bias_study(0, 1.0),
    }


KINDS = ("answer", "explanation", "comparison", "evaluation", "audit", "overview", "bias")


@pytest.mark.parametrize("kind", KINDS)
def test_a_notebook_shows_every_result_without_scripts(results, kind):
    part = results[kind]._repr_html_()
    assert part.startswith('<div class="wherefrom">')
    assert "<h1>" in part
    assert "<script" not in part
    assert "<html" not in part


def test_a_notebook_shows_an_answer_without_its_matrix(gpt2):
    answer = Explainer(gpt2).answer([2, 5, 9, 8], [17, 3])
    assert answer._repr_html_() == answer.of()._repr_html_()
    assert "rows" not in answer._cache


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_written_and_its_path_returned(results, kind, tmp_path):
    path = tmp_path / "page.html"
    assert results[kind].to_html(path) == path
    page = path.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "default-src 'none'" in page


@pytest.mark.parametrize("kind", ["explanation", "comparison", "evaluation", "audit"])
def test_a_pickle_is_equal(results, kind):
    again = pickle.loads(pickle.dumps(results[kind]))
    assert again == results[kind]
    assert type(again) is type(results[kind])


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("explanation", Explanation), ("comparison", Comparison), ("evaluation", Evaluation),
        ("audit", Audit),
    ],
)  # fmt: skip
def test_json_and_back_is_equal(results, kind, read, tmp_path):
    path = tmp_path / "result.json"
    results[kind].to_json(path)
    assert read.from_json(path) == results[kind]


def test_another_score_is_another_explanation(results):
    from dataclasses import replace

    one = results["explanation"]
    other = replace(one, scores=one.scores + np.float32(1e-3))
    assert one != other
    assert one != "lrp"
    same = Explanation.from_json(one.to_json())
    assert {one, same} == {one}


@pytest.mark.parametrize("damaged", ["{}", '{"schema": "wherefrom/audit/1"}', "[1]", "no json"])
def test_a_damaged_audit_is_an_error(tmp_path, damaged):
    path = tmp_path / "audit.json"
    path.write_text(damaged, encoding="utf-8")
    with pytest.raises(FileError, match=r"audit of schema|audit is damaged|a list of|not JSON"):
        Audit.from_json(path)


@pytest.mark.parametrize("kind", [Answer, Audit, Comparison, Evaluation, Explanation])
@pytest.mark.parametrize(
    ("content", "says"), [("[" * 100_000, "nested too deeply"), ("[1" + "0" * 5000, "digits")]
)
def test_json_that_python_cannot_hold_is_an_error_with_its_name(tmp_path, kind, content, says):
    path = tmp_path / "result.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(FileError, match=rf"result\.json .*{says}"):
        kind.from_json(path)
    with pytest.raises(FileError, match=f"this .*{says}"):
        kind.from_json(content)


def test_a_comparison_is_read_from_a_list_or_from_one_explanation(results, tmp_path):
    with pytest.raises(FileError, match="cannot read"):
        Comparison.from_json(tmp_path / "none.json")
    single = tmp_path / "one.json"
    results["explanation"].to_json(single)
    assert Comparison.from_json(single) == [results["explanation"]]
    with pytest.raises(FileError, match="not JSON"):
        Comparison.from_json("[1,")


def test_frames_have_the_rows_of_the_results(results):
    pytest.importorskip("pandas")
    explanation = results["explanation"]
    frame = explanation.to_frame()
    assert frame["unit"].tolist() == [unit.text for unit in explanation.units]
    np.testing.assert_array_equal(frame["score"], explanation.scores.astype(float))
    np.testing.assert_array_equal(frame["word"], explanation.parts["word"].astype(float))
    answer = results["answer"]
    frame = answer.to_frame()
    assert frame["unit"].tolist() == [unit.text for unit in answer.units[:-1]]
    assert frame["part"].tolist() == [unit.field for unit in answer.units[:-1]]
    np.testing.assert_array_equal(frame["score"], answer.of().scores.astype(float))
    compared = results["comparison"]
    wide = compared.to_frame()
    assert wide.columns.tolist() == ["unit", *(each.label or each.method for each in compared)]
    np.testing.assert_array_equal(wide.iloc[:, 2], compared[1].scores.astype(float))
    means = results["evaluation"].to_frame()
    assert means[["method", "metric", "mean"]].iloc[0].tolist()[:2] == ["lrp", "activation"]
    findings = results["audit"].to_frame()
    assert len(findings) == len(results["audit"].findings)
    assert results["overview"].to_frame()["word"].tolist() == [
        word.word for word in results["overview"].words
    ]
    assert len(results["bias"].to_frame()) == len(results["bias"].entities)


def test_a_frame_without_pandas_names_the_extra(results, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"wherefrom\[frame\]"):
        results["audit"].to_frame()


def test_the_waterfall_ends_at_the_output(results):
    explanation = results["explanation"]
    bars = waterfall_bars(explanation, 2)
    assert bars[0][1] == 0
    for (_, start, value), (_, following, _) in itertools.pairwise(bars[:-1]):
        assert start + value == pytest.approx(following, abs=1e-9)
    assert sum(bars[-2][1:]) == pytest.approx(explanation.output, rel=1e-9)
    assert bars[-1] == ("output", 0.0, pytest.approx(explanation.output))
    # the two strongest words by name, the rest as one, the residual no larger than the ledger's
    assert bars[2][0] == "other units"
    assert abs(bars[-2][2]) < 1e-5 * abs(explanation.output)


def test_plots_are_figures_or_files(results, tmp_path):
    pytest.importorskip("matplotlib")
    explanation = results["explanation"]
    assert explanation.plot()._repr_png_().startswith(b"\x89PNG")
    path = tmp_path / "bars.png"
    assert explanation.plot("bar", path=path, units=3) == path
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match=r'Use plot\("bar"\)'):
        results["comparison"][1].plot("waterfall")


@pytest.mark.parametrize("kind", KINDS)
def test_a_fragment_is_what_a_notebook_shows(results, kind, tmp_path):
    fragment = results[kind].to_html(fragment=True)
    assert fragment == results[kind]._repr_html_()
    path = results[kind].to_html(tmp_path / "part.html", fragment=True)
    assert path.read_text(encoding="utf-8") == fragment


def test_a_unit_can_be_chosen_without_a_script_and_says_its_score_and_share(results):
    explanation = results["explanation"]
    fragment = explanation.to_html(fragment=True)
    spans = re.findall(r'<span class="u[^"]*" tabindex="0" title="([^"]*)"', fragment)
    assert len(spans) == len(explanation)
    for note, score in zip(spans, explanation.scores.tolist(), strict=True):
        share = whole_percent(score / explanation.output)
        assert note.startswith(signed(score))
        assert note.endswith(f"{share} of the output, {signed(explanation.output)}")
    without = results["comparison"][1].to_html(fragment=True)  # no ledger: nothing adds up
    assert "of the output, " not in re.search(r'tabindex="0" title="([^"]*)"', without)[1]
    assert ".u[tabindex]:focus::before{content:attr(title)" in fragment


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ig", '"integrated_gradients"'), ("Saliency", '"gradient"'),
        ("shap", 'here it is called "shapley"'),
        ("KernelSHAP", "captum:KernelShap"),
        ("lime", "captum:Lime"), ("captum", "captum:NAME"), ("attn-lrp", '"attn_lrp"'),
        ("leave_one_out", 'here it is called "occlusion"'), ("lpr", 'did you mean "lrp"'),
        ("grad-cam", 'the nearest here is "gradient_x_attention"'),
        ("AttCAT", 'the nearest here is "gradient_x_attention"'),
        ("epsilon_lrp", 'the nearest here is "lrp"'), ("zennit", 'the nearest here is "lrp"'),
        ("DeepTaylor", 'the nearest here is "lrp"'), ("ali", 'here it is called "lrp_ah_ln"'),
    ],
)  # fmt: skip
def test_names_that_people_know_are_hinted_at(name, hint):
    with pytest.raises(MethodError) as error:
        wherefrom.method(name)
    assert hint in str(error.value)


class Kernel:
    """What a notebook's kernel shows, in place of IPython."""

    def __init__(self):
        self.shown = []
        self.module = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=self))
        self.display = SimpleNamespace(HTML=str, display=self._display)

    def _display(self, markup, display_id):
        assert display_id
        self.shown.append(markup)
        return SimpleNamespace(update=self.shown.append)


def test_progress_in_a_notebook_needs_no_widgets(monkeypatch):
    kernel = Kernel()
    monkeypatch.setitem(sys.modules, "IPython", kernel.module)
    monkeypatch.setitem(sys.modules, "IPython.display", kernel.display)
    clock = iter(range(100))
    monkeypatch.setattr(
        "wherefrom.core.progress.time", SimpleNamespace(monotonic=lambda: next(clock))
    )
    with shown("explaining") as advance:
        advance(0, 4, "lrp")
        advance(2, 4, "<b>")
    assert kernel.shown[0].startswith('<progress value="0" max="4"></progress> explaining: 0 of 4')
    assert "2 of 4" in kernel.shown[1]
    assert "&lt;b&gt;" in kernel.shown[1]
    assert kernel.shown[-1] == ""


def test_a_short_call_shows_nothing_and_false_silences(monkeypatch):
    kernel = Kernel()
    monkeypatch.setitem(sys.modules, "IPython", kernel.module)
    monkeypatch.setitem(sys.modules, "IPython.display", kernel.display)
    monkeypatch.setattr("wherefrom.core.progress.time", SimpleNamespace(monotonic=lambda: 0.0))
    with shown("explaining") as advance:
        advance(1, 2, "")
    with shown("explaining", False) as advance:
        advance(1, 2, "")
    assert kernel.shown == []


def test_a_bar_in_a_terminal_appears_only_in_a_long_call(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    timers = []

    class Timer:
        def __init__(self, seconds, call):
            self.seconds, self.call = seconds, call
            timers.append(self)

        def start(self):
            pass

        cancel = join = start

    monkeypatch.setattr("wherefrom.core.progress.threading", SimpleNamespace(Timer=Timer))
    with terminal_bar("explaining", 1.0) as advance:
        advance(0, 1, "lrp")
    assert "explaining" not in capsys.readouterr().err
    with terminal_bar("explaining", 1.0):
        timers[-1].call()  # the second is over, and nothing was reported
    assert timers[-1].seconds == 1.0
    assert "explaining" in capsys.readouterr().err


def test_long_calls_report_their_steps(explainer, monkeypatch):
    calls = []
    for module in ("explainer", "explaining.request"):
        monkeypatch.setattr(f"wherefrom.{module}.shown", _recorder(calls))
    explainer(TEXTS, batch_size=1)
    explainer.compare(TEXTS[0], ["lrp", "gradient"])
    assert [call for call in calls if call[0] == "explaining" and call[3] is None] == [
        ("explaining", done, 3, None) for done in range(3)
    ]
    assert [(c[1], c[2]) for c in calls if c[0] == "comparing"] == [(0, 2), (1, 2)]


def _recorder(calls):
    from contextlib import contextmanager

    @contextmanager
    def shown(what, progress=None):
        yield lambda done, total, note: calls.append((what, done, total, progress))

    return shown
