"""The command line for newcomers: words, pairs, encodings, devices, settings, lists."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.command_line import caller, saved_classifier
from wherefrom import METHODS, Explanation
from wherefrom.cli import app
from wherefrom.cli.explain import COMPARED


@pytest.fixture(scope="module")
def folder(tmp_path_factory, pair_wordpiece):
    return saved_classifier(tmp_path_factory.mktemp("model"), pair_wordpiece)


@pytest.fixture
def run(folder, monkeypatch):
    return caller(folder, monkeypatch)


def explained(done):
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    return [Explanation.from_dict(d) for d in (data if isinstance(data, list) else [data])]


@pytest.mark.parametrize("command", [["explain"], ["compare", "--methods", "lrp"]])
def test_words_without_quotes_are_one_text_with_a_hint(run, command):
    done = run(*command, "the", "film", "is", "good", "--json", "-")
    assert {e.text for e in explained(done)} == {"the film is good"}
    assert "these 4 words are explained as one text" in done.stderr


def test_quoted_texts_and_files_stay_apart(run, tmp_path):
    done = run("explain", "good", "bad film", "--json", "-")
    assert [e.text for e in explained(done)] == ["good", "bad film"]
    assert "as one text" not in done.stderr
    for name in (tmp_path, "a.png"):
        done = run("explain", "good", name)
        assert "as one text" not in done.stderr


def test_a_pair_and_its_halves(run):
    (both,) = explained(run("explain", "the film is great", "--pair", "it is good", "--json", "-"))
    assert [u.text for u in both.units if u.field == "second"] == ["it", "is", "good"]
    rows = explained(
        run("compare", "the film", "--pair", "is it", "--methods", "lrp,random", "--json", "-")
    )
    assert [e.text for e in rows] == ["the film\nis it"] * 2
    done = run("explain", "a film", "the movie", "--pair", "it")
    assert done.exit_code == 2
    assert "--pair applies to a single input, got 2" in done.stderr


@pytest.mark.filterwarnings("default::wherefrom.errors.GuessedEncoding")
def test_a_file_in_another_encoding(run, tmp_path):
    path = tmp_path / "texts.txt"
    for encoding in ("utf-16", "utf-8-sig", "latin-1"):
        path.write_bytes("café good\nnaïve\n".encode(encoding))
        done = run("explain", "--file", path, "--json", "-")
        assert [e.text for e in explained(done)] == ["café good", "naïve"]
        assert ("a guess" in done.stderr) == (encoding == "latin-1")
    done = run("explain", "--file", path, "--encoding", "latin-1", "--json", "-")
    assert [e.text for e in explained(done)] == ["café good", "naïve"]
    assert done.stderr == ""
    done = run("explain", "--file", path, "--encoding", "klingon")
    assert done.exit_code == 2
    assert 'no text encoding "klingon"' in done.stderr


def test_compare_shows_seven_methods_or_all(run):
    few = explained(run("compare", "good film", "--json", "-"))
    assert [e.method for e in few] == list(COMPARED)
    assert len(COMPARED) == 7
    assert set(COMPARED) <= set(METHODS)
    done = run("compare", "good", "--all", "--set", "steps=2", "--set", "samples=2", "--json", "-")
    assert [e.method for e in explained(done)] == list(METHODS)
    done = run("compare", "good", "--all", "--methods", "lrp")
    assert done.exit_code == 2
    assert "either --methods or --all" in done.stderr


def test_compare_passes_a_setting_to_the_methods_that_have_it(run):
    done = run(
        "compare", "good", "--methods", "lrp,smoothgrad", "--set", "samples=2", "--json", "-"
    )
    first, second = explained(done)
    assert "samples" not in first.settings
    assert second.settings["samples"] == 2
    for setting, says in (("sample=2", 'did you mean "samples"'), ("samples=abc", "an integer")):
        done = run("compare", "good", "--methods", "lrp,smoothgrad", "--set", setting)
        assert done.exit_code == 2
        assert says in done.stderr


@pytest.mark.parametrize("command", ["corpus", "bias"])
def test_corpus_and_bias_take_settings(run, tmp_path, command):
    (tmp_path / "a.csv").write_text("text\nAnna is good\nBob is bad\n")
    (tmp_path / "names.csv").write_text("name,group\nAnna,f\nBob,m\n")
    groups = ["--groups", tmp_path / "names.csv"] if command == "bias" else []
    done = run(command, tmp_path / "a.csv", "--out", tmp_path / "out", *groups, "--set", "steps=3")
    assert done.exit_code == 2
    assert 'auto has no setting "steps"' in done.stderr
    if command == "corpus":
        options = ["--method", "integrated_gradients", "--set", "steps=3", "--device", "cpu"]
        done = run(command, tmp_path / "a.csv", "--out", tmp_path / "out", *options)
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("device", "start"), [("cuda:7", "cannot use the device"), ("nonsense", "there is no device")]
)
def test_a_device_that_is_not_there(run, device, start):
    done = run("explain", "good", "--device", device)
    assert done.exit_code == 2
    assert f'{start} "{device}"' in done.stderr
    assert "vailable: cpu" in done.stderr
    assert "\n" not in done.stderr.strip()


def test_the_cpu_is_a_device(run):
    assert run("explain", "good", "--device", "cpu").exit_code == 0
    assert run("explain", "good", "--device", "auto").exit_code == 0


def test_the_methods_fit_eighty_columns(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    done = CliRunner().invoke(app, ["methods"], env={"COLUMNS": "80"})
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    names = [line.split()[0] for line in lines[1:] if not line.startswith(" ")]
    assert names == ["auto", *METHODS]
    assert "…" not in done.stdout
    assert {"(Sundararajan", "samples=25,"} <= set(done.stdout.split())


def test_numbers_are_an_option(run):
    assert "--numbers" in run("explain", "--help", model=None).stdout
    assert "good[" in run("explain", "good film", "--numbers").stdout


def test_several_texts_end_with_one_legend(run):
    out = run("explain", "good film", "bad film").stdout
    assert out.count("small scores are not shown") == 1


def test_a_legend_names_no_class_where_classes_differ(run):
    sample = Path(__file__).parents[1] / "examples" / "three.png"
    general, of_one = "for the class above it, ", "small scores are not shown"
    out = run("explain", "a good film", "a bad film", model=None).stdout
    assert f"[+] {general}[-] against; {of_one}" in out
    out = run("explain", "a good film", "a nice film", model=None).stdout
    assert f"[+] for POSITIVE, [-] against; {of_one}" in out
    out = run("compare", sample, "--methods", "lrp,gae", "--beside", "8", model=None).stdout
    assert out.splitlines()[-1].startswith(f"++ strongly {general}")
    assert out.count("strongly") == 1


def test_a_table_is_not_a_file_of_texts(run, tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na film,1\n")
    done = run("explain", "--file", tmp_path / "a.csv")
    assert done.exit_code == 2
    assert f"a.csv is a table: use `wherefrom run {tmp_path}" in done.stderr


def test_the_name_of_a_file_as_a_text_gets_a_hint(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes.md").write_text("a film\n")
    Path("a.csv").write_text("text\na film\n")
    done = run("explain", "notes.md")
    assert done.exit_code == 0
    assert "notes.md is a file; to explain its lines pass --file notes.md" in done.stderr
    hint = "a.csv is a file; to explain its rows: wherefrom run a.csv --out DIR"
    assert hint in run("explain", "a.csv").stderr
    assert not run("explain", "a film").stderr


def test_a_molecule_is_not_explained_by_a_model_of_texts(run):
    for command in ("explain", "compare", "audit"):
        done = run(command, "--smiles", "CCO", model="sentiment")
        assert done.exit_code == 2
        assert "sentiment reads texts, but --smiles needs a model for molecules" in done.stderr


def test_a_text_to_a_model_of_images_is_quoted(run):
    done = run("explain", "a film", model="digits")
    assert 'this model takes images, and there is no file "a film": pass' in done.stderr


def test_the_list_of_models_has_the_language_model(run, monkeypatch):
    assert "smollm2: SmolLM2-135M-Instruct" in run("models", model=None).stdout
    monkeypatch.setattr("wherefrom.models.packaged.find_spec", lambda name: None)
    assert "(install it with: pip install" in run("models", model=None).stdout


def test_errors_name_options(run):
    long = run("explain", "good " * 5000)
    assert "or pass --truncate to explain its start" in long.stderr
    assert "units apply only to images." in run("explain", "a film", "--units", "pixels").stderr
    assert "position applies only to" in run("explain", "a film", "--position", "1").stderr
    assert "entity applies only to" in run("explain", "a film", "--entity", "film").stderr


def test_written_json_is_named(run, tmp_path):
    for command in ("explain", "compare", "audit"):
        path = tmp_path / f"{command}.json"
        done = run(
            command, "a film", "--json", path, *(["--methods", "lrp"] * (command != "explain"))
        )
        assert f"wrote {path}" in done.stderr


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "")])
def test_errors_have_colours_only_where_they_may(variable, value, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(variable, value)
    done = CliRunner().invoke(app, ["explain", "good", "--method", "nonsense"], color=True)
    assert ("\x1b[31m" in done.stderr) == (value == "")
    assert 'no method "nonsense"' in done.stderr


def test_a_corpus_is_not_of_pairs(run, tmp_path):
    (tmp_path / "a.csv").write_text("premise,hypothesis\na film,a movie\n")
    done = run("corpus", tmp_path / "a.csv", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert 'rows of pairs ("premise" and "hypothesis")' in done.stderr
    assert "Name one of the columns with --text-column." in done.stderr
    done = run("corpus", tmp_path / "a.csv", "--out", tmp_path / "out", "--text-column", "premise")
    assert done.exit_code == 0, done.output
