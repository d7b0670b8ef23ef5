"""`wherefrom evaluate` on a tiny model: the files it writes, and its error messages."""

import json
import os
import re
import sys

import pytest
from PIL import Image
from typer.testing import CliRunner

from examples.draw import DIGITS, drawn
from tests.command_line import saved_classifier
from wherefrom.cli import app
from wherefrom.cli.output import progress as _progress
from wherefrom.evaluation import evaluate as evaluation
from wherefrom.evaluation.results import Evaluation

ROWS = ["the film is good,good", "a dull movie,bad", "i love the great script .,good", "bad,mixed"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, wordpiece):
    return saved_classifier(tmp_path_factory.mktemp("model"), wordpiece)


@pytest.fixture
def run(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*args, rows=ROWS, header="text,label", out="out", methods="lrp,random"):
        data = tmp_path / "data.csv"
        data.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
        command = ["evaluate", data, "--out", tmp_path / out, "--methods", methods]
        return CliRunner().invoke(app, [*map(str, [*command, *args]), "--model", str(folder)])

    return call


def refused(done, *words):
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("wherefrom: ")
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_it_writes_tables_pictures_and_a_page(run, tmp_path):
    done = run("--metrics", "activation,pruning,conservation,flip,layers,attention_erasure")
    assert done.exit_code == 0, done.output
    assert "AUAC ↑" in done.stdout
    assert re.search(r"^method +slope +R²", done.stdout, re.M)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        ".lock", "checkpoint", "evaluation.json", "report.html",
        "summary.csv", "conservation.csv", "layers.csv", "collapse.csv",
        "attention_erasure_weights.csv", "attention_erasure_flips.csv",
        "attention_erasure_to_flip.csv",
        "activation.png", "pruning.png", "conservation.png", "flip.png", "agreement.png",
        "layers.png", "collapse.png", "attention_erasure.png", "attention_to_flip.png",
    }  # fmt: skip
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert page.count("<img") == 9
    assert "http" not in page.replace("http-equiv", "")
    result = Evaluation.from_json(tmp_path / "out" / "evaluation.json")
    assert result.complete
    assert len(result.studies["layers"]) == len(ROWS)


def test_images_are_evaluated_from_the_command_line(tmp_path):
    for label, name in (("3", "three"), ("7", "seven")):
        (tmp_path / "digits" / label).mkdir(parents=True)
        Image.fromarray(drawn(DIGITS[name])).save(tmp_path / "digits" / label / "a.png")
    command = [
        "evaluate",
        str(tmp_path / "digits"),
        "--out",
        str(tmp_path / "out"),
        "--methods",
        "lrp,random",
    ]
    done = CliRunner().invoke(app, [*command, "--metrics", "positive,insertion,conservation"])
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "out" / "evaluation.json").read_text(encoding="utf-8"))
    assert data["model"] == "digits"
    assert max(data["values"]["lrp"]["conservation"]) < 1e-4
    assert (tmp_path / "out" / "report.html").exists()


BAD = {
    "column": (["--text-column", "txt"], {}, 'no column "txt"; did you mean "text"'),
    "label column": (["--label-column", "lable"], {}, 'did you mean "label"'),
    "label": ([], {"rows": [*ROWS, "a film,goood"]}, 'no label "goood"; did you mean "good"'),
    "class": ([], {"rows": ["a film,7"]}, "no class 7: the model has 0 to 2"),
    "no text": ([], {"rows": []}, "has no rows"),
    "empty texts": ([], {"rows": [",good", "  ,bad"]}, "none with a text"),
    "special": ([], {"rows": ["[SEP],good", "[CLS] [SEP],bad"]}, "only special tokens (2)"),
    "long": ([], {"rows": ["film " * 80 + ",good"]}, "too long (1)"),
    "metric": (["--metrics", "activaton"], {}, 'did you mean "activation"'),
    "no metric": (["--metrics", ","], {}, "no metric was selected"),
    "method": ([], {"methods": "lrp,lpr"}, 'did you mean "lrp"'),
    "twice": ([], {"methods": "lrp,lrp"}, "listed twice with the same settings: lrp"),
    "blank": (["--blank", "nothing"], {}, "zero, mean, pad, unk, mask"),
}


@pytest.mark.parametrize(("args", "options", "message"), list(BAD.values()), ids=list(BAD))
def test_bad_input_is_a_message_and_exit_code_2(args, options, message, run):
    refused(run(*args, **options), message)


def test_a_bad_label_leaves_nothing_written(run, tmp_path):
    refused(run(rows=["a film,goood"]), "goood")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_reported_first(run, tmp_path):
    (tmp_path / "taken").write_text("a file")
    refused(run(out="taken"), "cannot write to")
    refused(run(out="taken/below"), "cannot write to")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_folder_without_permission_is_reported(run, tmp_path):
    (tmp_path / "out").mkdir(mode=0o500)
    refused(run(), "cannot write to")


def test_unusable_rows_are_named_and_the_rest_is_run(run, tmp_path):
    odd = [",good", "[SEP],bad", "film " * 80 + ",good", "a film,"]
    done = run("--metrics", "activation", rows=[*ROWS, *odd])
    assert done.exit_code == 1, done.output
    assert done.stderr.endswith("wherefrom: 8 read = 4 evaluated + 4 rejected.\n")
    assert "4 samples" in done.stdout
    assert "left out: sample 4 “[SEP]”: the input has only special tokens." in done.stdout
    table = (tmp_path / "out" / "rejected.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[0] for line in table] == ["sample", "row 4", "row 7", "4", "5"]
    assert (tmp_path / "out" / "report.html").exists()
    for reason in ("empty text (1)", "no label (1)", "only special tokens (1)", "too long (1)"):
        assert reason in done.stdout


@pytest.mark.filterwarnings("always")
def test_a_long_text_is_truncated_on_request(run):
    done = run("--truncate", "--metrics", "activation", rows=[*ROWS, "film " * 80 + ",good"])
    assert "cut from 82 to 64" in done.stderr
    assert "5 samples" in done.stdout


def test_a_single_class_works_and_is_noted(run):
    done = run("--metrics", "activation", rows=[row.rpartition(",")[0] + ",good" for row in ROWS])
    assert done.exit_code == 0, done.output
    assert "all samples have the label good" in done.stdout


def test_one_text_without_a_label_is_enough(run):
    metrics = "activation,pruning,flip,leave_one_out,conservation,conciseness,entropy"
    done = run("--metrics", f"{metrics},layers,attention_erasure", rows=["film"], header="text")
    assert done.exit_code == 0, done.output
    assert "1 sample\n" in done.stdout
    assert re.search(r"^lrp +– +– +– ", done.stdout, re.M)  # no slope from one point


def test_ctrl_c_leaves_a_result_and_resume_continues(run, tmp_path, monkeypatch):
    plain = evaluation.evaluate
    metrics = ("--metrics", "activation,layers")

    def stopped(*args, progress, **options):
        def report(done, total, step):
            progress(done, total, step)
            if done > 2:
                raise KeyboardInterrupt

        return plain(*args, progress=report, **options, window=2)

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "evaluate", stopped)
        done = run(*metrics)
    assert done.exit_code == 130
    last = done.stderr.splitlines()[-1]
    assert last == (
        "wherefrom: interrupted: 2 of 4 samples were evaluated. Continue with --resume."
    )
    assert "2 samples (interrupted: partial result)" in done.stdout
    part = Evaluation.from_json(tmp_path / "out" / "evaluation.json")
    assert not part.complete
    assert len(part.sums["lrp"]) == 2
    assert "Interrupted" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert run(*metrics, "--resume").exit_code == 0
    whole = Evaluation.from_json(tmp_path / "out" / "evaluation.json")
    assert run(*metrics, out="fresh").exit_code == 0
    fresh = Evaluation.from_json(tmp_path / "fresh" / "evaluation.json")
    assert whole.complete
    assert whole.values["lrp"]["activation"] == pytest.approx(
        fresh.values["lrp"]["activation"], rel=1e-5
    )
    assert len(whole.studies["layers"]) == len(fresh.studies["layers"]) == 4
    refused(run(*metrics, "--resume", rows=ROWS[::-1]), "cannot resume", "other data")


def test_ctrl_c_before_the_first_sample_is_said_and_has_the_code_of_an_interrupt(run, monkeypatch):
    plain = evaluation.evaluate

    def stopped(*args, progress, **options):
        def report(done, total, step):
            raise KeyboardInterrupt

        return plain(*args, progress=report, **options)

    monkeypatch.setattr(evaluation, "evaluate", stopped)
    done = run()
    assert done.exit_code == 130
    assert done.stdout == ""
    assert done.stderr == "wherefrom: interrupted before the first samples were finished\n"


def test_a_damaged_file_cannot_be_resumed(run, tmp_path):
    (tmp_path / "out" / "checkpoint").mkdir(parents=True)
    for text in ("", "{", "3"):
        (tmp_path / "out" / "checkpoint" / "settings.json").write_text(text)
        refused(run("--resume"), "damaged")


def test_without_matplotlib_everything_but_pictures_is_written(run, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = run("--metrics", "activation")
    assert done.exit_code == 0, done.output
    assert 'pip install "wherefrom[plot]"' in done.stderr
    assert (tmp_path / "out" / "report.html").exists()
    assert not list((tmp_path / "out").glob("*.png"))


def test_the_bar_shows_rate_and_time_left(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    with _progress("evaluating") as advance:
        advance(10, 100, "")  # what an earlier run has done
        advance(20.5, 100, "lrp [/x]")  # brackets are no markup
    shown = capsys.readouterr().err
    assert re.search(r"20/100.*(/s|s each), \d+:\d\d:\d\d left  lrp \[/x\]", shown)
