"""One row with a NaN output: named, counted and left out at every entrance, with exit code 1."""

import json

import pytest
import torch
from typer.testing import CliRunner

import wherefrom
from tests.corpus import planted
from wherefrom.cli import app
from wherefrom.core.runner import Rejected
from wherefrom.corpus import explain_corpus
from wherefrom.errors import NotFinite

parquet = pytest.importorskip("pyarrow.parquet")
BAD = planted.WOMEN[0]
NAMES = [*planted.WOMEN[1:5], *planted.MEN[:5]]
TEXTS = [f"the film {name} was dull" for name in [*NAMES[:4], BAD, *NAMES[4:]]]
ROW = TEXTS.index(f"the film {BAD} was dull")


@pytest.fixture(scope="module")
def explainer():
    made = planted.explainer(0, 0.0)
    table = made.runner.model.get_input_embeddings().weight
    with torch.no_grad():
        table[made.tokenizer.convert_tokens_to_ids(BAD)] = torch.nan
    return made


@pytest.fixture(scope="module")
def home(explainer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad-row")
    explainer.runner.model.save_pretrained(folder / "model")
    explainer.tokenizer.save_pretrained(folder / "model")
    (folder / "data.csv").write_text("\n".join(["text", *TEXTS]), encoding="utf-8")
    pairs = [f"{n},female" for n in planted.WOMEN] + [f"{n},male" for n in planted.MEN]
    (folder / "names.csv").write_text("\n".join(["name,group", *pairs]), encoding="utf-8")
    return folder


def test_in_a_list(explainer):
    results = explainer.each(TEXTS)
    assert [i for i, result in enumerate(results) if isinstance(result, Rejected)] == [ROW]
    assert isinstance(results[ROW].error, NotFinite)


def test_in_a_run(explainer, tmp_path):
    result = wherefrom.run(explainer, TEXTS, tmp_path)
    assert (result.explained, result.rejected) == (9, 1)
    (row,) = parquet.read_table(tmp_path / "rejected.parquet").to_pylist()
    assert (row["id"], row["text"]) == (str(ROW), TEXTS[ROW])
    assert "NaN" in row["reason"] or "finite" in row["reason"]


@pytest.mark.parametrize("out", [None, "out"])
def test_in_a_corpus(explainer, tmp_path, out):
    corpus = explain_corpus(explainer, TEXTS, out=out and tmp_path / out)
    assert list(corpus.rows) == [i for i in range(10) if i != ROW]
    assert corpus.skipped == {"output not finite": 1}
    assert list(corpus.rejected) == [ROW]


def test_in_an_evaluation(explainer):
    result = wherefrom.evaluate(explainer, TEXTS, ["gradient_x_input"], ["activation"])
    assert result.samples == 9
    assert sum(result.skipped.values()) == 1


@pytest.mark.parametrize("command", ["run", "corpus", "bias", "evaluate", "explain"])
def test_on_the_command_line(home, tmp_path, command):
    model = ("--model", str(home / "model"))
    out = {"explain": ("--json", str(tmp_path / "out.json"))}.get(command, ("--out", str(tmp_path)))
    options = {
        "bias": ("--groups", str(home / "names.csv")),
        "evaluate": ("--methods", "lrp,random", "--metrics", "entropy"),
    }.get(command, ())
    data = TEXTS if command == "explain" else [str(home / "data.csv")]
    done = CliRunner().invoke(app, [command, *data, *out, *options, *model])
    assert done.exit_code == 1, done.output
    if command == "run":
        (row,) = parquet.read_table(tmp_path / "rejected.parquet").to_pylist()
        assert row["id"] == f"data.csv:{ROW}"
        assert done.stdout.startswith("10 read = 9 explained + 1 rejected: ")
    elif command == "explain":
        assert len(json.loads((tmp_path / "out.json").read_text("utf-8"))) == 9
        assert "1 of 10 inputs could not be explained" in done.stderr
    elif command == "evaluate":
        assert "10 read = 9 evaluated + 1 rejected." in done.stderr
        assert f"{ROW}," in (tmp_path / "rejected.csv").read_text("utf-8")
    else:
        assert f"data.csv:{ROW}," in (tmp_path / "rejected.csv").read_text("utf-8")
        assert "10 read = 9 explained + 1 rejected." in done.stderr


@pytest.mark.parametrize("command", ["run", "corpus", "evaluate"])
def test_rows_that_cannot_be_read_are_listed_with_the_reason(home, tmp_path, command):
    data = tmp_path / "data.csv"
    data.write_text("text,label\n" + "".join(f'"{text}",1\n' for text in TEXTS[:2]) + "a,b,c\n")
    options = ("--methods", "lrp", "--metrics", "entropy") if command == "evaluate" else ()
    out = tmp_path / "out"
    done = CliRunner().invoke(
        app, [command, str(data), *options, "--out", str(out), "--model", str(home / "model")]
    )
    assert done.exit_code == 1, done.output
    if command == "run":
        (row,) = parquet.read_table(out / "rejected.parquet").to_pylist()
        listed = f"{row['id']},{row['reason']}"
    else:
        listed = (out / "rejected.csv").read_text("utf-8")
    assert "line 4 has 3 fields" in listed
    assert {"run": ":2,", "corpus": ":2,", "evaluate": "row 2,"}[command] in listed


def test_truncated_texts_are_on_the_terminal(home, tmp_path):
    (tmp_path / "data.csv").write_text(f'text,label\n"{"good " * 600}",1\nfine,0\n')
    arguments = ["corpus", str(tmp_path / "data.csv"), "--out", str(tmp_path / "out"), "--truncate"]
    done = CliRunner().invoke(app, [*arguments, "--model", str(home / "model")])
    assert "2 texts (truncated: 1)" in done.stdout, done.output
