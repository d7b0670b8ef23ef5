"""The audit: what it says of methods whose virtues are known, and how it is reached."""

import json
import re

import pytest
import torch
from typer.testing import CliRunner

import wherefrom
from benchmarks.tiny import model
from tests.modules import Pooled
from wherefrom import Explainer, audit
from wherefrom.audits.report import Audit, Finding
from wherefrom.cli import app
from wherefrom.errors import FileError, InputError, MethodError
from wherefrom.testing import untouched

LABELS = {0: "bad", 1: "good", 2: "mixed"}
TEXTS = ["The film is good, not dull.", "bad film"]
CHOSEN = ["lrp", "gradient_x_input", "integrated_gradients", "attention_last", "random"]


@pytest.fixture(scope="module")
def explainer(wordpiece):
    return Explainer(model("bert", "classify", id2label=LABELS).float(), wordpiece)


@pytest.fixture(scope="module")
def found(explainer):
    with untouched(explainer.subject.model):
        return audit(explainer, TEXTS, CHOSEN)


def verdicts(found, method):
    return {each.axiom: each.holds for each in found.of(method)}


def test_what_is_known_of_each_method_comes_out(found):
    assert verdicts(found, "lrp") == {
        "completeness": True,
        "sensitivity": True,
        "dummy": True,
        "symmetry": True,
        "invariance": True,
    }
    assert verdicts(found, "gradient_x_input") == {
        "completeness": False,
        "sensitivity": True,
        "dummy": True,
        "symmetry": True,
        "invariance": True,
        "conservation": False,
    }
    assert verdicts(found, "integrated_gradients")["completeness"]
    assert verdicts(found, "attention_last")["completeness"] is None
    assert verdicts(found, "attention_last")["dummy"] is False
    assert verdicts(found, "attention_last")["symmetry"]
    assert verdicts(found, "random")["symmetry"] is False
    assert found.sound() == ["lrp", "integrated_gradients"]


def test_numbers_go_with_the_words(found):
    (sums,) = [each for each in found.of("lrp") if each.axiom == "completeness"]
    assert 0 <= sums.value < 1e-4
    assert "adds up to the output" in sums.words
    (norms,) = [each for each in found.of("gradient_x_input") if each.axiom == "conservation"]
    assert 0.999 < norms.value <= 1  # what is lost
    assert "passes a LayerNorm (5 of them)" in norms.words


def test_the_number_is_the_worst_of_all_texts(explainer, found):
    each = [audit(explainer, [text], ["random"]).of("random") for text in TEXTS]
    both = {f.axiom: f.value for f in found.of("random")}
    for axiom, worst in (("completeness", max), ("dummy", max), ("sensitivity", min)):
        assert both[axiom] == pytest.approx(
            worst(f.value for one in each for f in one if f.axiom == axiom)
        )


def test_the_text_names_every_method_and_what_was_rewritten(found):
    lines = str(found)
    for name in CHOSEN:
        assert re.search(rf"^{name}$", lines, re.M)
    assert max(map(len, lines.splitlines())) <= 100
    shown = re.sub(r"\s+", " ", lines)
    assert "hidden units permuted (3 places)" in shown
    assert "Methods that pass every test: lrp, integrated_gradients." in shown


def test_that_no_rewrite_was_found_is_said():
    explainer = Explainer(Pooled(), forward=lambda module, given: module(_embedded(given)))
    found = audit(explainer, [[1, 2, 3, 4]], ["gradient_x_input", "attention_last"])
    assert verdicts(found, "gradient_x_input")["invariance"] is None
    assert verdicts(found, "attention_last") == {"run": None}
    assert "attention_last" not in found.sound()
    shown = re.sub(r"\s+", " ", str(found))
    assert "hidden units permuted (no places)" in shown
    assert "no rewrite of this model was found" in shown
    assert "cannot be used on this model: no attention call was seen" in shown
    assert "LayerNorm: none was seen." in shown
    assert "no call that could be split into its parts was seen" in shown


def _embedded(given):
    table = torch.linspace(-1, 1, 60, dtype=torch.float64).reshape(10, 6).cos()
    return torch.nn.functional.embedding(given["input_ids"], table)


def test_json_and_page_hold_it_all_and_text_is_escaped(found, tmp_path):
    data = json.loads(found.to_json(tmp_path / "audit.json"))
    assert data == json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    assert data["sound"] == found.sound()
    assert len(data["findings"]) == len(found.findings)
    nasty = Audit(
        "<b>", ("a <i> & b",), ("lrp",), (Finding("lrp", "dummy", False, 0.5, "“<u>”"),), {}, (), 1
    )
    page = nasty.to_html(tmp_path / "audit.html")
    assert page == (tmp_path / "audit.html").read_text(encoding="utf-8")
    for tag in ("<b>", "<i>", "<u>"):
        assert tag not in page
    assert "✗" in page
    with pytest.raises(FileError, match="cannot write"):
        found.to_json(tmp_path / "nowhere" / "audit.json")


def test_a_method_without_a_claim_that_adds_up_all_the_same_is_told_so():
    explainer = Explainer(Summed(), forward=lambda module, given: module(_embedded(given)))
    (sums, *_) = audit(explainer, [[1, 2, 3]], ["gradient_x_input"]).findings
    assert sums.holds
    assert "adds up to the output here" in sums.words


class Summed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(6, 3).double()

    def forward(self, x):
        return self.head(x.sum(1))


def test_on_the_embedded_model_lrp_keeps_every_axiom_and_transformer_attribution_does_not():
    found = audit(wherefrom.load("sentiment"), TEXTS[1:], ["lrp", "transformer_attribution"])
    assert found.sound() == ["lrp"]
    assert verdicts(found, "transformer_attribution")["invariance"] is False
    assert {kind: each["found"] for kind, each in found.rewrites.items()} == {
        "hidden": 5,
        "heads": 4,
        "channels": 4,
        "values": 4,
        "norms": 1,
    }


def test_bad_input_is_told(explainer):
    with pytest.raises(InputError, match="no texts"):
        audit(explainer, [])
    with pytest.raises(InputError, match="empty"):
        audit(explainer, [" "])
    with pytest.raises(MethodError, match='did you mean "lrp"'):
        audit(explainer, TEXTS, ["lpr"])


def test_progress_runs_to_its_end(explainer):
    seen = []
    audit(explainer, TEXTS[1:], ["lrp"], progress=lambda *step: seen.append(step))
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert seen[-1][0] == seen[-1][1]


def test_a_language_model_and_one_that_translates_are_audited_too(bytepairs, wordpiece):
    for family, task, tokenizer in (("gpt2", "write", bytepairs), ("t5", "translate", wordpiece)):
        sizes = {"vocab_size": 280} if family == "gpt2" else {}
        made = Explainer(model(family, task, **sizes), tokenizer)
        found = audit(made, ["good film"], ["lrp", "gradient"])
        assert verdicts(found, "lrp")["completeness"]
        assert verdicts(found, "lrp")["dummy"]


def test_the_command_says_it_in_words(explainer, tmp_path, wordpiece):
    folder, page, data = tmp_path / "model", tmp_path / "audit.html", tmp_path / "audit.json"
    explainer.subject.model.save_pretrained(folder)
    wordpiece.save_pretrained(folder)
    given = ["--model", str(folder), "--methods", "lrp,random"]
    done = CliRunner().invoke(
        app, ["audit", "good film", *given, "--html", str(page), "--json", str(data)]
    )
    assert done.exit_code == 0, done.output
    assert "adds up to the output" in done.stdout
    assert "Which axioms do explanations of" in page.read_text(encoding="utf-8")
    assert json.loads(data.read_text(encoding="utf-8"))["texts"] == ["good film"]
    done = CliRunner().invoke(app, ["audit", *given, "--json", "-"])
    assert json.loads(done.stdout)["texts"] == list(wherefrom.audits.audit.TEXTS)
    done = CliRunner().invoke(app, ["audit", "good", "--methods", "lpr", "--model", str(folder)])
    assert done.exit_code == 2
    assert 'did you mean "lrp"' in done.stderr
