"""Every command under attack: explained, or one line on stderr and the exit code for it."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from benchmarks.tiny import model as tiny
from tests.hostile.corpus import ARGUMENTS, EXPLAINED, LABELS, SETTINGS, TABLES, TEXTS
from wherefrom.cli import app
from wherefrom.cli.output import progress
from wherefrom.evaluation.results import Evaluation
from wherefrom.loading import load

# what a user of the command line cannot write
PYTHON = re.compile(
    r"[Ee]xplainer[.(]|wherefrom\.\w+\(|\b(method|root|truncate|units|target|position|encoding|memory)="
)
cached_load = functools.cache(load)
# of texts for the commands that read them as `explain` does
OF_EACH_KIND = [
    "empty", "an undecodable byte", "very many tokens", "null", "colours", "a window title",
    "an 8-bit escape", "a line overwritten", "direction turned", "line separators", "markup",
    "special tokens", "nothing to see",
]  # fmt: skip
COMMANDS = {
    "explain": ["explain"],
    "compare": ["compare", "--methods", "lrp"],
    "audit": ["audit", "--methods", "random"],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory, wordpiece):
    """A model, and tables for it."""
    folder = tmp_path_factory.mktemp("hostile")
    labels = {0: "bad", 1: "good", 2: "mixed"}
    tiny("bert", "classify", id2label=labels).float().save_pretrained(folder / "model")
    wordpiece.save_pretrained(folder / "model")
    (folder / "data.csv").write_text("text,label\nAnna is good,good\nBob was bad,bad\n")
    (folder / "names.csv").write_text("name,group\nAnna,f\nBob,m\n")
    (folder / "latin.txt").write_bytes(b"caf\xe9 caf\xc3\xa9\n")  # neither Latin-1 nor UTF-8
    return folder


@pytest.fixture
def run(files, monkeypatch):
    """Runs a command in this process; the model is read once, and nothing is plotted."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("wherefrom.loading.load", cached_load)
    monkeypatch.setattr(Evaluation, "plots", lambda self, folder, suffix=".png": [])

    def call(*args, stdin=None):
        return CliRunner().invoke(app, [*map(str, args)], input=stdin)

    return call


def checked(done, error):
    """Explained with exit code 0, or 1 if rows are left out; or the error in one line, code 2."""
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    assert not set(done.output) & {"\x1b", "\x07", "\x9b", "\r", "\u202e"}
    if error == EXPLAINED:
        left_out = re.search(r"[1-9]\d* (rejected|of \d+ \w+ could not be explained)", done.stderr)
        assert done.exit_code == (left_out is not None), done.output
        return
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert error in " ".join(done.stderr.replace("│", " ").split())
    if "Usage" not in done.stderr:  # an error in the command line itself is typer's, in a box
        (line,) = done.stderr.splitlines()
        assert line.startswith("wherefrom: ")
        assert not PYTHON.search(line)
        assert len(line) < 1100


def entries(table):
    return pytest.mark.parametrize("case", list(table.values()), ids=list(table))


@pytest.mark.parametrize(
    ("command", "name"),
    [("explain", name) for name in TEXTS]
    + [(command, name) for command in ("compare", "audit") for name in OF_EACH_KIND],
)
def test_a_text(run, files, command, name):
    text, error = TEXTS[name]
    arguments = [*COMMANDS[command], "--model", files / "model", "--", text]
    checked(run(*arguments), error)


def test_all_texts_as_lines(run, files):
    texts = [text.replace("\r", " ").replace("\n", " ") for text, _ in TEXTS.values()]
    stdin = "\n".join(texts).encode("utf-8", "surrogatepass")
    done = run("explain", "-", "--model", files / "model", "--json", "-", stdin=stdin)
    assert done.exit_code == 1
    explained = [text for text, error in TEXTS.values() if error == EXPLAINED]
    assert len(json.loads(done.stdout)) == len(explained)
    bad = len([text for text in texts if text.strip()]) - len(explained)
    assert len(done.stderr.splitlines()) == bad + 1
    assert done.stderr.splitlines()[-1].startswith(f"wherefrom: {bad} of ")


@pytest.mark.parametrize("command", ["evaluate", "corpus", "bias"])
@entries(TABLES)
def test_a_table(run, files, tmp_path, command, case):
    path = tmp_path / case.name
    path.write_bytes(case.content)
    options = ["--out", tmp_path / "out", "--model", files / "model"]
    if command == "evaluate":
        done = run("evaluate", path, *options, "--methods", "random", "--metrics", "entropy")
    elif command == "corpus":
        # a row that cannot be read is left out, and the others are explained
        done = run("corpus", path, *options, "--min-count", 1, "--method", "random")
        assert done.exit_code in (0, 1, 2), done.output
        assert "Traceback" not in done.output
        assert (done.exit_code == 2) == (not (tmp_path / "out" / "report.html").exists())
        assert done.stderr.startswith("wherefrom: ") or done.exit_code != 2
        return None
    else:  # as the file of names
        done = run("bias", files / "data.csv", "--groups", path, *options)
        names_error = case.error
        if case.error in (EXPLAINED, "none with a text", "no column looks like the text"):
            damaged = ", line " in done.stderr  # a file of names has no row that is left out
            names_error = ", line " if damaged else "Name it with --name-column"
        return checked(done, names_error)
    checked(done, case.error)
    assert (tmp_path / "out").exists() == (case.error == EXPLAINED)
    return None


@entries(LABELS)
def test_a_label(run, files, case):
    label, error = case
    model = ["--model", files / "model"]
    checked(run("explain", "good film", *model, f"--target={label}"), error)
    checked(run("explain", "good film", *model, "--target=bad", f"--against={label}"), error)


@entries(SETTINGS)
def test_a_setting(run, files, case):
    method, setting, error = case
    command = ["explain", "good film", "--model", files / "model"]
    checked(run(*command, "--method", method, "--set", setting), error)


@entries(ARGUMENTS)
def test_an_argument(run, files, tmp_path, case):
    arguments, error = case
    if "/dev/full" in arguments and not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    names = {
        "{data}": files / "data.csv", "{names}": files / "names.csv",
        "{latin}": files / "latin.txt", "{out}": tmp_path / "out",
    }  # fmt: skip
    for name, path in names.items():
        arguments = [argument.replace(name, str(path)) for argument in arguments]
    model = [] if arguments[0] in ("serve", "\x1b[31m") else ["--model", files / "model"]
    checked(run(*arguments, *model, stdin=""), error)
    assert not list(tmp_path.iterdir()) or arguments[0] in ("evaluate", "bias", "corpus")


# In processes of their own: bytes, pipes and signals as the operating system passes them.


def popen(*arguments, variables=None, command=("-m", "wherefrom"), **options):
    """A process that hears SIGINT, which a test run in the background of a shell would not."""
    return subprocess.Popen(
        [sys.executable, *command, *arguments],
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1", **(variables or {})},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def test_undecodable_bytes_as_arguments_and_on_stdin():
    as_argument = popen("explain", b"good \xff film", stdout=subprocess.PIPE)
    on_stdin = popen("explain", "-", stdout=subprocess.PIPE)
    out, err = as_argument.communicate()
    assert as_argument.returncode == 2
    assert out == b""
    assert err.startswith(b"wherefrom: character 6 of the text is U+DCFF, half of a character")
    out, err = on_stdin.communicate(b"good \xff film\ngood caf\xc3\xa9\n")
    assert on_stdin.returncode == 1
    assert b"good" in out
    first, last = err.splitlines()
    assert first == b"wherefrom: stdin, line 1 is not UTF-8: byte 0xff."
    assert last == b"wherefrom: 1 of 2 inputs could not be explained."


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_no_space_for_the_output_and_an_ascii_terminal(monkeypatch):
    with open("/dev/full", "wb") as full:
        to_full = popen("explain", "good film", stdout=full)
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    to_ascii = popen("explain", "naïve × film \x1b[31m", stdout=subprocess.PIPE)
    _, err = to_full.communicate()
    assert to_full.returncode == 2
    assert err == b"wherefrom: cannot write the output: No space left on device.\n"
    out, err = to_ascii.communicate()
    assert to_ascii.returncode == 0, err
    assert rb"\xd7" in out
    assert rb"\u001b" in out


# Runs a command that interrupts itself once three samples are in the file.
INTERRUPTED = """
import signal, sys
from contextlib import contextmanager
from pathlib import Path
from wherefrom.cli import output, run
terminal_bar, parts = output.terminal_bar, Path(sys.argv[1])
@contextmanager
def bar(*arguments):
    with terminal_bar(*arguments) as advance:
        def step(*progress):
            if list(parts.glob("part-*.json")):
                signal.raise_signal(signal.SIGINT)
            advance(*progress)
        yield step
output.terminal_bar = bar
run(sys.argv[2:])
"""


def test_ctrl_c_leaves_a_partial_result_that_resumes(tmp_path):
    words = "good bad great dull love hate".split()
    rows = [f"the {a} film is {b} and {c}" for a in words for b in words for c in words]
    (tmp_path / "data.csv").write_text("\n".join(["text", *rows]))
    parts = tmp_path / "out" / "checkpoint"
    command = ["evaluate", str(tmp_path / "data.csv"), "--out", str(tmp_path / "out")]
    command += ["--metrics", "activation", "--methods", "lrp,gradient"]
    process = popen(*command, command=["-c", INTERRUPTED, str(parts)], stdout=subprocess.PIPE)
    out, err = process.communicate()
    assert process.returncode == 130, err
    last = err.decode().splitlines()[-1]
    assert last.startswith("wherefrom: interrupted: ")
    assert last.endswith(" of 216 samples were evaluated. Continue with --resume.")
    assert b"(interrupted: partial result)" in out
    result = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert result["complete"] is False
    finished = [json.loads(path.read_bytes()) for path in parts.glob("part-*.json")]
    assert len(result["sums"]["lrp"]) == sum(len(part["samples"]) for part in finished)


@pytest.mark.parametrize("library", ["enum", "typing", "typer", "torch"])
def test_ctrl_c_at_the_start_is_a_line_and_code_130(tmp_path, library):
    """The process is held where it imports a library."""
    reached = tmp_path / "reached"
    (tmp_path / f"{library}.py").write_text(
        f"import time\nopen({str(reached)!r}, 'w').close()\nwhile True: time.sleep(0.01)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = popen("explain", "a film", variables={"PYTHONPATH": path}, stdout=subprocess.PIPE)
    while not reached.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (130, b"", b"wherefrom: interrupted\n")


class Dropped:
    """Interrupts when it is deleted, where Python ignores exceptions."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_drops_is_raised_at_the_next_step():
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with progress("testing") as advance:
            advance(0, 2, "")
            Dropped()
            with pytest.raises(KeyboardInterrupt):
                advance(1, 2, "")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, old)


def test_an_ignored_interrupt_stays_ignored():
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as nohup and `&` of a shell set it
    try:
        with progress("testing") as advance:
            signal.raise_signal(signal.SIGINT)
            advance(1, 2, "")
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, old)
