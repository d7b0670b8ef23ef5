"""Finished samples in a file, so that an interrupted run can go on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError


@dataclass
class Store:
    """Finished samples, kept in a file so that an interrupted run can go on."""

    path: Path | None
    settings: dict[str, Any]
    done: dict[int, dict[str, Any]] = field(default_factory=dict)

    def load(self) -> None:
        """Reads what an earlier run with the same settings has finished."""
        if self.path is None or not self.path.exists():
            return
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"cannot read {self.path}: {error}") from error
        try:
            if json.loads(lines[0]) != json.loads(json.dumps(self.settings)):
                raise FileError(
                    f"{self.path} is of a run with other settings: it cannot be gone on with. "
                    "Give another folder, or start anew without resuming."
                )
        except (IndexError, json.JSONDecodeError) as error:
            raise FileError(f"{self.path} is damaged, and cannot be gone on with.") from error
        for line in lines[1:]:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue  # it was cut off in the middle: that sample is done again
            self.done[record["sample"]] = record

    def start(self) -> None:
        """Begins the file anew, with what is known."""
        if self.path is not None:
            lines = [self.settings, *self.done.values()]
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.write_text("".join(json.dumps(each) + "\n" for each in lines), "utf-8")
            except OSError as error:
                raise FileError(
                    f"cannot write into {self.path.parent}: {error.strerror}"
                ) from error

    def add(self, record: dict[str, Any]) -> None:
        """Keeps one more sample."""
        self.done[record["sample"]] = record
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
