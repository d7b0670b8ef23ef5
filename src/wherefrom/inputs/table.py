"""Tables as data: rows of CSV, TSV, JSON and Parquet files, folders of images, tables in memory.

Every row of a file is either read, or rejected with its index and the reason.
"""

from __future__ import annotations

import csv
import io
import re
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, TextIO

from wherefrom.errors import FileError, InputError
from wherefrom.inputs.pictures import SUFFIXES
from wherefrom.inputs.records import (
    FILES,
    LABEL,
    PAIRS,
    TEXT,
    TableRecord,
    as_inputs,
    collected,
    column,
    columns_of,
    is_missing,
    pair_columns,
    records_of,
    source_of,
)
from wherefrom.storage.arrow import parquet_records
from wherefrom.storage.text_file import encoding_of, parsed, read_bytes

FORMATS = {
    ".parquet": "parquet", ".pq": "parquet", ".jsonl": "json", ".ndjson": "json",
    ".json": "json", ".csv": "csv", ".tsv": "tsv",
}  # fmt: skip
"""Table formats by file suffix."""
LONGEST = 1 << 24
"""The longest line and field that are read, in characters."""
_HEAD = 1024  # rows that are searched for column names
_USUAL = frozenset((*TEXT, *LABEL, *(name for pair in PAIRS for name in pair)))
_SEPARATOR_LINE = re.compile(r"sep=(.)\r?\n")
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")  # as the error handler surrogateescape decodes it
_CSV_LIMIT = threading.Lock()  # the field size limit is global to the process


@dataclass(frozen=True)
class Rows:
    """Texts with their labels, if any.

    `rejected` maps the index of each unusable row (from 0) to the reason; `skipped` counts these
    rows by kind of reason.
    """

    texts: list[Any]
    labels: list[str | int] | None
    skipped: dict[str, int] = field(default_factory=dict)
    rejected: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts)


def read_table(
    data: Any,
    text_column: str | None = None,
    label_column: str | None = None,
    *,
    pair_column: str | None = None,
    encoding: str | None = None,
) -> Rows:
    """The texts and labels of a file or of a table in memory; columns by their usual names.

    `data` is a path, a data frame, a data set, a list of dicts or a dict of columns. Texts come in
    pairs if both columns of a usual pair are present (premise and hypothesis, question and
    context, …), or if `pair_column` names the second. `encoding` is that of a text file;
    without it, UTF-8 and UTF-16 are recognised; other encodings are guessed with a warning.

    Paths of images are relative to the file. In a folder every image is read, and labelled with
    the name of its subfolder. A label stays text where the table has text: "1" is the class
    labelled "1" if the model has one, else the class with index 1.

    A row is in `rejected`, with the reason, if it has no text, if it has no label although other
    rows do, or if it cannot be read.
    """
    columns = (text_column, label_column, pair_column)
    if isinstance(data, (str, Path)):
        path = Path(data)
        if path.is_dir():
            return _folder(path)
        rows = list(_file_records(path, encoding))
        if not rows:
            raise FileError(f"{path} has no rows.")
        return _rows(rows, str(path), path.parent, *columns)
    table = records_of(data)
    if table is None:
        raise InputError(
            f"cannot read a {type(data).__name__} as a table: pass a path, a data frame, a data "
            "set, a list of dicts or a dict of columns."
        )
    if not table:
        raise InputError("the table has no rows.")
    return _rows(table, "the table", None, *columns)


def _rows(
    table: Sequence[TableRecord | FileError],
    name: str,
    folder: Path | None,
    text_column: str | None,
    label_column: str | None,
    pair_column: str | None,
) -> Rows:
    """The rows that have a text, and a label if others have one; paths are relative to `folder`."""
    readable = [record for record in table if not isinstance(record, FileError)]
    if not readable:
        raise next(record for record in table if isinstance(record, FileError))
    columns = columns_of(readable)
    pair = pair_columns(columns, text_column, pair_column)
    text = "" if pair else column(columns, text_column, TEXT, "text")
    label = column(columns, label_column, LABEL, "label", needed=label_column is not None)
    rows = Rows([], [] if label else None)
    for number, record in enumerate(table):
        source = label_value = None
        if isinstance(record, FileError):
            kind, reason = "unreadable", str(record)
        else:
            source = source_of(record, text, pair)
            label_value = record.get(label) if label else None
            kind = "empty text" if source is None else "no label"
            reason = kind
        if source is None or (label and (is_missing(label_value) or label_value == "")):
            rows.rejected[number] = reason
            rows.skipped[kind] = rows.skipped.get(kind, 0) + 1
            continue
        is_path = folder is not None and text in FILES
        rows.texts.append(str(folder / source) if is_path and folder is not None else source)
        if rows.labels is not None:
            rows.labels.append(as_label(label_value))
    if not rows.texts:
        raise InputError(f"{name} has {len(table)} rows, but none with a text.")
    return rows


def as_rows(data: Any) -> Rows:
    """A table, a list of inputs, or of pairs (input, label), as rows."""
    if isinstance(data, Rows):
        return data
    if isinstance(data, (str, Path)):
        raise InputError(
            "pass a list of texts.", "Read a file with wherefrom.read_table(path).", command=""
        )
    data = collected(data)
    if records_of(data) is not None:
        return read_table(data)
    inputs = as_inputs(data)
    if not isinstance(inputs, (list, tuple)):
        raise InputError(
            f"cannot read a {type(data).__name__} as data: pass a list of texts, pairs (text, "
            "label) or a data frame.",
            "Read a file with wherefrom.read_table(path).",
            command="",
        )
    samples = list(inputs)
    if not samples:
        raise InputError("the list of texts is empty.")
    is_pair = [isinstance(sample, (tuple, list)) for sample in samples]
    if not any(is_pair):
        return Rows(samples, None)
    if all(is_pair) and all(len(sample) == 2 for sample in samples):
        return Rows([source for source, _ in samples], [label for _, label in samples])
    raise InputError("pass texts or images, or pairs (input, label).")


def _folder(folder: Path) -> Rows:
    """The images of a folder, or of its subfolders, whose names are then the labels."""
    subfolders = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [
        file
        for parent in subfolders or [folder]
        for file in sorted(parent.iterdir())
        if file.suffix.lower() in SUFFIXES
    ]
    if not files:
        raise FileError(f"{folder} has no images ({', '.join(sorted(SUFFIXES))}).")
    labels: list[str | int] | None = [file.parent.name for file in files] if subfolders else None
    return Rows([str(file) for file in files], labels)


def as_label(value: Any) -> str | int:
    """An integer as an index; text as a name, which is looked up in the model's labels."""
    if isinstance(value, float) and value.is_integer():  # a column with gaps holds floats
        return int(value)
    return int(value) if hasattr(value, "__index__") else str(value).strip()


# Rows of files


def kind_of(name: str) -> str:
    """The format of a file by its name; an error if that format cannot be read."""
    for suffix, kind in FORMATS.items():
        if name.lower().removesuffix(".gz").endswith(suffix):
            return kind
    raise FileError(
        f"cannot read {name}: the name must end in .csv, .tsv, .json, .jsonl or .parquet (.gz)."
    )


def records(path: Path, encoding: str | None = None) -> Iterator[TableRecord]:
    """The rows of a file as dicts; raises at the first row that cannot be read."""
    for record in _file_records(path, encoding):
        if isinstance(record, FileError):
            raise record
        yield record


def _file_records(path: Path, encoding: str | None) -> Iterator[TableRecord | FileError]:
    if kind_of(path.name) == "parquet":
        return parquet_records(path)
    content = read_bytes(path)
    known = encoding_of(path, content, encoding)
    return text_records(
        str(path), io.TextIOWrapper(io.BytesIO(content), known, "surrogateescape", newline="")
    )


def text_records(name: str, stream: TextIO) -> Iterator[TableRecord | FileError]:
    """The rows of CSV, TSV or JSON, by the file's suffix; rejected rows are FileErrors.

    The stream must keep line ends (newline=""), since a quoted line break is part of the text, and
    decode invalid bytes as lone surrogates (errors="surrogateescape").
    """
    kind = kind_of(name)
    lines = _Lines(name, stream)
    return _json_rows(name, lines) if kind == "json" else _csv_rows(name, lines, kind)


def with_columns(
    rows: Iterable[TableRecord | FileError],
) -> tuple[list[str], Iterator[TableRecord | FileError]]:
    """The union of the columns of the first 1,024 rows, and all rows."""
    rows = iter(rows)
    head = list(islice(rows, _HEAD))
    columns = columns_of([record for record in head if not isinstance(record, FileError)])
    return columns, chain(head, rows)


class _BadLine(csv.Error):
    """Why a line cannot be read."""


class _Lines(Iterator[str]):
    """The numbered lines of a stream; `used` are those of the current row."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self.name, self.stream, self.number = name, stream, 0
        self.used: list[tuple[int, str | _BadLine]] = []
        self._again: deque[tuple[int, str | _BadLine]] = deque()

    def __next__(self) -> str:
        number, line = self._again.popleft() if self._again else self._read()
        self.used.append((number, line))
        if isinstance(line, _BadLine):
            raise line
        return line

    def rewind(self, start: int) -> None:
        """Returns the used lines to the stream, from this index on, to be read again."""
        self._again.extendleft(reversed(self.used[start:]))

    def rest(self) -> str:
        """The rest of the stream."""
        return self._call(self.stream.read, -1)

    def _read(self) -> tuple[int, str | _BadLine]:
        line = self._call(self.stream.readline, LONGEST)
        if not line:
            raise StopIteration
        self.number += 1
        if self.number == 1:
            line = line.removeprefix("\ufeff")
        if len(line) >= LONGEST:
            while line and not line.endswith(("\n", "\r")):
                line = self._call(self.stream.readline, LONGEST)
            return self.number, _BadLine(f"is longer than {LONGEST:,} characters")
        escaped = None if line.isascii() else _ESCAPED_BYTE.search(line)
        if escaped is not None:
            encoding = (getattr(self.stream, "encoding", None) or "utf-8").removesuffix("-sig")
            encoding = "UTF-8" if encoding.lower() == "utf-8" else encoding
            byte = ord(escaped[0]) - 0xDC00
            return self.number, _BadLine(
                f"is not {encoding}: byte 0x{byte:02x}; name its encoding, or save it as UTF-8"
            )
        return self.number, line

    def _call(self, read: Any, size: int) -> str:
        try:
            return str(read(size))
        except UnicodeDecodeError as error:
            raise FileError(
                f"{self.name}, line {self.number + 1} is not {error.encoding}: {error.reason}."
            ) from error
        except (EOFError, OSError, UnicodeError, zlib.error) as error:
            raise FileError(
                f"cannot read {self.name} after line {self.number}: {error}."
            ) from error


def _csv_rows(name: str, lines: _Lines, kind: str) -> Iterator[TableRecord | FileError]:
    try:
        header = next(lines, "")
        separator = _SEPARATOR_LINE.match(header)  # spreadsheets write such a line
        header = next(lines, "") if separator else header
    except _BadLine as error:
        raise FileError(f"{name}, line {lines.number} {error}.") from error
    lines.rewind(separator is not None)
    delimiter = separator[1] if separator else _delimiter(header, "\t" if kind == "tsv" else ",")
    reader = csv.reader(
        lines, delimiter=delimiter, skipinitialspace=f"{delimiter} " in header, strict=True
    )
    columns: list[str] = []
    while (row := _next_row(reader, lines)) is not None:
        cells, problem = ([], str(row)) if isinstance(row, csv.Error) else (row, "")
        if not columns and not problem:
            columns = _header(name, cells)
            continue
        # a short row lacks its last cells; one of several lines more likely lost a quote
        surplus = len(cells) - len(columns) if cells else 0
        if surplus > 0 or (surplus < 0 and len(lines.used) > 1):
            problem = (
                f"has {len(cells)} fields, but the header has {len(columns)}: a text that "
                f"contains {delimiter!r} or a line break must be in quotes"
            )
        if problem:
            number, line = lines.used[0]
            lines.rewind(1)  # only this line is rejected
            cells = _unquoted(line, delimiter)
            if len(cells) != len(columns):
                rejected = FileError(f"{name}, line {number} {problem}.")
                if not columns:
                    raise rejected
                yield rejected
                continue
        if cells:  # else a blank line
            pairs = zip(columns, chain(cells, repeat(None)), strict=False)
            yield {column: cell for column, cell in pairs if column}


def _next_row(reader: Iterator[list[str]], lines: _Lines) -> list[str] | csv.Error | None:
    """The next row of a CSV, or why it cannot be read; None at the end."""
    lines.used.clear()
    with _CSV_LIMIT:
        limit = csv.field_size_limit(LONGEST)
        try:
            return next(reader, None)
        except _BadLine as error:
            return error
        except csv.Error as error:
            is_open = "unexpected end" in str(error)
            return csv.Error(
                "opens a quote that is never closed" if is_open else f"is not CSV: {error}"
            )
        finally:
            csv.field_size_limit(limit)


def _unquoted(line: str | _BadLine, delimiter: str) -> list[str]:
    """The cells of a line in which quotes are plain characters.

    Most TSV files have such lines; in other formats the whole line is one cell.
    """
    if isinstance(line, _BadLine):
        return []
    line = line.rstrip("\r\n")
    return line.split(delimiter) if delimiter == "\t" else [line]


def _header(name: str, row: Sequence[str]) -> list[str]:
    columns = [cell.strip() for cell in row]
    twice = next((cell for cell in columns if cell and columns.count(cell) > 1), None)
    if twice is not None:
        raise FileError(f'{name} has several columns "{twice}": rename all but one.')
    return columns


def _delimiter(text: str, usual: str) -> str:
    r"""The delimiter that gives the header the most usual names, then the most columns.

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


def _json_rows(name: str, lines: _Lines) -> Iterator[TableRecord | FileError]:
    """The objects of an array or of lines, or the columns of one object."""
    rows = _json_records(name, lines)
    head = list(islice(rows, 2))
    only = head[0] if len(head) == 1 else None
    if isinstance(only, dict) and only and all(isinstance(cells, list) for cells in only.values()):
        head = list(records_of(only) or head)
    yield from chain(head, rows)


def _json_records(name: str, lines: _Lines) -> Iterator[TableRecord | FileError]:
    is_first = True
    while True:
        lines.used.clear()
        try:
            line = next(lines)
        except StopIteration:
            return
        except _BadLine as error:
            yield FileError(f"{name}, line {lines.used[0][0]} {error}.")
            continue
        start, where = line.strip(), f"{name}, line {lines.used[0][0]}"
        if is_first and (start.startswith("[") or start == "{"):  # one value over several lines
            whole = parsed(line + lines.rest(), where)
            entries = whole if isinstance(whole, list) else [whole]
            yield from (_checked(entry, f"{name}, entry {k}") for k, entry in enumerate(entries, 1))
            return
        if start:
            is_first = False
            try:
                yield _checked(parsed(line, where), where)
            except FileError as error:
                yield error


def _checked(record: Any, where: str) -> TableRecord | FileError:
    is_object = isinstance(record, dict)
    return record if is_object else FileError(f"{where} is not an object with columns.")
