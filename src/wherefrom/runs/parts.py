"""Reads data in parts of a fixed number of rows, with at most one part in memory."""

from __future__ import annotations

import gzip
import io
import posixpath
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError, InputError
from wherefrom.inputs.records import find_columns
from wherefrom.inputs.table import (
    FORMATS,
    Rows,
    as_label,
    as_rows,
    kind_of,
    text_records,
    with_columns,
)
from wherefrom.storage.arrow import File, find_files
from wherefrom.storage.fingerprint import digest
from wherefrom.storage.text_file import encoding_of

SUFFIXES = (*FORMATS, *(f"{end}.gz" for end, kind in FORMATS.items() if kind != "parquet"))
Label = str | int | None
_SAMPLE = 1 << 16  # bytes used to detect the encoding


class Location(str):
    """A path or URI in a list of data, where a plain `str` is a text to explain."""


@dataclass(frozen=True)
class DataPart:
    """Consecutive rows of one file: the unit of work, of results and of recovery.

    `texts` has a FileError for each row that could not be read.
    """

    file: int
    number: int  # within the file
    ids: list[str]
    texts: list[Any]
    labels: list[Label]
    labelled: bool  # whether the data has labels at all
    size: int = 0  # bytes of the file that it covers

    @property
    def name(self) -> str:
        """The name of its files."""
        return f"part-{self.file:05d}-{self.number:06d}"


@dataclass(frozen=True)
class ColumnNames:
    """The columns to read, by default those with usual names; ids are row numbers by default."""

    text: str | None = None
    label: str | None = None
    id: str | None = None
    encoding: str | None = None  # of text files; detected by default


@dataclass(frozen=True)
class SourcePiece(ABC):
    """Data that one process reads sequentially, without the `finished` parts."""

    number: int
    part_rows: int
    finished: frozenset[str] = field(default=frozenset(), kw_only=True)

    def __iter__(self) -> Iterator[DataPart]:
        return (part for part in self._parts() if part.name not in self.finished)

    @abstractmethod
    def _parts(self) -> Iterator[DataPart]: ...


@dataclass(frozen=True)
class FilePiece(SourcePiece):
    """A file; `name` is the part of its path that appears in row ids."""

    name: str
    columns: ColumnNames
    file: File

    def _parts(self) -> Iterator[DataPart]:
        records, position = _records(self.file, self.columns.encoding)
        with closing(records):
            columns, rows = with_columns(records)
            text = label = ""
            if columns:  # else no row can be read
                text, label = find_columns(columns, self.columns.text, self.columns.label)
                if self.columns.id is not None and self.columns.id not in columns:
                    raise InputError(f'{self.file.path} has no column "{self.columns.id}".')
            number, first, start = 0, 0, 0
            while batch := list(islice(rows, min(self.part_rows, sys.maxsize))):
                end = position()
                yield DataPart(
                    self.number,
                    number,
                    [self._id(first + k, record) for k, record in enumerate(batch)],
                    [r if isinstance(r, FileError) else r.get(text) for r in batch],
                    [_label(record, label) for record in batch],
                    bool(label),
                    end - start,
                )
                number, first, start = number + 1, first + len(batch), end
        self.file.check_unchanged()

    def _id(self, row: int, record: Any) -> str:
        value = None
        if self.columns.id is not None and not isinstance(record, FileError):
            value = record.get(self.columns.id)
        return f"{self.name}:{row}" if value in (None, "") else str(value)


@dataclass(frozen=True)
class RowsPiece(SourcePiece):
    """Rows in memory; their ids are their indices."""

    rows: Rows

    def _parts(self) -> Iterator[DataPart]:
        texts, labels = self.rows.texts, self.rows.labels
        for number, first in enumerate(range(0, len(texts), self.part_rows)):
            rows = range(first, min(first + self.part_rows, len(texts)))
            yield DataPart(
                self.number,
                number,
                [str(k) for k in rows],
                [texts[k] for k in rows],
                [labels[k] if labels else None for k in rows],
                labels is not None,
                len(rows),
            )


@dataclass(frozen=True)
class FileSource:
    """Data in pieces, with its fingerprint, and its size in bytes or rows."""

    pieces: list[SourcePiece]
    fingerprint: str
    size: int
    skipped: Mapping[str, int] = field(
        default_factory=dict
    )  # rows skipped while reading, by reason

    def without(self, finished: Iterable[str]) -> list[SourcePiece]:
        """The pieces without the finished parts."""
        by_file: dict[str, set[str]] = {}
        for name in finished:
            by_file.setdefault(name.split("-")[1], set()).add(name)
        return [
            replace(piece, finished=frozenset(by_file.get(f"{piece.number:05d}", ())))
            for piece in self.pieces
        ]


def open_source(
    data: Any, columns: ColumnNames, part_rows: int, filesystem: Any = None
) -> FileSource:
    """Files, or rows in memory, as a source.

    `data`: a path or URI of a file, a folder or a pattern, or a list of these (`Path` or
    `Location`); else texts, pairs (text, label), or `Rows`. Files are identified by path, size and
    modification time.
    """
    if columns.encoding is not None:
        encoding_of("", b"", columns.encoding)  # raises an error for what is none
    if part_rows < 1:
        raise InputError(f"part_rows must be 1 or more, got {part_rows}.")
    locations = _locations(data)
    if locations is None:
        rows = as_rows(data)
        content = digest([[str(text) for text in rows.texts], rows.labels])
        return FileSource([RowsPiece(0, part_rows, rows)], content, len(rows), rows.skipped)
    files = find_files(locations, SUFFIXES, filesystem)
    for file in files:
        kind_of(file.path)
    names = _short_names([file.path for file in files])
    pieces: list[SourcePiece] = [
        FilePiece(number, part_rows, name, columns, file)
        for number, (file, name) in enumerate(zip(files, names, strict=True))
    ]
    content = digest([[file.path, file.size, file.changed] for file in files])
    return FileSource(pieces, content, sum(file.size for file in files))


def _short_names(paths: list[str]) -> list[str]:
    """Paths relative to their common folder.

    >>> _short_names(["/data/a/x.csv", "/data/b.csv"])
    ['a/x.csv', 'b.csv']
    """
    folders = [posixpath.dirname(path) for path in paths]
    if len({folder.startswith("/") for folder in folders}) > 1:  # on several file systems
        return paths
    top = posixpath.commonpath(folders)
    return [path[len(top) :].lstrip("/") for path in paths]


def _locations(data: Any) -> list[str | Path] | None:
    if isinstance(data, (str, Path)):
        return [data]
    if isinstance(data, (list, tuple)) and data:
        paths = [entry for entry in data if isinstance(entry, (Path, Location))]
        return list(data) if len(paths) == len(data) else None
    return None


def _records(file: File, encoding: str | None) -> tuple[Generator[Any], Any]:
    """The rows of a file, and a function that returns how many bytes were read."""
    if kind_of(file.path) == "parquet":
        return _parquet_rows(file)
    stream = file.open()
    content = gzip.GzipFile(fileobj=stream) if file.path.lower().endswith(".gz") else stream
    try:
        if encoding is None:
            start = content.read(_SAMPLE)
            encoding = encoding_of(file.path, start[: start.rfind(b"\n") + 1] or start)
            content.seek(0)
    except (EOFError, OSError, UnicodeError, zlib.error) as error:
        stream.close()
        if isinstance(error, FileError):
            raise
        raise FileError(f"cannot read {file.path}: {error}.") from error

    def position() -> int:
        return file.size if stream.closed else int(stream.tell())

    # invalid bytes become lone surrogates, and rows with them are rejected
    lines = io.TextIOWrapper(content, encoding, errors="surrogateescape", newline="")
    return _closing(file, text_records(file.path, lines), lines, stream), position


def _closing(
    file: File, records: Iterator[Any], lines: io.TextIOWrapper, stream: Any
) -> Generator[Any]:
    try:
        with stream, lines:
            yield from records
    except (EOFError, OSError, UnicodeError, zlib.error) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"cannot read {file.path}: {error}.") from error


def _parquet_rows(file: File) -> tuple[Generator[Any], Any]:
    read = 0

    def rows() -> Generator[Any]:
        nonlocal read
        for batch, share in file.parquet_batches():
            read = round(file.size * share)
            yield from batch

    return rows(), lambda: read


def _label(record: Any, column: str) -> Label:
    value = None if isinstance(record, FileError) or not column else record.get(column)
    return None if value is None or value == "" else as_label(value)
