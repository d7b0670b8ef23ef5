"""Rows as CSV and, where pyarrow is there, as Parquet."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError, MissingExtra
from wherefrom.inputs.table import write_parquet


def write_table(rows: Sequence[dict[str, Any]], stem: Path) -> list[Path]:
    """Writes the same rows to `stem`.csv and `stem`.parquet; an empty table has no columns."""
    made = [stem.with_suffix(".csv")]
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        with made[0].open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]) if rows else [])
            writer.writeheader()
            writer.writerows(rows)
        if rows and _parquet(rows, stem.with_suffix(".parquet")):
            made.append(stem.with_suffix(".parquet"))
    except OSError as error:
        raise FileError(f"cannot write {stem}: {error.strerror}") from error
    return made


def _parquet(rows: Sequence[dict[str, Any]], path: Path) -> bool:
    try:
        write_parquet({name: [row[name] for row in rows] for name in rows[0]}, path)
    except MissingExtra:
        return False  # the CSV says the same
    return True
