"""Tables as CSV and, where pyarrow is installed, as Parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError, MissingExtra
from wherefrom.storage.arrow import parquet_bytes
from wherefrom.storage.csv_text import csv_text
from wherefrom.storage.writing import reason, replacing, write_text

Records = Sequence[Mapping[str, Any]]


def write_tables(folder: Path, tables: Mapping[str, Records]) -> list[Path]:
    """Writes each table to `folder`/name.csv and name.parquet; an empty one has no columns."""
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
