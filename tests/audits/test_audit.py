"""The audit: its verdicts on methods of which they are known, on every kind of input."""

import json
import re
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from typer.testing import CliRunner

import wherefrom
from benchmarks.tiny import model
from tests.audits.conftest import EXAMPLES
from tests.modules import Pooled
from wherefrom import Explainer, audit, method
from wherefrom.audits.audit import TEXTS as DEFAULT_TEXTS
from wherefrom.audits.audit import Audit, Finding
from wherefrom.audits.propositions import Collapse, Conserved
from wherefrom.cli import app
from wherefrom.errors import FileError, InputError, MethodError
from wherefrom.methods import Method, Scores
from wherefrom.testing import untouched

LABELS = {0: "bad", 1: "good", 2: "mixed"}
TEXTS = ["The film is good, not dull.", "bad film"]
METHODS = ["lrp", "gradient_x_input", "integrated_gradients", "attention_last", "random"]
MOLECULE = "CC(=O)Nc1ccc(O)cc1"


@pytest.fixture(scope="module")
def explainer(wordpiece):
    return Explainer(model("bert", "classify", id2label=LABELS).float(), wordpiece)


@pytest.fixture(scope="module")
def result(explainer):
    steps = []
    with untouched(explainer.runner.model):
        result = audit(explainer, TEXTS, METHODS, progress=lambda *step: steps.append(step))
    counts = [done for done, _, _ in steps]
    total = steps[-1][1]
    assert counts == list(range(total + 1))  # every step is reported once
    assert {step[1] for step in steps} == {total}
    return result


def verdicts(result, method):
    return {finding.axiom: finding.holds for finding in result.of(method)}


def finding(result, method, axiom):
    (entry,) = [entry for entry in result.of(method) if entry.axiom == axiom]
    return entry


def test_known_verdicts_on_a_text_model(result):
    held = dict.fromkeys(("completeness", "sensitivity", "dummy", "symmetry", "invariance"), True)
    assert verdicts(result, "lrp") == held
    failed = {"completeness": False, "conservation": False}
    assert verdicts(result, "gradient_x_input") == held | failed
    assert verdicts(result, "integrated_gradients") == held
    assert verdicts(result, "attention_last") == held | {"completeness": None, "dummy": False}
    failed = {"completeness": None, "dummy": False, "symmetry": False}
    assert verdicts(result, "random") == held | failed
    assert result.sound() == ["lrp", "integrated_gradients"]


def test_findings_carry_numbers_and_words(result):
    sums = finding(result, "lrp", "completeness")
    assert 0 <= sums.value < 1e-4
    assert sums.words.startswith("adds up to the output (largest gap ")
    norms = finding(result, "gradient_x_input", "conservation")
    assert 0.999 < norms.value <= 1  # lost
    assert norms.words.endswith("of its relevance through each of 5 LayerNorms")


@pytest.mark.parametrize(
    ("name", "item", "noun", "methods"),
    [
        ("digits", EXAMPLES / "three.png", "a patch", ["lrp", "attention_rollout"]),
        ("bace", MOLECULE, "an atom", ["lrp", "attention_rollout"]),
    ],
)
def test_lrp_keeps_every_axiom_on_images_and_molecules(name, item, noun, methods):
    explainer = wherefrom.load(name)
    with untouched(explainer.runner.model):
        result = audit(explainer, item, methods)
    assert result.sound() == ["lrp"]
    assert set(verdicts(result, "lrp").values()) == {True}
    assert len(verdicts(result, "lrp")) == 5
    assert verdicts(result, "attention_rollout")["dummy"] is False
    # no two places share a position, and a sum of two runs has no one map
    assert verdicts(result, "attention_rollout")["symmetry"] is None
    words = finding(result, "lrp", "dummy").words
    assert words.startswith(f"{noun} that the output does not depend on scores 0 (")
    assert result.inputs == (getattr(item, "name", item),)
    assert all(rewrite["places"] for rewrite in result.rewrites.values())


def test_rows_of_numbers_are_audited_without_a_forward_function():
    torch.manual_seed(0)
    rows = torch.randn(2, 4, 6, dtype=torch.float64)
    result = audit(Explainer(Summed()), rows, ["lrp"])  # its argument is not called "x"
    assert verdicts(result, "lrp")["completeness"]
    assert [name.partition(" (4 ")[0] for name in result.inputs] == ["input 1", "input 2"]


def test_the_number_is_the_worst_of_all_inputs(explainer, result):
    single = [audit(explainer, text, ["random"]) for text in TEXTS]
    for axiom, worst in (("completeness", max), ("dummy", max), ("sensitivity", min)):
        values = [finding(entry, "random", axiom).value for entry in single]
        assert finding(result, "random", axiom).value == pytest.approx(worst(values))


def test_settings_of_one_method_are_told_apart(explainer):
    crude = method("integrated_gradients", steps=1, rule="right")
    result = audit(explainer, TEXTS[1:], [crude, "integrated_gradients"])
    first, second = result.methods
    assert (first, second) == (crude.label, "integrated_gradients")
    assert verdicts(result, first)["completeness"] is False
    assert "claims to add up" in finding(result, first, "completeness").words
    assert verdicts(result, second)["completeness"]
    assert result.sound() == [second]


@dataclass(frozen=True)
class Fixed(Method):
    """The same score for all units but the first."""

    name: ClassVar[str] = "fixed"
    first: float = 0.0

    def scores(self, case):
        values = torch.ones(case.batch.mask.shape, dtype=torch.float64)
        values[:, 0] = self.first
        return Scores(values)


def test_a_small_score_is_not_called_zero():
    explainer = Explainer(Summed(), forward=lambda module, tensors: module(_embedded(tensors)))
    result = audit(explainer, [[1, 2, 3]], [Fixed(0.0), Fixed(1e-7)])
    assert finding(result, "fixed", "sensitivity").holds is False
    assert (
        "scores “#1” zero, but the output changes by"
        in finding(result, "fixed", "sensitivity").words
    )
    assert finding(result, "fixed(first=1e-07)", "sensitivity").holds


def test_the_text_names_every_method_and_rewrite(result):
    text = str(result)
    for name in METHODS:
        assert re.search(rf"^{re.escape(name)} +[✓✗–]", text, re.M)
    assert max(map(len, text.splitlines())) <= 100
    flat = re.sub(r"\s+", " ", text)
    assert "5 methods on 2 inputs. Methods that fail no test: lrp, integrated_gradients." in flat
    assert "hidden units permuted (3 places)" in flat
    assert "Attention (2 calls): plain gradients create or lose up to" in flat


def test_the_table_has_the_sign_and_value_of_each_finding_and_words_for_what_fails():
    findings = (
        Finding("good", "completeness", True, 1.5e-7, "adds up"),
        Finding("good", "dummy", True, 0.0, "is zero"),
        Finding("bad", "completeness", False, 0.42, "does not add up"),
        Finding("bad", "dummy", None, None, "dummy not tested"),
    )
    result = Audit("tiny", ("a",), ("good", "bad"), findings, {}, (), 1.0)
    lines = [line.split() for line in str(result).splitlines()]
    assert ["good", "✓", "1.5e-07", "✓", "0"] in lines
    assert ["bad", "✗", "0.42", "–"] in lines
    for holds, sign in ((True, "✓"), (False, "✗")):
        turned = replace(result, findings=(replace(findings[0], holds=holds), *findings[1:]))
        assert re.search(rf"^good +{sign} 1\.5e-07", str(turned), re.M)
    assert "✗ does not add up." in str(result)
    assert "– dummy not tested." in str(result)
    assert "is zero" not in str(result)


def test_its_lines_fit_the_terminal_and_the_page_does_not_depend_on_it(result, monkeypatch):
    page = result.to_html()
    monkeypatch.setenv("COLUMNS", "60")
    assert 50 < max(map(len, str(result).splitlines())) <= 60
    assert result.to_html() == page


def test_what_could_not_be_tested_is_listed():
    explainer = Explainer(Pooled(), forward=lambda module, tensors: module(_embedded(tensors)))
    result = audit(explainer, [[1, 2, 3, 4]], ["gradient_x_input", "attention_last"])
    assert verdicts(result, "gradient_x_input")["invariance"] is None
    assert verdicts(result, "attention_last") == {"run": None}
    assert "attention_last" not in result.sound()
    flat = re.sub(r"\s+", " ", str(result))
    assert "hidden units permuted (no places)" in flat
    assert "no rewrite of this model was found" in flat
    assert "not applicable to this model: no attention call was seen" in flat
    assert "LayerNorm: no call was seen." in flat
    assert "Attention: no call could be split into queries, keys and values." in flat


def _embedded(tensors):
    table = torch.linspace(-1, 1, 60, dtype=torch.float64).reshape(10, 6).cos()
    return torch.nn.functional.embedding(tensors["input_ids"], table)


class Summed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = torch.nn.Linear(6, 3).double()

    def forward(self, rows):
        return self.head(rows.sum(1))


def test_a_method_that_adds_up_without_claiming_it_passes():
    explainer = Explainer(Summed(), forward=lambda module, tensors: module(_embedded(tensors)))
    sums = finding(
        audit(explainer, [[1, 2, 3]], ["gradient_x_input"]), "gradient_x_input", "completeness"
    )
    assert sums.holds
    assert sums.words.startswith("adds up to the output here, biases included")


def test_notes_on_the_model_tell_the_worst_input(explainer, monkeypatch):
    measured = iter(
        Conserved([Collapse(0, 1, 1, 0.02 * k)], 0.1 * k, 0.15 * k, [1.5 * k, -k], 0.2 * k)
        for k in (2, 1)
    )
    monkeypatch.setattr("wherefrom.audits.audit.propositions", lambda *case: next(measured))
    attention, norms = audit(explainer, TEXTS, ["lrp_ah_ln"]).conservation
    assert "create or lose up to 3 of relevance" in attention
    assert "(error 30 %)" in attention
    assert "pass at most 4 % of" in norms
    assert "(error 20 %)" in norms


def test_json_and_page_are_complete_and_escaped(result, tmp_path):
    data = json.loads(result.to_json(tmp_path / "audit.json"))
    assert data == json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    assert data["sound"] == result.sound()
    assert data["inputs"] == TEXTS
    assert len(data["findings"]) == len(result.findings)
    assert "“" in result.to_json()  # readable, not escaped
    undefined = replace(result, seconds=float("nan"))
    with pytest.raises(ValueError, match="not JSON compliant"):
        undefined.to_json()
    hostile = Audit(
        "<b>", ("a <i> & b",), ("lrp",), (Finding("lrp", "dummy", False, 0.5, "“<u>”"),), {}, (), 1
    )
    page = hostile.to_html()
    assert page == hostile.to_html(tmp_path / "audit.html").read_text(encoding="utf-8")
    for tag in ("<b>", "<i>", "<u>"):
        assert tag not in page
    assert "✗ 0.5" in page
    with pytest.raises(FileError, match="cannot write"):
        result.to_json(tmp_path / "nowhere" / "audit.json")


def test_transformer_attribution_depends_on_how_the_embedded_model_is_written():
    result = audit(wherefrom.load("sentiment"), TEXTS[1:], ["lrp", "transformer_attribution"])
    assert result.sound() == ["lrp"]
    assert verdicts(result, "transformer_attribution")["invariance"] is False
    assert {kind: rewrite["places"] for kind, rewrite in result.rewrites.items()} == {
        "hidden": 5,
        "heads": 4,
        "channels": 4,
        "values": 4,
        "norms": 1,
    }


def test_bad_input_is_an_error(explainer):
    with pytest.raises(InputError, match="list of inputs is empty"):
        audit(explainer, [])
    with pytest.raises(InputError, match="empty"):
        audit(explainer, [" "])
    with pytest.raises(MethodError, match='did you mean "lrp"'):
        audit(explainer, TEXTS, ["lpr"])
    with pytest.raises(InputError, match="digits does not read texts: pass inputs"):
        audit(wherefrom.load("digits"))


@pytest.mark.parametrize(
    ("family", "task", "sizes"),
    [("gpt2", "write", {"vocab_size": 280}), ("t5", "translate", {})],
)
def test_models_that_write_are_audited_too(family, task, sizes, bytepairs, wordpiece):
    tokenizer = bytepairs if family == "gpt2" else wordpiece
    result = audit(Explainer(model(family, task, **sizes), tokenizer), "good film", ["lrp"])
    assert verdicts(result, "lrp")["completeness"]
    assert verdicts(result, "lrp")["dummy"]


def test_the_command_prints_and_writes_the_audit(explainer, tmp_path, wordpiece):
    folder, page, data = tmp_path / "model", tmp_path / "audit.html", tmp_path / "audit.json"
    explainer.runner.model.save_pretrained(folder)
    wordpiece.save_pretrained(folder)
    options = ["--model", str(folder), "--methods", "random"]
    run = CliRunner().invoke(
        app, ["audit", "good film", *options, "--html", str(page), "--json", str(data)]
    )
    assert run.exit_code == 0, run.output
    assert re.search(r"^random +[✓✗–] ", run.stdout, re.M)
    assert "Methods that fail no test" in page.read_text(encoding="utf-8")
    assert json.loads(data.read_text(encoding="utf-8"))["inputs"] == ["good film"]
    run = CliRunner().invoke(app, ["audit", *options, "--json", "-"])
    assert json.loads(run.stdout)["inputs"] == list(DEFAULT_TEXTS)
    run = CliRunner().invoke(app, ["audit", "good", "--methods", "lpr", "--model", str(folder)])
    assert run.exit_code == 2
    assert 'did you mean "lrp"' in run.stderr


@pytest.mark.parametrize(
    ("arguments", "model_name", "inputs"),
    [
        ([str(EXAMPLES / "three.png")], "digits", ["three.png"]),
        (["--smiles", MOLECULE], "bace", [MOLECULE]),
    ],
)
def test_the_command_takes_images_and_molecules(arguments, model_name, inputs):
    run = CliRunner().invoke(app, ["audit", *arguments, "--methods", "random", "--json", "-"])
    assert run.exit_code == 0, run.output
    data = json.loads(run.stdout)
    assert (data["model"], data["inputs"]) == (model_name, inputs)
