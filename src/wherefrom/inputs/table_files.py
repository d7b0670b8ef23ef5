"""The rows of table files: CSV, TSV, JSON, JSON lines or Parquet, gzip or not."""

from __future__ import annotations

import csv
import io
import re
import threading
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError
from wherefrom.inputs.records import LABEL, PAIRS, TEXT, records_of
from wherefrom.storage.arrow import parquet_records
from wherefrom.storage.text_file import decoded, lines_of, parsed, read_bytes

_USUAL = frozenset((*TEXT, *LABEL, *(name for pair in PAIRS for name in pair)))
_SEPARATOR_LINE = re.compile(r"sep=(.)\r?\n")
_CSV_LIMIT = threading.Lock()  # of the length of a field: one number for the whole process
_LONGEST_FIELD = 2**31 - 1  # a text may be longer than csv's 131,072


FORMATS = {
    ".parquet": "parquet", ".pq": "parquet", ".jsonl": "json", ".ndjson": "json",
    ".json": "json", ".csv": "csv", ".tsv": "tsv",
}  # fmt: skip
"""Formats of tables by the ends of file names."""


def kind_of(name: str) -> str:
    """The format that a file's name stands for; an error if it is none that can be read."""
    for suffix, kind in FORMATS.items():
        if name.lower().removesuffix(".gz").endswith(suffix):
            return kind
    raise FileError(
        f"cannot read {name}: the name must end in .csv, .tsv, .json, .jsonl or .parquet (.gz)."
    )


def records(path: Path, encoding: str | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a file, each as its columns; a row that cannot be read is an error."""
    if kind_of(path.name) == "parquet":
        yield from parquet_records(path)
        return
    text = decoded(path, read_bytes(path), encoding)
    if kind_of(path.name) == "json":
        yield from _json_rows(path, text)
        return
    for record in text_records(str(path), io.StringIO(text, newline="")):
        if isinstance(record, FileError):
            raise record
        yield record


def text_records(name: str, lines: Iterable[str]) -> Iterator[dict[str, Any] | FileError]:
    """The rows of CSV, TSV or JSON lines, read as they are asked for, by the name of the file.

    An error stands for a row that cannot be read. `lines` keep their ends: a line break in quotes
    is part of a text.
    """
    kind = kind_of(name)
    return _json_lines(name, lines) if kind == "json" else _csv_rows(name, lines, kind)


def _csv_rows(name: str, lines: Iterable[str], kind: str) -> Iterator[dict[str, Any]]:
    lines = iter(lines)
    header = next(lines, "")
    named = _SEPARATOR_LINE.match(header)  # as spreadsheets write it
    header = next(lines, "") if named else header
    delimiter = named[1] if named else _delimiter(header, "\t" if kind == "tsv" else ",")
    reader = csv.DictReader(chain([header], lines), delimiter=delimiter)
    while True:
        with _CSV_LIMIT:
            limit = csv.field_size_limit(_LONGEST_FIELD)
            try:
                row = next(reader, None)
            except csv.Error as error:
                line = reader.line_num + (named is not None)
                raise FileError(f"{name}, line {line} is not CSV: {error}.") from error
            finally:
                csv.field_size_limit(limit)
        if row is None:
            return
        yield {key: value for key, value in row.items() if key is not None}


def _delimiter(text: str, usual: str) -> str:
    r"""What separates the columns: what makes most of the header, usual names first.

    >>> _delimiter("text;label\na, b;1", ","), _delimiter("id\ttext\ta, b\n", ",")
    (';', '\t')
    """

    def columns(delimiter: str) -> tuple[int, int]:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        try:
            header = next(reader, [])
        except csv.Error:
            header = []
        return sum(cell.strip().lower() in _USUAL for cell in header), len(header)

    return max((usual, *(sign for sign in ",;\t|" if sign != usual)), key=columns)


def _json_rows(path: Path, text: str) -> Iterator[dict[str, Any]]:
    """The objects of an array; else those of the lines, or the columns of one object."""
    if text.lstrip().startswith("["):
        for number, record in enumerate(parsed(text, f"{path}, line 1"), 1):
            yield _checked(record, f"{path}, entry {number}")
        return
    lines = [(number, line) for number, line in enumerate(lines_of(text), 1) if line.strip()]
    if len(lines) > 1 and lines[0][1].strip() == "{":  # one object, over several lines
        lines = [(1, text)]
    if len(lines) == 1:
        number, line = lines[0]
        record = _checked(parsed(line, f"{path}, line {number}"), f"{path}, line {number}")
        are_columns = bool(record) and all(isinstance(cells, list) for cells in record.values())
        yield from map(dict, records_of(record) or [record]) if are_columns else [record]
        return
    for number, line in lines:
        where = f"{path}, line {number}"
        yield _checked(parsed(line, where), where)


def _json_lines(name: str, lines: Iterable[str]) -> Iterator[dict[str, Any] | FileError]:
    """The objects of JSON lines; an error in the place of a line that is none."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            record = _checked(parsed(line, where), where)
        except FileError as error:
            yield error
        else:
            yield record


def _checked(record: Any, where: str) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise FileError(f"{where} is not an object with columns.")
    return record
