"""The folder of a run: its settings, and for each finished part its tables and a record.

A part is finished when its record is there: the record is written last, so what a killed process
leaves is written again by the next, under the same names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError
from wherefrom.storage.arrow import Folder, parquet_bytes
from wherefrom.storage.fingerprint import changes, digest
from wherefrom.storage.folder_lock import locked

Record = dict[str, Any]
"""What is known of a finished part: its name, its numbers of rows, and what the run adds."""
_RECORDS = "checkpoint"
_SETTINGS = f"{_RECORDS}/settings.json"


def _attempts(part: str) -> str:
    return f"{_RECORDS}/attempts-{part}.json"


@dataclass(frozen=True)
class Table:
    """Columns of a part with their types; it goes into a folder `name`.parquet."""

    name: str
    columns: Mapping[str, list[Any]]
    types: Mapping[str, str]


@dataclass(frozen=True)
class ResultsFolder:
    """What all processes of a run know of its folder; `run` is the digest of its settings."""

    folder: Folder
    run: str

    @staticmethod
    @contextmanager
    def opened(
        out: str | Path, settings: Mapping[str, Any], resume: bool, filesystem: Any = None
    ) -> Iterator[tuple[ResultsFolder, list[Record]]]:
        """The folder, locked if it is on a disk of this machine, and what is finished in it."""
        folder = Folder.at(out, filesystem)
        plain = json.loads(json.dumps(settings))
        results = ResultsFolder(folder, digest(plain))
        with locked(folder.local):
            finished = results._finished(plain, resume)
            folder.write(_SETTINGS, json.dumps(plain).encode())
            yield results, finished

    def _finished(self, settings: Record, resume: bool) -> list[Record]:
        names = [name for name in self.folder.names(_RECORDS) if name.startswith("part-")]
        saved = self.folder.read(_SETTINGS)
        if not resume and names:
            parts = f"{len(names)} finished part{'s' if len(names) > 1 else ''}"
            raise FileError(
                f"{self.folder.path} has {parts} of an earlier run. "
                "Continue it with --resume (resume=True), or choose another folder."
            )
        self.folder.remove_partial_files()
        if not resume or saved is None:
            return []
        try:
            differences = changes(json.loads(saved), settings)
        except (AttributeError, TypeError, ValueError) as error:
            raise FileError(
                f"cannot resume: {self.folder.path}/{_SETTINGS} is damaged. Choose another folder."
            ) from error
        if differences:
            raise FileError(
                f"cannot resume from {self.folder.path}: model, data, settings or versions changed "
                f"({'; '.join(differences)}). Choose another folder."
            )
        records = (self._json(f"{_RECORDS}/{name}") for name in names)
        return [record for record in records if record.get("run") == self.run]

    def _json(self, name: str) -> Record:
        """The content of a file; empty if it is damaged: then a part is done again."""
        try:
            content: Record = json.loads(self.folder.read(name) or b"{}")
        except ValueError:
            return {}
        return content

    def add(self, part: str, tables: list[Table], record: Mapping[str, Any]) -> Record:
        """Writes the tables of a part that have rows, then the record that says it is finished."""
        for table in tables:
            if any(map(len, table.columns.values())):
                content = parquet_bytes(table.columns, table.types)
                self.folder.write(f"{table.name}.parquet/{part}.parquet", content)
        whole = {"run": self.run, "part": part, **record}
        self.folder.write(f"{_RECORDS}/{part}.json", json.dumps(whole).encode())
        self.folder.remove(_attempts(part))
        return whole

    def note_attempts(self, part: str, deaths: Mapping[str, int]) -> None:
        """Notes what of a part is in work, or was when a process died; see `Attempts`."""
        note = {"run": self.run, "deaths": deaths}
        self.folder.write(_attempts(part), json.dumps(note).encode())

    def attempts(self, part: str) -> dict[str, int]:
        """What this run has noted of a part that is not finished."""
        note = self._json(_attempts(part))
        deaths: dict[str, int] = note["deaths"] if note.get("run") == self.run else {}
        return deaths

    def check_seen(self, record: Record) -> None:
        """Raises an error if what a worker has written is not in the folder as it is seen here."""
        if self.folder.read(f"{_RECORDS}/{record['part']}.json") is None:
            raise FileError(
                f"a worker has written to {self.folder.path}, but it is not there on this "
                "machine: choose a folder that all machines share, or one in object storage."
            )
