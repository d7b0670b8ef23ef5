"""The mutation runner on a small project: what it plants, notices, and remembers."""

import json

import pytest

from tools.mutants import mutants
from tools.mutate import Project, main, sample

SOURCE = '''"""A toy."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT = 1 + 1


def larger(a: int | None, b: int) -> int:
    """The larger, as in 2 > 1."""
    if a is None:
        raise ValueError("a is 1 of 2")
    return a if a > b else b


def untested(a):
    return a * 3


class Thing:
    def __repr__(self):
        return str(1 + 1)
'''
TESTS = """import pytest
from toy.part.thing import larger


def test_larger():
    assert larger(1, 2) == 2
    assert larger(2, 1) == 2
    with pytest.raises(ValueError):
        larger(None, 1)
"""
LOOP = """def count(n):
    while n < 3:
        n += 1
    return n
"""
COMMAND = """import subprocess, sys
import pytest

@pytest.fixture(scope="module")
def printed():
    command = "from toy.part.loop import count; print(count(1))"
    return subprocess.run([sys.executable, "-c", command], capture_output=True).stdout

def test_nothing():
    pass

def test_printed(printed):
    assert printed == b"3\\n"
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # most of the time of so small runs
    root = tmp_path / "project"
    files = {
        "pyproject.toml": '[tool.pytest.ini_options]\nmarkers = ["slow: s", "browser: b"]\n',
        "src/toy/__init__.py": "",
        "src/toy/part/__init__.py": "",
        "src/toy/part/thing.py": SOURCE,
        "src/toy/part/loop.py": LOOP,
        "tests/__init__.py": "",
        "tests/part/__init__.py": "",
        "tests/part/test_thing.py": TESTS,
        "tests/part/test_all.py": "from toy.part import loop\n\ndef test():\n    loop.count(1)\n",
        "tests/test_broken.py": "def test(): raise ValueError\n",
        "tests/test_command.py": COMMAND,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Project(root, "toy", ())


def run(toy, tmp_path, *arguments):
    accepted = tmp_path / "accepted.json"
    if not accepted.exists():
        accepted.write_text("[]")
    options = ["--results", str(tmp_path / "out/mutants.jsonl"), "--accepted", str(accepted)]
    return main([*options, "--workers", "1", *arguments], toy)


def statuses(tmp_path):
    lines = (tmp_path / "out/mutants.jsonl").read_text().splitlines()
    return [(e["id"], e["status"]) for e in map(json.loads, lines) if "status" in e]


def changes(source):
    return {mutant.diff(source) for mutant in mutants("f.py", source) if mutant.valid(source)}


def test_every_kind_of_fault_is_planted():
    expected = {
        "if x < 1:\n    pass": ["if x <= 1:", "if True:", "if False:", "if x < 2:", "if x < 0:"],
        "x = a + b": ["x = a - b"],
        "x = (a) * (b)": ["x = (a) / (b)"],
        "x = a and b or c": ["x = a or b or c", "x = a and b and c"],
        "x = not a": ["x = a"],
        "x = 0.5": ["x = 1.5", "x = 1.0"],
        "x = 1e-30": ["x = 1.0"],
        "x = a is not None": ["x = a is None"],
        "x = True": ["x = False"],
        "x = min(a, b)": ["x = max(a, b)"],
        "x = a.any()": ["x = a.all()"],
        "x = f(a, key=b)": ["x = f(a)"],
        "x = f(key=b, other=c)": ["x = f( other=c)", "x = f(key=b)"],
        "def f():\n    return x": ["return None"],
        "f(a)": ["pass"],
        "x = a[b:c]": ["x = a[b + 1:c]", "x = a[b:c + 1]"],
        "x = a[:b]": ["x = a[:b + 1]", "x = a[-(b):]"],
        "x = a[-b:]": ["x = a[-b + 1:]", "x = a[b:]", "x = a[:b]"],
        "x = x.strip()": ["pass", "x = x"],
        "y = abs(x)": ["y = x"],
        "y = torch.exp(x)": ["y = x"],
        "y = x.amax(a)": ["y = x.amin(a)", "y = x.amax()"],
        "with a():\n    pass": ["if True:"],
        "x = {'kind': a}": ["x = {'Xkind': a}"],
        "x = a == 'word'": ["x = a != 'word'", "x = a == 'Xword'"],
        "x += a": ["x -= a", "pass"],
        "x = 'é' in a and b + c": [
            "x = 'é' not in a and b + c",
            "x = 'é' in a or b + c",
            "x = 'é' in a and b - c",
            "x = 'Xé' in a and b + c",
        ],
    }
    for source, after in expected.items():
        assert {change.split("\n+ ")[1] for change in changes(source)} == set(after), source


def test_what_holds_no_behaviour_is_left_alone():
    lines = {mutant.line for mutant in mutants("f.py", SOURCE)}
    text = SOURCE.splitlines()
    mutated = {text[line - 1].strip() for line in lines}
    assert mutated == {
        "if a is None:",
        'raise ValueError("a is 1 of 2")',
        "return a if a > b else b",
        "return a * 3",
    }
    assert changes("x: int | None = f(strict=True)\nprogress(1, 2)\n") == set()
    (removed,) = changes('raise ValueError("1 " + 2)')
    assert removed.endswith("+ pass")


def test_an_id_survives_code_above_and_tells_equal_lines_apart():
    before = mutants("f.py", "x = a + b\nx = a + b\n")
    after = mutants("f.py", "import os\n\nx = a + b\nx = a + b\n")
    assert [m.id for m in before] == [m.id for m in after]
    assert len({m.id for m in before}) == 2


def test_a_test_counts_that_calls_the_function_in_a_fixture_and_another_process(toy, tmp_path):
    (mutant,) = (m for m in sample(toy, 99, 0, ["part/loop.py"]) if m.new == "<=")
    (toy.root / "tests/part/test_all.py").unlink()
    run(toy, tmp_path, "--only", "part/loop.py", "--sample", "99", "--limit", "2")
    lines = (tmp_path / "out/mutants.jsonl").read_text().splitlines()
    (entry,) = (e for e in map(json.loads, lines) if e["id"] == mutant.id)
    assert (entry["status"], entry["by"]) == ("killed", "tests/test_command.py::test_printed")


def test_a_sample_is_seeded_and_grows(toy):
    small, large = sample(toy, 5, 1), sample(toy, 12, 1)
    assert small == sample(toy, 5, 1)
    assert set(small) < set(large)
    assert set(small) != set(sample(toy, 5, 2))
    assert {m.path for m in sample(toy, 99, 0, ["part/loop.py"])} == {"src/toy/part/loop.py"}


def test_survivors_are_found_accepted_and_not_run_again(toy, tmp_path, capsys):
    options = ("--only", "part/thing.py", "--sample", "99")
    drawn = sample(toy, 99, 0, ["part/thing.py"])
    untested = {mutant.id for mutant in drawn if "a * 3" in mutant.diff(SOURCE)}
    # of equal numbers, either is the larger
    equivalent = {mutant.id for mutant in drawn if mutant.new == ">="}
    assert len(untested) == 4
    assert len(equivalent) == 1
    assert run(toy, tmp_path, *options) == 1
    out, err = capsys.readouterr()
    first = statuses(tmp_path)
    survivors = {key for key, status in first if status == "survived"}
    assert survivors == untested | equivalent
    assert {dict(first)[mutant.id] for mutant in drawn} == {"survived", "killed"}
    assert toy.read("src/toy/part/thing.py") == SOURCE
    assert "skipped without a fault:\n  tests/test_broken.py::test\n" in out
    assert "0:00:00 left" in err
    assert "    - return a * 3\n    + return a / 3" in out

    # nothing has changed: nothing is run
    assert run(toy, tmp_path, *options) == 1
    assert statuses(tmp_path) == first
    assert "0 to run" in capsys.readouterr().err

    # a reason for each survivor
    entries = [
        {"id": key, "file": "f", "line": "l", "mutation": "m", "reason": "as good"}
        for key in (*survivors, "gone")
    ]
    (tmp_path / "accepted.json").write_text(json.dumps(entries))
    assert run(toy, tmp_path, *options) == 0
    out = capsys.readouterr().out
    assert out.count("reason: as good") == len(survivors)
    assert "no longer in the source:\n  gone" in out

    # a new test: survivors are run again and killed, what was killed is not
    test = toy.root / "tests/part/test_thing.py"
    test.write_text(
        TESTS + "\n\ndef test_untested():\n    from toy.part.thing import untested\n"
        "    assert untested(2) == 6\n"
    )
    run(toy, tmp_path, *options)
    second = statuses(tmp_path)[len(first) :]
    assert {key for key, _ in second} == survivors
    assert {status for key, status in second if key in untested} == {"killed"}
    assert {status for key, status in second if key in equivalent} == {"survived"}


def test_an_endless_loop_is_timed_out_and_a_line_cut_short_run_again(toy, tmp_path):
    options = ("--only", "part/loop.py", "--seed")
    seed = next(
        seed
        for seed in range(99)
        if [m.operator for m in sample(toy, 1, seed, ["part/loop.py"])] == ["statement"]
    )
    options = (*options, str(seed), "--sample", "1")
    assert run(toy, tmp_path, *options, "--limit", "2") == 0
    path = tmp_path / "out/mutants.jsonl"
    text = path.read_text()
    last = json.loads(text.splitlines()[-1])
    assert last["status"] == "timed out"
    assert last["diff"] == "- n += 1\n+ pass"
    path.write_text(text[:-20])  # as after a kill within a write
    assert run(toy, tmp_path, *options, "--limit", "2") == 0
    again = json.loads(path.read_text().splitlines()[-1])
    assert again | {"seconds": 0} == last | {"seconds": 0}


def test_without_a_test_that_passes_nothing_is_run(toy, tmp_path):
    for test in (toy.root / "tests").rglob("test_*.py"):
        test.write_text("def test(): raise ValueError\n")
    with pytest.raises(SystemExit, match="no test passes"):
        run(toy, tmp_path, "--sample", "2")


def test_the_output_of_one_mutant_is_shown(toy, tmp_path, capsys):
    mutant = next(m for m in mutants("src/toy/part/thing.py", SOURCE) if m.operator == "comparison")
    assert run(toy, tmp_path, "--id", mutant.id) == 0
    out = capsys.readouterr().out
    assert "+ if a is not None:" in out
    assert "FAILED tests/part/test_thing.py::test_larger" in out
