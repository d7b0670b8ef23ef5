"""On a real Ray: the same rows, tables and pages as one process; nothing lost, nothing twice."""

import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import wherefrom
from tests.runs import crashing
from tests.runs.test_attempts import check_rows
from tests.test_readme import ROOT, blocks
from tools.ray_soak import compare, soak
from wherefrom import load
from wherefrom.cli import app
from wherefrom.errors import FileError, InputError
from wherefrom.runs.engine import Engine

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]  # Ray has many
ray = pytest.importorskip("ray", reason="*** NO TEST OF RAY IS RUN: make test-ray installs it ***")
engine_module = importlib.import_module("wherefrom.runs.ray_engine")
REVIEWS = [
    f"{name} {verb} a {word} film" for name in ("Mary", "Peter", "Anna", "John")
    for verb in ("is in", "saves", "made") for word in ("gorgeous", "dull", "fine", "bad")
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def local_ray():
    """One Ray for all tests of this file, small, ended with it."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(
        "local", num_cpus=2, object_store_memory=200_000_000, include_dashboard=False,
        log_to_driver=False, logging_level="error",
    )  # fmt: skip
    yield
    ray.shutdown()


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "reviews.csv"
    lines = [f"{text},{k % 2}" for k, text in enumerate(REVIEWS)]
    lines.insert(5, ",1")
    path.write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    return path


def test_rows_are_those_of_one_process_and_the_model_can_travel(data, tmp_path):
    explainer = load("sentiment", dtype="float64")
    wherefrom.run(explainer, data, tmp_path / "local", part_rows=8)
    seen = []
    result = wherefrom.run(
        explainer, data, tmp_path / "ray", part_rows=8, engine="ray", workers=2,
        progress=lambda *state: seen.append(state),
    )  # fmt: skip
    assert (result.explained, result.rejected, result.parts) == (48, 1, 7)
    compare(tmp_path / "local", tmp_path / "ray")
    assert seen[-1][:2] == (49, 49)
    assert len(seen) == 8
    again = wherefrom.run(
        explainer, data, tmp_path / "ray", part_rows=8, engine="ray", workers=2, resume=True
    )
    assert (again.explained, again.rejected, again.parts) == (48, 1, 7)


@pytest.mark.parametrize("command", ["corpus", "bias", "evaluate"])
def test_commands_write_the_tables_of_one_process(data, tmp_path, command, capsys):
    names = tmp_path / "names.csv"
    names.write_text("name,group\nMary,f\nAnna,f\nPeter,m\nJohn,m\n", encoding="utf-8")
    options = {
        "corpus": [],
        "bias": ["--groups", str(names)],
        "evaluate": ["--methods", "lrp,gradient,random", "--metrics", "activation,pruning"],
    }[command]
    printed = {}
    for engine in ("local", "ray"):
        more = ["--workers", "2"] if engine == "ray" else []
        out = tmp_path / engine
        app(
            [command, str(data), "--out", str(out), *options, "--engine", engine, *more],
            standalone_mode=False,
        )
        printed[engine] = capsys.readouterr().out
    if command != "evaluate":  # which recommends by the time that methods take
        assert printed["local"] == printed["ray"]
    tables = [path.name for path in (tmp_path / "ray").glob("*.csv")]
    assert tables
    for name in tables:
        one, other = (
            (tmp_path / engine / name).read_text("utf-8").splitlines() for engine in printed
        )
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            for x, y in zip(a.split(","), b.split(","), strict=True):
                try:
                    assert float(x) == pytest.approx(float(y), rel=1e-6, abs=1e-6), name
                except ValueError:
                    assert x == y


class _Fails:
    def __call__(self, item):
        raise FileError(f"item {item} is bad")


class _Breaks:
    def __iter__(self):
        yield 1
        raise InputError("the second cannot be read")


class _Doubles:
    def __call__(self, item):
        return 2 * item


def test_errors_of_workers_and_readers_arrive_as_they_are():
    engine = Engine("ray", workers=1)
    with pytest.raises(FileError, match="item 3 is bad"):
        list(engine.results([[3]], _Fails()))
    with pytest.raises(InputError, match="second cannot be read"):
        list(engine.results([_Breaks()], _Doubles()))
    assert sorted(engine.results([[1, 2], [3]], _Doubles())) == [2, 4, 6]


@pytest.mark.parametrize("read_here", [0, 10**6])
def test_every_item_is_a_block_so_that_one_file_keeps_all_workers_busy(monkeypatch, read_here):
    monkeypatch.setattr(engine_module, "_READ_BY_DRIVER", read_here)
    engine = Engine("ray", workers=2)
    dataset = engine_module._dataset(engine, [list(range(6))], _Doubles(), 2)
    blocks = [entry.metadata for b in dataset.iter_internal_ref_bundles() for entry in b.blocks]
    assert [block.num_rows for block in blocks] == [1] * 6


def test_the_cluster_file_of_the_docs_is_one():
    import yaml
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load(blocks(ROOT / "docs" / "scale.md", "yaml")[0])
    complete = prepare_config(config)
    validate_config(complete)
    workers = complete["available_node_types"]["workers"]
    assert workers["max_workers"] * workers["resources"]["CPU"] == 128  # --workers of the example


def test_killed_workers_nodes_and_drivers_lose_nothing(local_ray):
    kills = soak(3, seed=3, rows=300, part_rows=8, wait=3.0, a_run=3, nodes=2)
    assert dict(kills) == {"worker": 1, "node": 1, "driver": 1}


def test_a_row_that_kills_its_worker_is_rejected_and_stops_nothing(tmp_path):
    result = wherefrom.run(
        crashing.explainer(), crashing.TEXTS, tmp_path / "out", part_rows=18, engine="ray",
        workers=2,
    )  # fmt: skip
    assert (result.explained, result.rejected) == (34, 2)
    check_rows(tmp_path / "out", tmp_path / "whole")


def test_data_beyond_some_size_is_read_by_tasks_and_gives_the_same(monkeypatch):
    pieces = [list(range(6)), [], [6, 7]]
    engine = Engine("ray", workers=2)
    assert engine_module._read(engine, pieces, 2)[1] == 8
    monkeypatch.setattr(engine_module, "_READ_BY_DRIVER", 20)
    assert engine_module._read(engine, pieces, 2)[1] is None
    results = engine.results(pieces, _Doubles())
    assert sorted(results) == [2 * number for number in range(8)]


def test_small_data_is_handed_over_without_tasks(monkeypatch):
    """Processes that ran tasks were not taken for the workers, which then waited for others."""

    def submit(*_, **__):
        raise AssertionError("a task was started")

    monkeypatch.setattr("ray.remote_function.RemoteFunction._remote", submit)
    assert engine_module._read(Engine("ray", workers=2), [[1, 2]], 2)[1] == 2


@pytest.mark.parametrize("variable", ["RAY_USAGE_STATS_ENABLED", "RAY_worker_niceness"])
@pytest.mark.parametrize("chosen", [None, "1"])
def test_a_ray_started_here_keeps_the_settings_of_the_environment(monkeypatch, variable, chosen):
    found = []

    def init(*_, **__):
        found.append(os.environ.get(variable))
        raise ConnectionError

    monkeypatch.setattr(engine_module.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(engine_module.ray, "init", init)
    monkeypatch.delenv(variable, raising=False)
    if chosen is not None:
        monkeypatch.setenv(variable, chosen)
    for address, expected in ((None, chosen or "0"), ("auto", chosen)):
        with pytest.raises(InputError), engine_module.connected(Engine("ray", address)):
            pass
        assert found.pop() == expected
        assert os.environ.get(variable) == chosen


def test_the_driver_of_a_ray_of_its_own_imports_no_torch_and_refuses_the_same(data, tmp_path):
    wherefrom.run("sentiment", data, tmp_path / "local", part_rows=8)
    code = f"""
import sys
import wherefrom
from wherefrom.errors import FileError, TargetError
def run(out, **options):
    return wherefrom.run(
        "sentiment", {str(data)!r}, {str(tmp_path)!r} + out, part_rows=8, engine="ray", workers=2,
        **options,
    )
result = run("/ray")
assert (result.explained, result.rejected, result.parts) == (48, 1, 7), result
try:
    run("/bad", target="no such class")
except TargetError as error:
    assert "no such class" in str(error)
else:
    raise AssertionError
assert "torch" not in sys.modules
try:
    run("/ray", dtype="float64", resume=True)
except FileError as error:
    assert "other weights" in str(error)
else:
    raise AssertionError
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    compare(tmp_path / "local", tmp_path / "ray")
    assert not (tmp_path / "bad" / "results.parquet").exists()


def test_nothing_is_left_running():
    folder = tempfile.mkdtemp(prefix="ray")  # a short path: sockets lie in it
    code = (
        "import ray\n"
        "from wherefrom.runs.engine import Engine\n"
        "from tests.runs.test_ray import _Doubles\n"
        "assert list(Engine('ray', workers=1).results([[1]], _Doubles())) == [2]\n"
        "assert not ray.is_initialized()\n"
        "from wherefrom.errors import InputError\n"
        "try:\n"
        "    list(Engine('ray', workers=1, gpus_per_worker=1).results([[1]], _Doubles()))\n"
        "except InputError as error:\n"
        "    assert 'need 1 GPUs, but this machine has 0' in str(error)\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False,
        capture_output=True, text=True, env={**os.environ, "RAY_TMPDIR": folder},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    for _ in range(50):
        alive = [
            path
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if folder.encode() in _content(path)
        ]
        if not alive:
            return
        time.sleep(0.2)
    pytest.fail(f"still running: {alive}")


def _content(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""
