"""Texts and labels from a file: CSV, TSV, JSON lines or Parquet, gzip or not."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError, InputError, nearest
from wherefrom.inputs.pictures import SUFFIXES
from wherefrom.storage.arrow import parquet_records
from wherefrom.storage.text_file import decoded, read_bytes

_FILES = ("image", "file", "path")
_TEXT = ("text", "sentence", "review", "content", "tweet", "utterance", "smiles", *_FILES)
_LABEL = ("label", "class", "target", "y", "sentiment")
_CSV_LIMIT = threading.Lock()  # of the length of a field: one number for the whole process
_LONGEST_FIELD = 2**31 - 1  # a text may be longer than csv's 131,072
FORMATS = {
    ".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".json": "jsonl", ".csv": "csv", ".tsv": "tsv",
}  # fmt: skip
"""Formats of tables by the ends of file names."""


@dataclass(frozen=True)
class Rows:
    """Texts with their labels, if any; `skipped` counts unusable rows by reason."""

    texts: list[Any]
    labels: list[str | int] | None
    skipped: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts)


def read_table(
    path: str | Path, text_column: str | None = None, label_column: str | None = None
) -> Rows:
    """The texts and labels of a file; the columns are found by their usual names.

    Paths of images are relative to the file. In a folder every image is taken, labelled by the
    name of the subfolder that it is in. A label stays text where the file has text: "1" is the
    class labelled "1" where the model has one, else the class with index 1.
    """
    source = Path(path)
    if source.is_dir():
        return _folder(source)
    rows = list(records(source))
    if not rows:
        raise FileError(f"{source} has no rows.")
    text, label = find_columns(list(rows[0]), text_column, label_column)
    texts: list[str] = []
    labels: list[str | int] = []
    skipped: dict[str, int] = {}
    for record in rows:
        value = record.get(text)
        label_value = record.get(label) if label else None
        if not isinstance(value, str) or not value.strip():
            skipped["empty text"] = skipped.get("empty text", 0) + 1
        elif label and label_value in (None, ""):
            skipped["no label"] = skipped.get("no label", 0) + 1
        else:
            texts.append(str(source.parent / value) if text in _FILES else value)
            if label:
                labels.append(as_label(label_value))
    if not texts:
        raise InputError(f"{source} has {len(rows)} rows, but none with a text.")
    return Rows(texts, labels if label else None, skipped)


def as_rows(data: Any) -> Rows:
    """A list of inputs, or of pairs (input, label), as rows."""
    if isinstance(data, Rows):
        return data
    if isinstance(data, str):
        raise InputError("give a list of texts, or wherefrom.read_table(path).")
    samples = list(data)
    if not samples:
        raise InputError(
            "the list of texts is empty: give a list of texts, or wherefrom.read_table(path)."
        )
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


def find_columns(columns: list[str], text: str | None, label: str | None) -> tuple[str, str]:
    """The columns of texts and of labels; the latter is empty if there is none."""
    return (
        column(columns, text, _TEXT, "text"),
        column(columns, label, _LABEL, "label", needed=label is not None),
    )


def column(
    columns: list[str],
    requested: str | None,
    usual: tuple[str, ...],
    what: str,
    needed: bool = True,
) -> str:
    """The column named by the caller, else the first with a usual name."""
    if requested is not None:
        if requested not in columns:
            raise InputError(f'there is no column "{requested}"; {nearest(requested, columns)}')
        return requested
    by_name = {name.lower(): name for name in columns}
    for name in usual:
        if name in by_name:
            return by_name[name]
    if needed:
        raise InputError(
            f"no column looks like the {what} ({', '.join(columns)}); name it with --{what}-column."
        )
    return ""


def as_label(value: Any) -> str | int:
    """An integer as an index; text as a name, which the model's labels decide about."""
    return int(value) if isinstance(value, (bool, int)) else str(value).strip()


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file, each as its columns; a row that cannot be read is an error."""
    if kind_of(path.name) == "parquet":
        yield from parquet_records(path)
        return
    text = decoded(path, read_bytes(path))
    for record in text_records(str(path), io.StringIO(text, newline="")):
        if isinstance(record, FileError):
            raise record
        yield record


def kind_of(name: str) -> str:
    """The format that a file's name stands for; an error if it is none that can be read."""
    for suffix, kind in FORMATS.items():
        if name.lower().removesuffix(".gz").endswith(suffix):
            return kind
    raise FileError(
        f"cannot read {name}: the name must end in .csv, .tsv, .jsonl or .parquet (.gz)."
    )


def text_records(name: str, lines: Iterable[str]) -> Iterator[dict[str, Any] | FileError]:
    """The rows of CSV, TSV or JSON lines, by the name of the file; see `csv_records`."""
    kind = kind_of(name)
    if kind == "jsonl":
        return json_records(name, lines)
    return csv_records(name, lines, "\t" if kind == "tsv" else ",")


def csv_records(
    name: str, lines: Iterable[str], delimiter: str = ","
) -> Iterator[dict[str, Any] | FileError]:
    """The rows of a CSV file; `lines` keep their ends: a line break in quotes is part of a text."""
    reader = csv.DictReader(lines, delimiter=delimiter)
    while True:
        with _CSV_LIMIT:
            limit = csv.field_size_limit(_LONGEST_FIELD)
            try:
                row = next(reader, None)
            except csv.Error as error:
                message = f"{name}, line {reader.line_num} is not CSV: {error}."
                raise FileError(message) from error
            finally:
                csv.field_size_limit(limit)
        if row is None:
            return
        yield {key: value for key, value in row.items() if key is not None}


def json_records(name: str, lines: Iterable[str]) -> Iterator[dict[str, Any] | FileError]:
    """The objects of JSON lines; an error in the place of a line that is none."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{name}, line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            yield FileError(f"{place} is not JSON: {error.msg}.")
        except RecursionError:
            yield FileError(f"{place} is nested too deeply.")
        except ValueError:  # Python reads no integer of more than 4,300 digits
            yield FileError(f"{place} has a number of too many digits.")
        else:
            is_object = isinstance(record, dict)
            yield record if is_object else FileError(f"{place} is not an object with columns.")
