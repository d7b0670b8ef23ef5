"""The command line, on a tiny model that is saved in a folder."""

import json
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import wherefrom
from benchmarks.tiny import model as tiny
from tests.command_line import LABELS, caller, saved_classifier
from wherefrom import METHODS, Explainer, Explanation, cli
from wherefrom.cli import EXAMPLES, SECTIONS, app
from wherefrom.errors import ModelError
from wherefrom.runs.engine import _loaded

TEXT = "The film is good, not dull."


@pytest.fixture(scope="module")
def folder(tmp_path_factory, wordpiece):
    return saved_classifier(tmp_path_factory.mktemp("model"), wordpiece)


@pytest.fixture
def run(folder, monkeypatch):
    return caller(folder, monkeypatch)


def test_explain_shows_the_answer_the_text_and_the_ledger(run):
    done = run("explain", TEXT)
    assert done.exit_code == 0, done.output
    assert re.search(r"^(bad|good|mixed)  \d+\.\d %  output [+-]\d", done.stdout)
    assert re.search(r"residual\s+[+-]\S+\s+=\s+[+-]\d", done.stdout)
    assert "film" in done.stdout
    assert "wherefrom:" not in done.stderr


def test_json_on_stdout_is_the_explanation_and_nothing_else(run, folder, wordpiece):
    done = run("explain", TEXT, "--json", "-")
    explanation = Explanation.from_dict(json.loads(done.stdout))
    model = tiny("bert", "classify", id2label=LABELS).float()
    expected = Explainer(model, wordpiece)(TEXT)
    assert explanation.text == TEXT
    assert explanation.units == expected.units
    assert explanation.scores == pytest.approx(expected.scores, abs=1e-5)


def test_several_texts_make_a_list(run):
    data = json.loads(run("explain", "good", "bad film", "--json", "-").stdout)
    assert [entry["text"] for entry in data] == ["good", "bad film"]


def test_json_and_html_go_to_files(run, tmp_path):
    data, page = tmp_path / "found.json", tmp_path / "found.html"
    done = run("explain", TEXT, "--json", data, "--html", page)
    assert done.exit_code == 0
    assert Explanation.from_json(data).text == TEXT
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert f"wrote {page}" in done.stderr
    assert "residual" in done.stdout


def test_texts_come_from_a_file_or_from_stdin(run, tmp_path):
    (tmp_path / "texts.txt").write_text("good film\n\n  \nbad – naïve\n", encoding="utf-8")
    expected = ["good film", "bad – naïve"]
    ways = [
        run("explain", "--file", tmp_path / "texts.txt", "--json", "-"),
        run("explain", "--json", "-", stdin="good film\n\nbad – naïve\n"),
        run("explain", "-", "--json", "-", stdin="good film\nbad – naïve"),
    ]
    for done in ways:
        assert done.exit_code == 0, done.output
        assert [entry["text"] for entry in json.loads(done.stdout)] == expected


@pytest.mark.parametrize("command", [["explain"], ["compare", "--methods", "lrp"]])
def test_one_bad_line_does_not_discard_the_others(run, tmp_path, command):
    path = tmp_path / "texts.txt"
    lines = [
        b"\xef\xbb\xbfgood film",
        b"bad \xff film",
        b"",
        LONG.encode(),
        b"dull \xe2\x80\xa8 it",
    ]
    path.write_bytes(b"\r\n".join(lines))
    done = run(*command, "--file", path, "--json", "-")
    assert done.exit_code == 1
    assert [entry["text"] for entry in json.loads(done.stdout)] == ["good film", "dull \u2028 it"]
    first, second, third = done.stderr.splitlines()
    assert first == f"wherefrom: {path}, line 2 is not UTF-8: byte 0xff."
    assert second.startswith(f"wherefrom: {path}, line 4: the text has 82 tokens")
    assert third == "wherefrom: 2 of 4 inputs could not be explained."


def test_when_no_line_can_be_explained_each_is_named_and_the_exit_code_is_2(run):
    done = run("explain", "-", stdin=b"\xff\xc3\xa9\n" + LONG.encode())
    assert done.exit_code == 2
    assert done.stdout == ""
    first, second, third = done.stderr.splitlines()
    assert first == "wherefrom: stdin, line 1 is not UTF-8: byte 0xff."
    assert second.startswith("wherefrom: stdin, line 2: the text has 82 tokens")
    assert third == "wherefrom: none of the 2 inputs could be explained."


def test_a_target_that_is_not_there_is_said_once(run):
    done = run("explain", "good", "bad film", "--target", "goood")
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_list_stays_a_list_when_one_of_two_is_left(run):
    done = run("explain", "good", LONG, "--json", "-")
    assert done.exit_code == 1
    assert [entry["text"] for entry in json.loads(done.stdout)] == ["good"]


def test_json_for_a_terminal_has_no_control_characters_and_the_same_content(run):
    text = "good \x9b31m \u202e \x7f \x1b film"
    done = run("explain", text, "--json", "-")
    assert not set(done.stdout) & set("\x9b\u202e\x7f\x1b")
    assert json.loads(done.stdout)["text"] == text


def test_ctrl_c_ends_with_a_line_and_code_130(run, monkeypatch):
    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(Explainer, "__call__", stop)
    done = run("explain", TEXT)
    assert done.exit_code == 130
    assert done.stderr == "wherefrom: interrupted\n"


def test_words_are_joined(run):
    data = json.loads(run("explain", "Unable films", "--words", "--json", "-").stdout)
    assert [unit["text"] for unit in data["units"]] == ["[CLS]", "Unable", "films", "[SEP]"]


@pytest.mark.parametrize(("target", "against"), [("1", "0"), ("good", "bad"), ("GOOD", "Bad")])
def test_target_and_against_by_number_or_name(target, against, run):
    done = run("explain", TEXT, "--target", target, "--against", against, "--json", "-")
    data = json.loads(done.stdout)["target"]
    assert (data["index"], data["against"]) == (1, 0)
    assert (data["label"], data["against_label"]) == ("good", "bad")


def test_a_label_that_is_a_number_goes_before_an_index(run, tmp_path, wordpiece):
    labels = {0: "1", 1: "2", 2: "3"}
    tiny("bert", "classify", id2label=labels).float().save_pretrained(tmp_path)
    wordpiece.save_pretrained(tmp_path)
    command = ("explain", TEXT, "--target", "1", "--against", "3", "--json", "-")
    data = json.loads(run(*command, model=tmp_path).stdout)["target"]
    assert (data["index"], data["label"]) == (0, "1")
    assert (data["against"], data["against_label"]) == (2, "3")


def test_the_version_is_printed(run):
    done = run("--version", model=None)
    assert done.exit_code == 0
    assert done.stdout == f"wherefrom {wherefrom.__version__}\n"
    module = subprocess.run(
        [sys.executable, "-m", "wherefrom", "--version"], capture_output=True, text=True, check=True
    )
    assert module.stdout == done.stdout


def test_method_and_its_settings(run):
    done = run("explain", TEXT, "--method", "lrp", "--set", "gate=frozen", "--json", "-")
    settings = {
        "gate": "frozen",
        "attention": 0.0,
        "at": "embeddings",
        "root": "unk",
    }
    method = {"name": "lrp", "label": "lrp(gate=frozen, root=unk)", "settings": settings}
    assert json.loads(done.stdout)["method"] == method
    done = run("explain", TEXT, "--method", "random", "--set", "seed=3", "--json", "-")
    assert json.loads(done.stdout)["method"] == {
        "name": "random",
        "label": "random(seed=3)",
        "settings": {"seed": 3},
    }


def test_compare_has_a_row_for_each_method(run, tmp_path):
    page = tmp_path / "compare.html"
    done = run("compare", "good film", "--methods", "lrp, gradient,random", "--html", page)
    assert done.exit_code == 0, done.output
    table = done.stdout[done.stdout.index("\nmethod ") :]
    rows = [line.split()[0] for line in table.splitlines() if line.split()]
    names = [row.partition("(")[0] for row in rows]
    assert [name for name in names if name in METHODS] == ["lrp", "gradient", "random"]
    assert page.read_text(encoding="utf-8").count("<td>lrp<wbr>(root=unk)</td>") == 1


def test_compare_takes_all_methods_on_request(run):
    options = ("--all", "--words", "--target", "1", "--json", "-")
    data = json.loads(run("compare", "good", *options).stdout)
    assert [entry["method"]["name"] for entry in data] == list(METHODS)
    assert {entry["target"]["label"] for entry in data} == {"good"}


def test_methods_are_listed_with_a_sentence_each(run):
    done = run("methods", model=None)
    assert done.exit_code == 0
    for name in METHODS:
        assert re.search(rf"^{name} +\S", done.stdout, re.M), name


LONG = "good " * 80
ERRORS = {
    "empty": (["explain", " "], "text is empty"),
    "nothing": (["explain"], "no text to explain"),
    "label": (["explain", TEXT, "--target", "goood"], 'did you mean "good"'),
    "class": (["explain", TEXT, "--target", "7"], "no class 7"),
    "method": (["explain", TEXT, "--method", "lpr"], 'did you mean "lrp"'),
    "methods": (["compare", TEXT, "--methods", "lrp,lpr"], 'did you mean "lrp"'),
    "setting": (["explain", TEXT, "--set", "steps=3"], 'no setting "steps"'),
    "no equals": (["explain", TEXT, "--set", "gate"], "write key=value"),
    "file": (["explain", "--file", "nowhere.txt"], "there is no file nowhere.txt"),
    "folder": (["explain", TEXT, "--json", "nowhere/found.json"], "cannot write"),
    "page": (["explain", TEXT, "--html", "nowhere/found.html"], "cannot write"),
    "long": (["explain", LONG], "82 tokens, but the model takes 64"),
}


@pytest.mark.parametrize(("args", "says"), list(ERRORS.values()), ids=list(ERRORS))
def test_an_error_is_a_sentence_on_stderr_and_exit_code_2(args, says, run):
    done = run(*args, stdin="")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("wherefrom: ")
    assert says in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_model_that_is_not_there(run, tmp_path):
    done = run("explain", TEXT, model=tmp_path / "nowhere")
    assert done.exit_code == 2
    assert "is not a folder with a model" in done.stderr


@pytest.mark.filterwarnings("default")
def test_a_long_text_is_cut_when_asked(run):
    done = run("explain", LONG, "--truncate", "--json", "-")
    assert done.stderr.startswith("wherefrom: the text was cut from 82 to 64 tokens")
    assert len(json.loads(done.stdout)["units"]) == 64


def test_a_model_without_a_tokenizer_is_told(run, tmp_path):
    tiny("bert", "classify").float().save_pretrained(tmp_path)
    done = run("explain", TEXT, model=tmp_path)
    assert done.exit_code == 2
    assert "no tokenizer" in done.stderr


def test_an_interrupt_before_a_command_begins_is_no_traceback(monkeypatch, capsys):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr("wherefrom.cli.app", interrupted)
    with pytest.raises(SystemExit) as end:
        cli.run(["methods"])
    assert end.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_the_entry_point_runs_a_command(capsys):
    with pytest.raises(SystemExit) as end:
        cli.run(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("wherefrom ")


def test_the_number_type_reaches_the_model_in_every_command(monkeypatch, tmp_path):
    data, names, out = tmp_path / "data.csv", tmp_path / "names.csv", tmp_path / "out"
    rows = ["Ann is good", "Bob is bad", "Eve is good", "Max is bad"] * 3
    data.write_text("text\n" + "\n".join(rows), encoding="utf-8")
    names.write_text("name,group\nAnn,a\nEve,a\nBob,b\nMax,b\n", encoding="utf-8")
    arguments = {
        "explain": [TEXT],
        "compare": [TEXT],
        "evaluate": [data, "--out", out],
        "audit": [TEXT],
        "bias": [data, "--groups", names, "--out", out],
        "corpus": [data, "--out", out],
        "serve": ["--port", "0"],
    }
    without_a_model = {"methods", "models"}
    commands = {command.callback.__name__ for command in app.registered_commands}
    assert commands >= set(arguments) | without_a_model
    passed = []
    _loaded.cache_clear()

    def stop(source, **options):
        passed.append((source, options))
        raise ModelError("seen")

    monkeypatch.setattr("wherefrom.loading.load", stop)
    monkeypatch.setattr("wherefrom.web.serve.load", stop)
    for name, rest in arguments.items():
        for dtype, options in (((), {}), (("--dtype", "bfloat16"), {"dtype": "bfloat16"})):
            call = [name, *map(str, rest), "--model", "sentiment", *dtype]
            done = CliRunner().invoke(app, call)
            assert "wherefrom: seen" in done.stderr, (call, done.output)
            assert passed.pop() == ("sentiment", options)
            assert not passed


def test_a_number_type_changes_the_weights(run):
    outputs = {
        dtype: json.loads(run("explain", TEXT, "--json", "-", "--dtype", dtype).stdout)["output"]
        for dtype in ("float32", "float64", "bfloat16")
    }
    assert outputs["float32"] == pytest.approx(outputs["float64"], rel=1e-4)
    assert len(set(outputs.values())) == 3
    assert run("explain", TEXT, "--dtype", "int8").exit_code == 2


def test_commands_take_what_they_share_from_modules_that_are_no_commands():
    shared = {"options", "output", "prompts", "reading"}
    folder = Path(cli.__file__).parent
    for path in sorted({*folder.glob("*.py")} - {folder / "__init__.py"}):
        used = set(re.findall(r"wherefrom\.cli\.(\w+)", path.read_text("utf-8")))
        assert used <= shared, path.name


def test_an_option_says_the_same_in_all_commands():
    helps = defaultdict(set)
    for command in get_command(app).commands.values():
        for option in command.params:
            helps[option.name].add((*option.opts, *option.secondary_opts, option.help))
    differ = {name for name, texts in helps.items() if len(texts) > 1}
    # what these mean depends on the command
    own = {"data", "texts", "out", "model", "method", "methods", "target", "against", "every"}
    assert differ == own | {"settings", "seed", "through"}


def test_shapley_values_have_a_budget_and_a_seed(run):
    text = "the film is good and it is not bad or dull , i love it"
    options = ("--method", "shapley", "--budget", "120", "--seed")
    first, again, other = (
        json.loads(run("explain", text, *options, seed, "--json", "-").stdout)
        for seed in ("1", "1", "2")
    )
    assert first["method"]["settings"] | {"budget": 120, "seed": 1} == first["method"]["settings"]
    assert first == again
    assert first["scores"] != other["scores"]
    assert len(first["errors"]) == len(first["units"])
    shown = run("explain", text, *options, "1").stdout
    assert "standard errors up to" in shown
    assert "the reference input" in shown or "a text of unknown words" in shown
    done = run("explain", text, "--budget", "9", "--method", "shapley")
    assert done.exit_code == 2
    assert "Pass --budget 62 or more" in done.stderr
    assert 'auto has no setting "seed"' in run("explain", text, "--seed", "1").stderr


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_the_help_are_commands_that_parse(name):
    command = get_command(app).commands[name]
    for example in EXAMPLES[name]:
        program, called, *arguments = shlex.split(example)
        assert (program, called) == ("wherefrom", name)
        command.make_context(name, arguments)  # raises if an option or argument is wrong
        assert example in CliRunner().invoke(app, [name, "--help"]).output


def test_the_help_shows_every_option_once_in_sections_and_the_others_last():
    commands = get_command(app).commands
    params = {param.name for command in commands.values() for param in command.params}
    assert {name for names in SECTIONS.values() for name in names.split()} <= params
    for name, command in commands.items():
        shown = CliRunner().invoke(app, [name, "--help"]).output.partition("\nExamples:")[0]
        for param in command.params:
            if param.param_type_name == "option":
                flag = max(param.opts, key=len)
                assert (
                    len(re.findall(rf"^  (?:-\w, |--[\w-]+, )?{flag}(?![\w-])", shown, re.M)) == 1
                )
        titles = [title for title in (*SECTIONS, "Other options") if f"\n{title}:" in shown]
        places = [shown.index(f"\n{title}:") for title in titles]
        assert places == sorted(places)
        assert titles[-1] == "Other options"
