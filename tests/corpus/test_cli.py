"""The two commands over a corpus, on a tiny model saved in a folder."""

import csv
import importlib
import json
from contextlib import nullcontext

import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from tests.corpus import planted
from tests.helpers import contents
from wherefrom.cli import app

COMMANDS = importlib.import_module("wherefrom.cli.corpus")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    explainer = planted.explainer(0, 2.0)
    explainer.runner.model.save_pretrained(folder / "model")
    explainer.tokenizer.save_pretrained(folder / "model")
    rows = [f"{text},{i % 2}" for i, text in enumerate(planted.texts(0)[:120])]
    (folder / "data.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    pairs = [f"{n},female" for n in planted.WOMEN] + [f"{n},male" for n in planted.MEN]
    (folder / "names.csv").write_text("\n".join(["name,gender", *pairs]), encoding="utf-8")
    return folder


def run(home, *args):
    return CliRunner().invoke(app, [*map(str, args), "--model", str(home / "model")])


def test_bias_writes_its_report_tables_and_histogram_and_resumes(home, tmp_path):
    command = ("bias", home / "data.csv", "--groups", home / "names.csv", "--out", tmp_path)
    done = run(home, *command)
    assert done.exit_code == 0, done.output
    assert "female − male: +" in done.stdout
    assert "the groups differ" in done.stdout
    for name in ("report.html", "histogram.png", "entities.csv", "entities.parquet", "bias.json"):
        assert (tmp_path / name).exists()
    assert json.loads((tmp_path / "bias.json").read_text("utf-8"))["comparisons"][0]["differs"]
    assert run(home, *command, "--resume").stdout == done.stdout


@pytest.fixture
def stop_after(monkeypatch):
    """Ctrl-C after so many texts."""

    def stop(texts):
        def report(done, total, note):
            if done >= texts:
                raise KeyboardInterrupt

        monkeypatch.setattr("wherefrom.corpus.explain.PART_ROWS", texts)
        monkeypatch.setattr(COMMANDS, "progress", lambda *_, **__: nullcontext(report))

    return stop


@pytest.mark.parametrize("command", ["corpus", "bias"])
def test_interrupted_is_not_done_and_says_how_far_it_came(home, tmp_path, stop_after, command):
    stop_after(100)
    groups = ("--groups", home / "names.csv") if command == "bias" else ()
    done = run(home, command, home / "data.csv", *groups, "--out", tmp_path)
    assert done.exit_code == 130, done.output
    assert done.stderr.splitlines()[-1] == (
        "wherefrom: interrupted: 100 of 120 texts were read. Continue with --resume."
    )
    assert "interrupted: 100 of 120 texts were read: partial results" in done.stdout
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Interrupted: 100 of 120 texts were read" in report


def test_a_bias_study_interrupted_too_soon_for_a_comparison_is_interrupted(
    home, tmp_path, stop_after
):
    stop_after(1)
    command = ("bias", home / "data.csv", "--groups", home / "names.csv", "--out", tmp_path)
    done = run(home, *command)
    assert done.exit_code == 130, done.output
    assert "interrupted: 1 of 120 texts were read. Too few for a comparison" in done.stderr


def test_a_finished_run_is_not_emptied(home, tmp_path):
    command = ("corpus", home / "data.csv", "--out", tmp_path)
    first = run(home, *command)
    before = contents(tmp_path)
    done = run(home, *command)
    assert done.exit_code == 2
    assert "has 1 finished part of an earlier run" in done.stderr
    assert contents(tmp_path) == before
    assert run(home, *command, "--resume").stdout == first.stdout


def test_when_the_results_cannot_be_written_nothing_is_lost(home, tmp_path, monkeypatch):
    command = ("corpus", home / "data.csv", "--out", tmp_path)
    (tmp_path / "words.csv").mkdir()
    done = run(home, *command)
    assert done.exit_code == 2
    assert "saved. Run again with --resume to write the results" in done.stderr
    (tmp_path / "words.csv").rmdir()
    assert run(home, *command, "--resume").exit_code == 0


def test_a_spreadsheet_runs_no_formula_and_a_terminal_no_code_from_a_text(home, tmp_path):
    data = tmp_path / "data.csv"
    rows = ["=1+1 is a good film", "@x was bad", "-5 was dull", "Anna \x1b]0;x\x07 was good"]
    data.write_text("\n".join(["text", *rows]), encoding="utf-8")
    done = run(home, "corpus", data, "--out", tmp_path / "out", "--min-count", "1")
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output
    assert "\x07" not in done.output
    with (tmp_path / "out" / "texts.csv").open(encoding="utf-8", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    assert texts == [f"'{row}" for row in rows[:3]] + rows[3:]
    exact = pyarrow.parquet.read_table(tmp_path / "out" / "texts.parquet").to_pylist()
    assert [row["text"] for row in exact] == rows
    assert all(float(row["output"]) for row in exact)


def test_corpus_writes_its_report_and_tables(home, tmp_path):
    other = tmp_path / "other.csv"
    other.write_bytes((home / "data.csv").read_bytes())
    done = run(home, "corpus", home / "data.csv", other, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "240 texts" in done.stdout
    assert "misleading:" in done.stdout
    for name in ("report.html", "texts.parquet", "words.csv", "contextual.csv", "misleading.csv"):
        assert (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ("name,group\nZoe,f\nMax,m\n", (), "none of the 2 names occurs"),
        ("name,group\nAnna,f\nMax,m\n", (), "no name of the group m occurs"),
        ("who,what\nAnna,f\n", (), "no column looks like the name"),
        ("name,group\nAnna,f\nBoba,m\n", ("--target", "POSITIV"), 'did you mean "POSITIVE"'),
        ("name,group\nAnna,f\nBoba,m\n", ("--text-column", "txt"), 'no column "txt"'),
        ("name,group\nAnna,f\nBoba,m\n", ("--stop", "/none"), "no file /none"),
    ],
)
def test_bad_input_ends_with_a_sentence_and_code_2(home, tmp_path, names, options, message):
    (tmp_path / "names.csv").write_text(names, encoding="utf-8")
    groups, out = tmp_path / "names.csv", tmp_path / "out"
    done = run(home, "bias", home / "data.csv", "--groups", groups, "--out", out, *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.output
    assert not out.exists()


def test_labels_of_mixed_kinds_are_told_or_left_aside(home, tmp_path):
    data = tmp_path / "mixed.csv"
    data.write_text("text,label\nAnna is good,1\nBoba is bad,great\n", encoding="utf-8")
    done = run(home, "corpus", data, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "'great'" in done.stderr
    assert run(home, "corpus", data, "--out", tmp_path / "out", "--no-labels").exit_code == 0
