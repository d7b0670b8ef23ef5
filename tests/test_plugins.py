"""Packages outside the tree add methods and readers through entry points."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import wherefrom
from wherefrom import METHODS, READERS, Explainer, Method, Reader
from wherefrom.core.plugins import PluginTable
from wherefrom.errors import PluginError, PluginWarning
from wherefrom.inputs.rows import RowsReader
from wherefrom.methods import _problem as method_problem

THEIRS = '''
from dataclasses import dataclass

import torch

from wherefrom import Case, Method, Scores


@dataclass(frozen=True)
class MaskOut(Method):
    """How much the output falls when attention ignores a unit."""

    name = "mask_out"
    paper = "Theirs 2026"
    relative: bool = False

    def scores(self, case: Case) -> Scores:
        tensors = case.batch.model_tensors()
        with case.runner.evaluating(), torch.no_grad():
            logits = case.runner.run(tensors)
            case = case.resolved(logits)
            output = case.target(logits)
            falls = []
            for unit in range(case.batch.mask.shape[1]):
                mask = tensors["attention_mask"].clone()
                mask[:, unit] = 0
                masked = case.runner.run({**tensors, "attention_mask": mask})
                falls.append(output - case.target(masked))
        values = torch.stack(falls, 1) * case.batch.mask
        return Scores(values / output[:, None] if self.relative else values, logits)

'''
READER = '''
import torch

from wherefrom.inputs.readers import first_of
from wherefrom.inputs.rows import RowsReader


class Csv(str):
    """Numbers by commas, a row in each line."""


class CsvReader(RowsReader):
    """Reads numbers by commas."""

    name = "csv"

    @classmethod
    def accepts(cls, context, inputs):
        return isinstance(first_of(inputs), Csv)

    def listed(self, inputs):
        return (list(inputs), False) if isinstance(inputs, list) else ([inputs], True)

    def read(self, source, truncate=False):
        rows = [[float(number) for number in line.split(",")] for line in source.split()]
        return torch.tensor(rows, dtype=torch.float64)
'''


def distribution(folder, name, modules, **groups):
    """A package with entry points as an installer leaves it."""
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source, encoding="utf-8")
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    lines = []
    for group, points in groups.items():
        lines += [f"[wherefrom.{group}]", *(f"{key} = {value}" for key, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def theirs(tmp_path):
    return distribution(
        tmp_path,
        "their-package",
        {"their_method": THEIRS, "their_reader": READER},
        methods={
            "mask_out": "their_method:MaskOut",
            "gone": "their_method:Gone",
            "absent": "no_such_module:Thing",
        },
        readers={"csv": "their_reader:CsvReader"},
    )


def run_beside(folder, script):
    """Runs a script on a path that has the package in this folder beside ours."""
    path = os.pathsep.join([str(folder), str(Path(wherefrom.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "200"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_another_package_adds_a_method_and_a_reader(theirs):
    script = """
import json
import torch, wherefrom
from typer.testing import CliRunner
from wherefrom.cli import app
from wherefrom.testing import check_method

command = ["explain", "a gorgeous film", "--method", "mask_out", "--set", "relative=True"]
done = CliRunner().invoke(app, [*command, "--json", "-"])
assert done.exit_code == 0, done.output
explanation = json.loads(done.stdout)
assert explanation["method"]["name"] == "mask_out"
assert explanation["method"]["label"] == "mask_out(relative=True)"
assert explanation["method"]["settings"] == {"relative": True}
assert [unit["text"] for unit in explanation["units"]][2] == "gorgeous"
# the entry points beside it are broken: each is a warning that names the package
for name in ("gone", "absent"):
    assert f"their-package 1.2 adds '{name}' to wherefrom.methods" in done.stderr, done.stderr

from their_method import MaskOut
from their_reader import Csv
listing = CliRunner().invoke(app, ["methods"]).stdout
ours = listing[listing.index("mask_out"):]
assert "attention ignores a unit" in ours and "relative=False" in ours, listing
assert wherefrom.METHODS["mask_out"] is MaskOut
assert list(wherefrom.METHODS)[-1] == "mask_out" and "gone" not in wherefrom.METHODS
check_method(wherefrom.method("mask_out", relative=True))

model = torch.nn.Linear(2, 3).double()
class Mean(torch.nn.Module):
    def forward(self, x):
        return model(x.mean(1))
explanation = wherefrom.Explainer(Mean())(Csv("1,2\\n3,4"))
assert len(explanation.units) == 2 and explanation.ledger.relative < 1e-9
assert "csv" in wherefrom.READERS
print("fine")
"""
    assert run_beside(theirs, script).stdout.strip() == "fine"


def table(builtin=()):
    return PluginTable("wherefrom.methods", dict(builtin), method_problem)


def test_entry_points_are_looked_up_once_and_only_when_needed(theirs, monkeypatch):
    import wherefrom.core.plugins as plugins

    lookups = []
    find = plugins.entry_points
    monkeypatch.setattr(plugins, "entry_points", lambda **of: lookups.append(of) or find(**of))
    monkeypatch.syspath_prepend(str(theirs))
    methods = table(METHODS.builtin)
    assert methods["lrp"] is METHODS["lrp"]
    assert lookups == []
    with pytest.warns(PluginWarning):
        assert "mask_out" in methods
    assert "nothing" not in methods
    assert list(methods) == [*METHODS.builtin, "mask_out"]
    assert lookups == [{"group": "wherefrom.methods"}]


def test_a_broken_entry_point_is_left_out_by_name_and_the_rest_works(tmp_path, monkeypatch):
    source = (
        "from dataclasses import dataclass\n"
        "from wherefrom import Method\n"
        "class Plain: name = 'plain'\n"
        "@dataclass(frozen=True)\n"
        "class Named(Method):\n"
        "    name = 'named'\n"
        "    def scores(self, case): ...\n"
        "@dataclass(frozen=True)\n"
        "class Needy(Named):\n"
        "    strength: float\n"
        "    name = 'needy'\n"
    )
    points = {
        "plain": "broken_methods:Plain",
        "other": "broken_methods:Named",
        "named": "broken_methods:Named",
        "needy": "broken_methods:Needy",
        "lrp": "broken_methods:Named",
        "raises": "raising_module:Thing",
    }
    modules = {"broken_methods": source, "raising_module": "raise SystemError('bad build')"}
    distribution(tmp_path, "broken", modules, methods=points)
    monkeypatch.syspath_prepend(str(tmp_path))
    methods = table(METHODS.builtin)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert list(methods) == [*METHODS.builtin, "named"]
    messages = [str(warning.message) for warning in caught]
    assert all(message.startswith("broken 1.2 adds ") for message in messages)
    for part in (
        "'plain' to wherefrom.methods (broken_methods:Plain), which cannot be used",
        "is not a dataclass derived from wherefrom.Method",
        "its name is 'named', not 'other'",
        "these settings have no default: strength",
        'the name "lrp" is taken',
        "SystemError: bad build",
    ):
        assert sum(part in message for message in messages) == 1, part
    assert len(messages) == 5


def test_our_own_tables_take_part():
    assert METHODS.group == "wherefrom.methods"
    assert READERS.group == "wherefrom.readers"
    assert list(READERS.builtin) == ["graph", "signal", "image", "rows", "text"]
    assert all(issubclass(kind, Method) for kind in METHODS.values())
    assert all(issubclass(kind, Reader) for kind in READERS.values())


class Total(nn.Module):
    def forward(self, x):
        return torch.stack([x.sum((1, 2)), -x.sum((1, 2))], 1)


class Twice(RowsReader):
    """Reads an array, doubled."""

    name = "twice"

    @classmethod
    def accepts(cls, context, inputs):
        return isinstance(inputs, np.ndarray)

    def listed(self, inputs):
        return [inputs], True

    def read(self, source, truncate=False):
        return 2 * torch.from_numpy(source)


def test_a_reader_that_is_registered_is_asked_first():
    explainer = Explainer(Total())
    wherefrom.register_reader(Twice)
    try:
        assert READERS["twice"] is Twice
        explanation = explainer(np.ones((3, 2)), target=0)
        assert explanation.scores.tolist() == [4.0, 4.0, 4.0]
    finally:
        READERS.remove("twice")
    assert "twice" not in READERS
    assert explainer(np.ones((3, 2)), target=0).scores.tolist() == [2.0, 2.0, 2.0]


def test_what_is_not_a_reader_is_not_registered():
    class Half(Reader):
        name = "half"

        def size(self, item):
            return 0

    class Text(Twice):
        name = "text"

    class NoReader:
        name = "no"

    for kind, says in (
        (Half, "does not define accepts, batch"),
        (Text, "'text' is built in"),
        (NoReader, r"not derived from wherefrom\.Reader"),
    ):
        with pytest.raises(PluginError, match=says):
            wherefrom.register_reader(kind)
