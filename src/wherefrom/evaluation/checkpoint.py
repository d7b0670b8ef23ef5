"""Finished samples in a file, so that an interrupted run can resume."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wherefrom.errors import CONTINUE, FileError
from wherefrom.storage.fingerprint import changes, digest
from wherefrom.storage.writing import reason, replacing
from wherefrom.studies.base import Record


@dataclass
class Checkpoint:
    """The records of finished samples by row number, mirrored in a file of JSON lines.

    The first line of the file holds the fingerprint of the run: settings, weights, data, versions.
    Each record carries the digest of that line, its run. Without a path nothing is written. The
    folder must be locked while a checkpoint is in use.
    """

    path: Path | None
    settings: dict[str, Any]
    records: dict[int, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.settings = json.loads(json.dumps(self.settings))
        self.run = digest(self.settings)

    def open(self, resume: bool) -> None:
        """Reads what the same run has finished, or starts anew where there is nothing to lose."""
        if self.path is None:
            return
        lines = self._lines(self.path)
        if resume and lines is not None:
            self._load(self.path, lines)
        elif lines is not None and len(lines) > 1:
            raise FileError(
                f"{self.path.parent} has {len(lines) - 1} finished samples of an earlier run.",
                **CONTINUE,
            )
        with replacing(self.path) as file:
            for entry in (self.settings, *self._carried()):
                file.write(_line(entry))

    def add(self, record: Record) -> None:
        """Appends the record of one more sample."""
        if self.path is not None:
            self._append(self.path, _line({"run": self.run, **record}))
        self.records[record["sample"]] = record

    def _carried(self) -> list[Record]:
        return [{"run": self.run, **record} for record in self.records.values()]

    def _append(self, path: Path, line: bytes) -> None:
        try:
            with path.open("ab", buffering=0) as file:  # a buffer would be written at the end
                end = file.tell()
                try:
                    while line:
                        line = line[file.write(line) :]
                except OSError:
                    os.ftruncate(file.fileno(), end)  # no half line stays
                    raise
        except OSError as error:
            raise FileError(
                f"cannot write {path}: {reason(error)}. The {len(self.records)} samples finished "
                "before are saved.",
                "Continue with resume=True.",
                command="Continue with --resume.",
            ) from error

    @staticmethod
    def _lines(path: Path) -> list[bytes] | None:
        try:
            return path.read_bytes().splitlines()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FileError(f"cannot read {path}: {reason(error)}") from error

    def _load(self, path: Path, lines: list[bytes]) -> None:
        try:
            earlier = json.loads(lines[0])
            differences = changes(earlier, self.settings)
        except (IndexError, AttributeError, TypeError, ValueError, RecursionError) as error:
            raise FileError(
                f"cannot resume: {path} is damaged. Delete it to start again."
            ) from error
        if differences:
            raise FileError(
                f"cannot resume from {path}: model, data, settings or versions changed "
                f"({'; '.join(differences)}). Choose another folder."
            )
        for line in lines[1:]:
            try:
                record = json.loads(line)
            except ValueError:
                continue  # the run was killed while writing it: that sample runs again
            if isinstance(record, dict) and record.pop("run", None) == self.run:
                self.records[record["sample"]] = record


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry).encode("ascii") + b"\n"
