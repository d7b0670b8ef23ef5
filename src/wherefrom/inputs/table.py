"""Texts and labels from a file: CSV, TSV, JSON lines or Parquet, gzip or not."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError, InputError, MissingExtra, nearest
from wherefrom.inputs.pictures import SUFFIXES
from wherefrom.storage.text_file import decoded, lines_of, read_bytes

_FILES = ("image", "file", "path")
_TEXT = ("text", "sentence", "review", "content", "tweet", "utterance", "smiles", *_FILES)
_LABEL = ("label", "class", "target", "y", "sentiment")
_CSV_LIMIT = threading.Lock()  # of the length of a field: one number for the whole process


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
    columns = list(rows[0])
    text = column(columns, text_column, _TEXT, "text")
    label = column(columns, label_column, _LABEL, "label", needed=label_column is not None)
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
                labels.append(_as_label(label_value))
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


def _as_label(value: Any) -> str | int:
    """An integer as an index; text as a name, which the model's labels decide about."""
    return int(value) if isinstance(value, (bool, int)) else str(value).strip()


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file, each as its columns."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith((".parquet", ".pq")):
        yield from _parquet(path)
    elif name.endswith((".jsonl", ".ndjson", ".json")):
        yield from _json_lines(path, decoded(path, read_bytes(path)))
    elif name.endswith((".csv", ".tsv")):
        text = decoded(path, read_bytes(path))
        yield from _csv_rows(path, text, "\t" if name.endswith(".tsv") else ",")
    else:
        raise FileError(
            f"cannot read {path.name}: the name must end in .csv, .tsv, .jsonl or .parquet (.gz)."
        )


def _csv_rows(path: Path, text: str, delimiter: str) -> Iterator[dict[str, Any]]:
    # a line break in quotes is part of the text
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    with _CSV_LIMIT:
        limit = csv.field_size_limit(max(len(text), 1))  # a text may be longer than 131,072
        try:
            rows = list(reader)
        except csv.Error as error:
            raise FileError(f"{path}, line {reader.line_num} is not CSV: {error}.") from error
        finally:
            csv.field_size_limit(limit)
    for row in rows:
        yield {key: value for key, value in row.items() if key is not None}


def _json_lines(path: Path, text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines_of(text), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise FileError(f"{path}, line {number} is not JSON: {error.msg}.") from error
        except RecursionError as error:
            raise FileError(f"{path}, line {number} is nested too deeply.") from error
        except ValueError as error:  # Python reads no integer of more than 4,300 digits
            raise FileError(f"{path}, line {number} has a number of too many digits.") from error
        if not isinstance(record, dict):
            raise FileError(f"{path}, line {number} is not an object with columns.")
        yield record


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
