"""Writes numbers, pictures and the tables of the document from the results of all sets."""

from __future__ import annotations

from pathlib import Path

from reproduction.document import write_document
from reproduction.figures import draw
from reproduction.registry import SETS
from reproduction.result import SUFFIX, SetResult
from reproduction.table import Numbers, read_numbers, write_numbers


def report(results: Path, document: Path) -> None:
    """Writes everything that is made from the files of the sets."""
    files = [results / f"{name}{SUFFIX}" for name in SETS]
    found = [SetResult.read(file) for file in files if file.exists()]
    write_numbers(found, results)
    draw(found, results)
    write_document(Numbers(read_numbers(results)), document)
