"""Texts and labels from a file, a folder of images, or a table in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError, InputError
from wherefrom.inputs.pictures import SUFFIXES
from wherefrom.inputs.records import (
    FILES,
    LABEL,
    TEXT,
    Record,
    as_inputs,
    collected,
    column,
    is_missing,
    pair_columns,
    records_of,
    source_of,
)
from wherefrom.inputs.table_files import records


@dataclass(frozen=True)
class Rows:
    """Texts with their labels, if any; `skipped` counts unusable rows by reason."""

    texts: list[Any]
    labels: list[str | int] | None
    skipped: dict[str, int] = field(default_factory=dict)

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
    pairs where the usual names of both columns are there (premise and hypothesis, question and
    context, …), or where `pair_column` names the second. `encoding` is that of a text file;
    without it UTF-8 and UTF-16 are recognised, and what is neither is read as Windows-1252 with a
    warning.

    Paths of images are relative to the file. In a folder every image is taken, labelled by the
    name of the subfolder that it is in. A label stays text where the table has text: "1" is the
    class labelled "1" where the model has one, else the class with index 1.
    """
    if isinstance(data, (str, Path)):
        path = Path(data)
        if path.is_dir():
            return _folder(path)
        rows: list[Record] = list(records(path, encoding))
        if not rows:
            raise FileError(f"{path} has no rows.")
        return _rows(rows, str(path), path.parent, text_column, label_column, pair_column)
    table = records_of(data)
    if table is None:
        raise InputError(
            f"cannot read a {type(data).__name__} as a table: pass a path, a data frame, a data "
            "set, a list of dicts or a dict of columns."
        )
    if not table:
        raise InputError("the table has no rows.")
    return _rows(table, "the table", None, text_column, label_column, pair_column)


def _rows(
    table: Sequence[Record],
    name: str,
    folder: Path | None,
    text_column: str | None,
    label_column: str | None,
    pair_column: str | None,
) -> Rows:
    """The rows that have a text, and a label if the others have one; paths are of this folder."""
    columns = list(table[0])
    pair = pair_columns(columns, text_column, pair_column)
    text = "" if pair else column(columns, text_column, TEXT, "text")
    label = column(columns, label_column, LABEL, "label", needed=label_column is not None)
    texts: list[Any] = []
    labels: list[str | int] = []
    skipped: dict[str, int] = {}
    for record in table:
        source = source_of(record, text, pair)
        label_value = record.get(label) if label else None
        if source is None:
            skipped["empty text"] = skipped.get("empty text", 0) + 1
        elif label and (is_missing(label_value) or label_value == ""):
            skipped["no label"] = skipped.get("no label", 0) + 1
        else:
            is_path = folder is not None and text in FILES
            texts.append(str(folder / source) if is_path and folder is not None else source)
            if label:
                labels.append(as_label(label_value))
    if not texts:
        raise InputError(f"{name} has {len(table)} rows, but none with a text.")
    return Rows(texts, labels if label else None, skipped)


def as_rows(data: Any) -> Rows:
    """A table, a list of inputs, or of pairs (input, label), as rows."""
    if isinstance(data, Rows):
        return data
    if isinstance(data, (str, Path)):
        raise InputError(
            "give a list of texts.", "A file is read by wherefrom.read_table(path).", command=""
        )
    data = collected(data)
    if records_of(data) is not None:
        return read_table(data)
    inputs = as_inputs(data)
    if not isinstance(inputs, (list, tuple)):
        raise InputError(
            f"cannot read a {type(data).__name__} as data: pass a list of texts, pairs (text, "
            "label) or a data frame.",
            "A file is read by wherefrom.read_table(path).",
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
    """An integer as an index; text as a name, which the model's labels decide about."""
    if isinstance(value, float) and value.is_integer():  # a column with gaps holds floats
        return int(value)
    return int(value) if hasattr(value, "__index__") else str(value).strip()
