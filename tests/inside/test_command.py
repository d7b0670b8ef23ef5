"""`wherefrom inside` on an embedded model."""

import json

import pytest

from tests.command_line import caller
from wherefrom import Explanation

TEXT = "a charming but dull film"


@pytest.fixture
def run(monkeypatch):
    return caller("sentiment", monkeypatch)


def test_it_prints_the_table(run, sentiment):
    done = run("inside", TEXT, "--target", "POSITIVE")
    assert done.exit_code == 0, done.output
    inside = sentiment.inside(TEXT, target="POSITIVE")
    assert inside.output < 0
    assert done.stdout.startswith(f"POSITIVE  8.2 %  output {inside.output:+.3f}")
    assert f"heads  {inside.top()[0][0]} " in done.stdout


def test_it_writes_files(run, sentiment, tmp_path):
    paths = {name: tmp_path / f"inside.{name}" for name in ("json", "html", "png")}
    done = run(
        "inside", TEXT, "--json", paths["json"], "--html", paths["html"], "--plot", paths["png"],
        "--kind", "flow", "--through", "layer.0.head.5", "--through", "layer.1.mlp",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert done.stderr.count("wrote ") == 3
    assert paths["html"].read_text(encoding="utf-8").startswith("<!doctype html>")
    assert paths["png"].read_bytes().startswith(b"\x89PNG")
    data = json.loads(paths["json"].read_text(encoding="utf-8"))
    part = sentiment.inside(TEXT).through("layer.0.head.5", "layer.1.mlp")
    assert Explanation.from_dict(data["through"]).output == pytest.approx(part.output, abs=1e-6)
    assert "flows through layer.0.head.5 → layer.1.mlp is" in done.stdout.replace("\n", " ")


def test_json_on_stdout_is_nothing_else(run):
    data = json.loads(run("inside", TEXT, "--json", "-").stdout)
    assert data["explanation"]["text"] == TEXT
    assert "through" not in data


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([TEXT, "--method", "occlusion"], "Use --method lrp or secant"),
        ([TEXT, "--through", "layer.9.head.1"], "the model has 4 blocks, with 6 heads"),
        ([TEXT, "--through", "the fifth"], "names are layer.5, layer.5.attention, layer.5.head.3"),
        ([TEXT, "another text"], "inside takes one input, got 2"),
        ([TEXT, "--method", "secant", "--kind", "flow", "--plot", "f.png"], "Use --method lrp"),
        ([TEXT, "--plot", "f.nothing"], "cannot write f.nothing"),
    ],
)
def test_errors_say_what_to_do(run, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("inside", *arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
