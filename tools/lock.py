"""Writes the lock files: every package that is installed here, with its version and its hashes.

Run by `make -C tools lock`. torch and what only its CUDA builds need are left out: a CPU build has
other hashes than the one in the registry, so torch is held by its version in constraints.txt.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

HOME = Path(__file__).parents[1]
LOCKS = HOME / "locks"
HEADER = "# Written by make -C tools lock. Hashes of all files of a version, for every platform.\n"
# what each file locks: options of `uv pip compile`
CONTENTS = {
    "dev": ["pyproject.toml", "--extra", "dev"],
    "base": ["pyproject.toml", "--constraint", "locks/dev.txt"],
    "build": ["--group", "pyproject.toml:build", "--constraint", "locks/dev.txt"],
    "axe": ["--group", "pyproject.toml:axe", "--no-deps"],
    "docs": ["--group", "pyproject.toml:docs"],
    "fuzz": ["--group", "pyproject.toml:fuzz"],
    "release": ["--group", "pyproject.toml:release"],
    "ray": ["pyproject.toml", "--extra", "ray", "--constraint", "locks/dev.txt"],
    "api": [
        "pyproject.toml",
        "--extra",
        "langchain",
        "--extra",
        "llama-index",
        "--group",
        "pyproject.toml:api",
        "--constraint",
        "locks/dev.txt",
    ],
    "llm": ["--group", "pyproject.toml:llm", "--no-deps"],
}
_OF_CUDA = ("nvidia-", "cuda-", "triton")


def entries(text: str) -> Iterator[str]:
    """The requirements of a lock file, each with its hashes; comments are left out."""
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        if line.startswith("#"):
            continue
        if lines and not line.startswith(" "):
            yield "".join(lines)
            lines = []
        lines.append(line)
    if lines:
        yield "".join(lines)


def locked(requirements: Iterable[str]) -> Iterator[str]:
    """The requirements that are locked by hash."""
    for requirement in requirements:
        if not requirement.startswith((*_OF_CUDA, "torch==")):
            yield requirement


def compile_lock(uv: str, options: list[str]) -> str:
    """The content of one lock file, with the newest versions that pyproject.toml allows."""
    done = subprocess.run(
        [
            uv, "pip", "compile", *options, "--constraint", "constraints.txt",
            "--universal", "--python-version", "3.11", "--generate-hashes", "--no-annotate",
            "--no-header", "--quiet",
        ],
        cwd=HOME, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    return HEADER + "".join(locked(entries(done.stdout)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uv", default="uv", help="the program uv")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CONTENTS)}; default all")
    given = parser.parse_args()
    LOCKS.mkdir(exist_ok=True)
    for name in given.names or CONTENTS:
        lock = compile_lock(given.uv, CONTENTS[name])
        (LOCKS / f"{name}.txt").write_text(lock, encoding="utf-8")
