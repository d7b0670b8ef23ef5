"""Tables as CSV and, where pyarrow is installed, as Parquet."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError, MissingExtra
from wherefrom.inputs.table import write_parquet

Records = Sequence[Mapping[str, Any]]


def write_tables(folder: Path, tables: Mapping[str, Records]) -> list[Path]:
    """Writes each table to `folder`/name.csv and name.parquet; an empty one has no columns."""
    paths = []
    for name, records in tables.items():
        path = folder / f"{name}.csv"
        columns = list(records[0]) if records else []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(records)
            paths.append(path)
            if records:
                path = path.with_suffix(".parquet")
                write_parquet({key: [row[key] for row in records] for key in columns}, path)
                paths.append(path)
        except MissingExtra:
            continue  # the CSV file has the same rows
        except OSError as error:
            raise FileError(f"cannot write {path}: {error.strerror}") from error
    return paths
