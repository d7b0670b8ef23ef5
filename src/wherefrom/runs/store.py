"""The folder of a run: its settings, and for each finished part its tables and a record.

A part is finished when its record is there: the record is written last, so what a killed process
leaves is written again by the next, under the same names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wherefrom.errors import CONTINUE, FileError, ModelError
from wherefrom.storage.arrow import Folder, parquet_bytes
from wherefrom.storage.fingerprint import changes, digest
from wherefrom.storage.folder_lock import locked

Record = dict[str, Any]
"""What is known of a finished part: its name, its numbers of rows, and what the run adds."""
_RECORDS = "checkpoint"
_SETTINGS = f"{_RECORDS}/settings.json"
_SAME_FILES = "Give all machines the same files and versions."


def _attempts(part: str) -> str:
    return f"{_RECORDS}/attempts-{part}.json"


@dataclass(frozen=True)
class Table:
    """Columns of a part with their types; it goes into a folder `name`.parquet."""

    name: str
    columns: Mapping[str, list[Any]]
    types: Mapping[str, str]


def _json(folder: Folder, name: str) -> Record:
    """The content of a file; empty if it is damaged: then a part is done again."""
    try:
        content: Record = json.loads(folder.read(name) or b"{}")
    except ValueError:
        return {}
    return content


@dataclass(frozen=True)
class ResultsFolder:
    """What all processes of a run know of its folder; `run` is the digest of its settings."""

    folder: Folder
    run: str

    @staticmethod
    @contextmanager
    def opened(
        out: str | Path,
        settings: Mapping[str, Any],
        resume: bool,
        filesystem: Any = None,
        of: str = "`wherefrom run`",
    ) -> Iterator[tuple[ResultsFolder, list[Record]]]:
        """The folder, locked if it is on a disk of this machine, and what is finished in it."""
        with OpenedFolder.opened(out, settings, resume, filesystem, of) as (opened, finished):
            yield opened.completed({}), finished

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
        note = _json(self.folder, _attempts(part))
        deaths: dict[str, int] = note["deaths"] if note.get("run") == self.run else {}
        return deaths


@dataclass(frozen=True)
class OpenedFolder:
    """A folder with the settings that are known before a model is loaded.

    `saved` are all settings of the run that is continued. The process that loads the model
    completes the settings; the first one writes them, and what others have must be equal.
    """

    folder: Folder
    settings: Mapping[str, Any]
    saved: Mapping[str, Any] | None

    @staticmethod
    @contextmanager
    def opened(
        out: str | Path,
        settings: Mapping[str, Any],
        resume: bool,
        filesystem: Any = None,
        of: str = "`wherefrom run`",
    ) -> Iterator[tuple[OpenedFolder, list[Record]]]:
        """The folder, locked if it is on a disk of this machine, and what is finished in it."""
        folder = Folder.at(out, filesystem)
        with locked(folder.local, of):
            names = [name for name in folder.names(_RECORDS) if name.startswith("part-")]
            if not resume and names:
                parts = f"{len(names)} finished part{'s' if len(names) > 1 else ''}"
                raise FileError(f"{folder.path} has {parts} of an earlier run.", **CONTINUE)
            folder.remove_partial_files()
            opened = OpenedFolder(folder, _plain(settings), _saved(folder) if resume else None)
            if opened.saved is None:
                folder.remove(_SETTINGS)  # of a run that finished nothing
                yield opened, []
            else:
                opened._check_saved({name: opened.saved.get(name) for name in opened.settings})
                yield opened, opened._finished(names, digest(opened.saved))

    def completed(self, of_model: Mapping[str, Any]) -> ResultsFolder:
        """The folder to write to, with the settings that a loaded model adds."""
        whole = {**self.settings, **_plain(of_model)}
        if self.saved is not None:
            replace(self, settings=whole)._check_saved(self.saved)
            return ResultsFolder(self.folder, digest(self.saved))
        first = _saved(self.folder)
        if first is None:
            self.folder.write(_SETTINGS, json.dumps(whole).encode())
        elif differences := changes(first, whole):
            raise ModelError(
                f"workers have different models ({'; '.join(differences)}). {_SAME_FILES}"
            )
        return ResultsFolder(self.folder, digest(whole))

    def _check_saved(self, saved: Mapping[str, Any]) -> None:
        if differences := changes(saved, self.settings):
            raise FileError(
                f"cannot resume from {self.folder.path}: model, data, settings or versions changed "
                f"({'; '.join(differences)}). Choose another folder."
            )

    def _finished(self, names: list[str], run: str) -> list[Record]:
        records = (_json(self.folder, f"{_RECORDS}/{name}") for name in names)
        return [record for record in records if record.get("run") == run]


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they are read again."""
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def _saved(folder: Folder) -> Record | None:
    """The settings that are written in a folder, if there are any."""
    content = folder.read(_SETTINGS)
    if content is None:
        return None
    try:
        saved = json.loads(content)
    except ValueError:
        saved = None
    if not isinstance(saved, dict):
        raise FileError(
            f"cannot resume: {folder.path}/{_SETTINGS} is damaged. Choose another folder."
        )
    return saved


def check_seen(folder: Folder, record: Record) -> None:
    """Raises an error if what a worker has written is not in the folder as it is seen here."""
    if folder.read(f"{_RECORDS}/{record['part']}.json") is None:
        raise FileError(
            f"a worker has written to {folder.path}, but it is not there on this "
            "machine: choose a folder that all machines share, or one in object storage."
        )


def check_same_run(one: Record, other: Record) -> None:
    """Raises an error if two parts were not explained with the same model and settings."""
    if one["run"] != other["run"]:
        raise ModelError(
            f"workers have different models (in {one['part']} and {other['part']}). {_SAME_FILES}"
        )
