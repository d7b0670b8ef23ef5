"""Tables as CSV, Parquet and pandas; the only file that imports pandas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError, MissingExtra
from wherefrom.storage.arrow import parquet_bytes
from wherefrom.storage.writing import reason, replacing, write_text

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def pandas(purpose: str) -> Any:
    """The pandas library; raises MissingExtra if it is not installed."""
    try:
        import pandas as library
    except ImportError as error:
        raise MissingExtra("pandas", "frame", purpose) from error
    return library


def csv_text(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    r"""A table as CSV; text that a spreadsheet would evaluate as a formula gets a leading '.

    >>> csv_text(["word", "mean"], [{"word": "=1+1", "mean": -2.5}])
    "word,mean\r\n'=1+1,-2.5\r\n"
    """
    return csv_lines([columns]) + csv_lines([row[name] for name in columns] for row in rows)


def csv_lines(rows: Iterable[Iterable[Any]]) -> str:
    """Rows as lines of CSV, with formulas escaped."""
    text = io.StringIO()
    csv.writer(text).writerows([_plain(value) for value in row] for row in rows)
    return text.getvalue()


def _plain(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def write_tables(folder: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Path]:
    """Writes each table to `folder`/name.csv and, with pyarrow, name.parquet.

    An empty table has no columns, and no Parquet file.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot write to {folder}: {reason(error)}.") from error
    paths = []
    for name, records in tables.items():
        path = folder / f"{name}.csv"
        columns = list(records[0]) if records else []
        write_text(path, csv_text(columns, records))
        paths.append(path)
        if not records:
            continue
        try:
            content = parquet_bytes({key: [row[key] for row in records] for key in columns})
        except MissingExtra:
            continue  # the CSV file has the same rows
        path = path.with_suffix(".parquet")
        with replacing(path) as file:
            file.write(content)
        paths.append(path)
    return paths
