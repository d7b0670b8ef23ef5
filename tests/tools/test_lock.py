"""The lock files: complete, by hash, and silent about where they were made."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from tools.lock import CONTENTS, LOCKS, entries, locked

HOME = Path(__file__).parents[2]


def names(path):
    return {re.match(r"[\w.-]+", entry)[0] for entry in entries(path.read_text("utf-8"))}


def test_entries_keep_their_hashes_and_those_of_torch_are_left_out():
    hashed = "a==1 \\\n    --hash=x \\\n    --hash=y\n"
    text = f"# a comment\n{hashed}b==2\ntorch==2\nnvidia-a==1\ntorchy==3\n"
    expected = [hashed, "b==2\n", "torchy==3\n"]
    assert list(locked(entries(text))) == expected


def test_every_lock_file_is_one_that_is_written():
    assert {path.stem for path in LOCKS.iterdir()} == set(CONTENTS)


@pytest.mark.parametrize("name", CONTENTS)
def test_every_entry_has_a_version_and_hashes_and_no_address(name):
    text = (LOCKS / f"{name}.txt").read_text("utf-8")
    for entry in entries(text):
        first, *hashes = re.sub(r"\s*\\\n", "\n", entry).strip().split("\n    ")
        assert re.fullmatch(r"[\w.-]+==[\w.+!-]+( ; .+)?", first), first
        assert hashes
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", part) for part in hashes), entry
    assert not re.search(r"://|--(extra-)?index|--find-links|/(opt|home|tmp|root)/", text)


def test_what_the_project_needs_is_locked():
    project = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    groups = project["dependency-groups"]
    needed = {
        "base": project["project"]["dependencies"],
        "dev": [*project["project"]["dependencies"], *extras["dev"]],
        "build": groups["build"],
        "docs": groups["docs"],
        "fuzz": groups["fuzz"],
        "release": groups["release"],
        "api": [*groups["api"], *extras["langchain"], *extras["llama-index"]],
        "ray": [*project["project"]["dependencies"], *extras["ray"]],
    }
    for name, requirements in needed.items():
        wanted = {re.match(r"[\w.-]+", requirement)[0].lower() for requirement in requirements}
        assert wanted - {"torch"} <= names(LOCKS / f"{name}.txt"), name
        assert not {"torch", "triton"} & names(LOCKS / f"{name}.txt")
        assert not any(
            entry.startswith(("nvidia", "cuda")) for entry in names(LOCKS / f"{name}.txt")
        )


def test_dev_has_what_the_extras_have():
    project = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    for name in ("captum", "data", "frame", "graph", "plot", "vision", "web"):
        assert set(extras[name]) <= set(extras["dev"]), name


def test_base_is_part_of_dev():
    base, dev = (
        {entry.split()[0] for entry in entries((LOCKS / f"{name}.txt").read_text("utf-8"))}
        for name in ("base", "dev")
    )
    assert base <= dev


def test_torch_is_held_by_version():
    constraint = (HOME / "constraints.txt").read_text("utf-8")
    assert re.findall(r"^torch==(.+)$", constraint, re.M) == [version("torch").partition("+")[0]]
