"""The rows of table files: CSV, TSV, JSON, JSON lines or Parquet, gzip or not."""

from __future__ import annotations

import csv
import io
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError, MissingExtra
from wherefrom.inputs.records import LABEL, PAIRS, TEXT, records_of
from wherefrom.storage.text_file import decoded, lines_of, read_bytes

_USUAL = frozenset((*TEXT, *LABEL, *(name for pair in PAIRS for name in pair)))
_SEPARATOR_LINE = re.compile(r"sep=(.)\r?\n")
_CSV_LIMIT = threading.Lock()  # of the length of a field: one number for the whole process


def records(path: Path, encoding: str | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a file, each as its columns."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith((".parquet", ".pq")):
        yield from _parquet(path)
    elif name.endswith((".jsonl", ".ndjson", ".json")):
        yield from _json_rows(path, decoded(path, read_bytes(path), encoding))
    elif name.endswith((".csv", ".tsv")):
        text = decoded(path, read_bytes(path), encoding)
        yield from _csv_rows(path, text, "\t" if name.endswith(".tsv") else ",")
    else:
        raise FileError(
            f"cannot read {path.name}: the name must end in .csv, .tsv, .json, .jsonl or .parquet "
            "(.gz)."
        )


def _csv_rows(path: Path, text: str, usual: str) -> Iterator[dict[str, Any]]:
    named = _SEPARATOR_LINE.match(text)  # as spreadsheets write it
    text = text[named.end() :] if named else text
    with _CSV_LIMIT:
        limit = csv.field_size_limit(max(len(text), 1))  # a text may be longer than 131,072
        try:
            delimiter = named[1] if named else _delimiter(text, usual)
            # a line break in quotes is part of the text
            reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
            try:
                rows = list(reader)
            except csv.Error as error:
                raise FileError(f"{path}, line {reader.line_num} is not CSV: {error}.") from error
        finally:
            csv.field_size_limit(limit)
    for row in rows:
        yield {key: value for key, value in row.items() if key is not None}


def _delimiter(text: str, usual: str) -> str:
    r"""What separates the columns: what makes most of the header, usual names first.

    >>> _delimiter("text;label\na, b;1", ","), _delimiter("id\ttext, or so\n", ",")
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
        for number, record in enumerate(_parsed(text, f"{path}, line 1"), 1):
            yield _checked(record, f"{path}, entry {number}")
        return
    lines = [(number, line) for number, line in enumerate(lines_of(text), 1) if line.strip()]
    if len(lines) > 1 and lines[0][1].strip() == "{":  # one object, over several lines
        lines = [(1, text)]
    if len(lines) == 1:
        number, line = lines[0]
        record = _checked(_parsed(line, f"{path}, line {number}"), f"{path}, line {number}")
        are_columns = bool(record) and all(isinstance(cells, list) for cells in record.values())
        yield from map(dict, records_of(record) or [record]) if are_columns else [record]
        return
    for number, line in lines:
        where = f"{path}, line {number}"
        yield _checked(_parsed(line, where), where)


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FileError(f"{where} is not JSON: {error.msg}.") from error
    except RecursionError as error:
        raise FileError(f"{where} is nested too deeply.") from error
    except ValueError as error:  # Python reads no integer of more than 4,300 digits
        raise FileError(f"{where} has a number of too many digits.") from error


def _checked(record: Any, where: str) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise FileError(f"{where} is not an object with columns.")
    return record


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "data", "reading Parquet") from error
    try:
        table = pyarrow.parquet.read_table(path)
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}.") from error
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {path}: {error}") from error
    yield from table.to_pylist()


def parquet_bytes(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """Columns of one length as a Parquet file; a lone surrogate in a text as its escape."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "data", "writing Parquet") from error
    valid = {name: [_valid(value) for value in values] for name, values in columns.items()}
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(valid), file)
    return file.getvalue()


def _valid(value: Any) -> Any:
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value
