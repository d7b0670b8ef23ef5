"""Finished samples in a file, so that an interrupted run can resume."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError
from wherefrom.studies.base import Record


@dataclass
class Checkpoint:
    """The records of finished samples by row number, mirrored in a file of JSON lines.

    The first line of the file holds the settings of the run. Without a path nothing is written.
    """

    path: Path | None
    settings: dict[str, Any]
    records: dict[int, Record] = field(default_factory=dict)

    def load(self) -> None:
        """Reads the samples that an earlier run with the same settings has finished."""
        if self.path is None or not self.path.exists():
            return
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"cannot read {self.path}: {error}") from error
        try:
            earlier = json.loads(lines[0])
            changes = _changes(earlier, json.loads(json.dumps(self.settings)))
        except (IndexError, TypeError, json.JSONDecodeError) as error:
            raise FileError(f"cannot resume: {self.path} is damaged.") from error
        if changes:
            raise FileError(
                f"cannot resume from {self.path}: the settings changed ({'; '.join(changes)}). "
                "Choose another folder, or start again without resume."
            )
        for line in lines[1:]:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue  # the run was killed while writing it: that sample runs again
            self.records[record["sample"]] = record

    def start(self) -> None:
        """Writes the file anew, with the settings and the records so far."""
        if self.path is None:
            return
        partial = self.path.with_name(f"{self.path.name}.partial")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("w", encoding="utf-8") as file:
                for entry in (self.settings, *self.records.values()):
                    file.write(json.dumps(entry) + "\n")
            os.replace(partial, self.path)  # at no time is an earlier run's work half written
        except OSError as error:
            raise FileError(f"cannot write to {self.path.parent}: {error.strerror}") from error

    def add(self, record: Record) -> None:
        """Appends the record of one more sample."""
        self.records[record["sample"]] = record
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


def _changes(earlier: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Which settings differ, and how.

    >>> _changes({"seed": 0, "data": 17}, {"seed": 1, "data": 18})
    ['seed 0 → 1', 'other data']
    """
    names = [name for name in {**earlier, **now} if earlier.get(name) != now.get(name)]
    return [
        "other data" if name == "data" else f"{name} {earlier.get(name)} → {now.get(name)}"
        for name in names
    ]
