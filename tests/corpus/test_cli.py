"""The two commands over a corpus, on a tiny model saved in a folder."""

import json

import pytest
from typer.testing import CliRunner

from tests.corpus import planted
from wherefrom.cli import app


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    explainer = planted.explainer(0, 2.0)
    explainer.subject.model.save_pretrained(folder / "model")
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


def test_corpus_writes_its_report_and_tables(home, tmp_path):
    done = run(home, "corpus", home / "data.csv", home / "data.csv", "--out", tmp_path)
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
