"""The folder of a run: its settings, and a record and tables for each finished part.

`corpus`, `bias`, `evaluate` and `run` store their results in this format. A part is finished when
its record exists: the record is written last, so unfinished parts of a killed process are computed
again and replaced.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from wherefrom.errors import CONTINUE, FileError, MissingExtra, ModelError, counted
from wherefrom.storage.arrow import Folder, columns_of, parquet_bytes
from wherefrom.storage.fingerprint import changes, digest
from wherefrom.storage.writing import locked, remove_partial_files

PartRecord = dict[str, Any]
"""A finished part: its name, its run, its table files, and entries of the caller."""
TableColumns = Mapping[str, Any]
_RECORDS = "checkpoint"
_SETTINGS = f"{_RECORDS}/settings.json"
_SAME_FILES = "Install the same files and versions on all machines."


@dataclass(frozen=True)
class StoredTable:
    """The columns of a part with their types; a file in the folder `name`.parquet."""

    name: str
    columns: TableColumns
    types: Mapping[str, str]


@dataclass(frozen=True)
class Store:
    """The results of a run: its settings and its finished parts.

    `saved` are the settings of the resumed run. `completed` adds the settings that depend on the
    model, in each process that loads it; they must be equal in all processes. Without a folder
    nothing is written.
    """

    folder: Folder | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    saved: Mapping[str, Any] | None = None

    @staticmethod
    @contextmanager
    def opened(
        out: str | Path | None,
        kind: str,
        settings: Mapping[str, Any],
        resume: bool = False,
        filesystem: Any = None,
        tables: Iterable[str] = (),
    ) -> Iterator[tuple[Store, list[PartRecord]]]:
        """Opens the store of a folder with its finished parts; a local folder is locked.

        Without `resume`, finished parts are an error; with it, they must belong to the same run.
        `tables` are those that the run writes: files of unfinished parts are removed from them.
        """
        settings = _as_json({"kind": kind, **settings})
        if out is None:
            yield Store(None, settings), []
            return
        folder = Folder.at(out, filesystem)
        with locked(folder.local):
            names = [name for name in folder.sizes(_RECORDS) if name.startswith("part-")]
            files = {
                f"{table}.{suffix}/{name}"
                for table in tables
                for suffix in ("parquet", "json")
                for name in folder.sizes(f"{table}.{suffix}")
                if name.startswith("part-")
            }
            saved = _saved(folder) if resume or names or files else None
            saved_kind = (saved or {}).get("kind", kind)
            if (names or files) and saved_kind != kind:
                raise FileError(
                    f"{folder.path} has results of {saved_kind}: choose another folder, "
                    "or delete it."
                )
            if (names or files) and saved is None:
                raise FileError(
                    f"{folder.path} has results of an earlier run, but no {_SETTINGS}: choose "
                    "another folder, or delete it."
                )
            if (names or files) and not resume:
                parts = counted(len(names), "finished part") if names else "unfinished parts"
                raise FileError(f"{folder.path} has {parts} of an earlier run.", **CONTINUE)
            if folder.local is not None:
                for path in (*folder.local.iterdir(), *(folder.local / _RECORDS).glob("*")):
                    remove_partial_files(path)
            store = Store(folder, settings, saved if resume else None)
            if store.saved is None:
                folder.remove(_SETTINGS)  # of a run without finished parts
                yield store, []
            else:
                store._check_saved({name: store.saved.get(name) for name in settings})
                finished = store._finished(names)
                for name in files.difference(*(record["files"] for record in finished)):
                    folder.remove(name)
                yield store, finished

    @cached_property
    def run(self) -> str:
        """The digest of the settings: records of other runs are ignored."""
        return digest(self.settings if self.saved is None else self.saved)

    def completed(self, more: Mapping[str, Any] | None = None) -> Store:
        """The store with all settings, which are written, or checked against the run's settings."""
        whole = {**self.settings, **_as_json(more or {})}
        store = replace(self, settings=whole)
        if self.saved is not None:
            store._check_saved(self.saved)
        elif self.folder is not None:
            first = _saved(self.folder)
            if first is None:
                self.folder.write(_SETTINGS, json.dumps(whole).encode())
            elif differences := changes(first, whole):
                raise ModelError(
                    f"workers have different models ({'; '.join(differences)}). {_SAME_FILES}"
                )
        return store

    def add(
        self, part: str, tables: Iterable[StoredTable], record: Mapping[str, Any]
    ) -> PartRecord:
        """Writes the tables of a part that have rows, then the record: the part is finished."""
        files = {}
        for table in tables if self.folder is not None else ():
            if any(map(len, table.columns.values())):
                name, content = _file(table, part)
                self._write(name, content)
                files[name] = [len(content), digest(content)]
        whole = {"run": self.run, "part": part, "files": files, **record}
        if self.folder is not None:
            signed = {"digest": digest(json.dumps(whole)), **whole}
            self._write(f"{_RECORDS}/{part}.json", json.dumps(signed).encode())
            self.folder.remove(_attempts(part))
        return whole

    def table(self, name: str, part: str) -> TableColumns:
        """The columns of a table of a finished part; no columns if it has no rows."""
        assert self.folder is not None
        content = self.folder.read(f"{name}.parquet/{part}.parquet")
        if content is not None:
            return columns_of(content)
        columns: TableColumns = json.loads(self.folder.read(f"{name}.json/{part}.json") or b"{}")
        return columns

    def check(self, records: Iterable[PartRecord]) -> None:
        """Raises an error if files of these finished parts are missing or have changed size."""
        lost = self._lost(records)
        if lost:
            assert self.folder is not None
            raise FileError(
                f"files of {counted(len(lost), 'finished part')} ({', '.join(sorted(lost)[:3])}"
                f"{', …' if len(lost) > 3 else ''}) are missing from {self.folder.path} or were "
                "changed there.",
                "Write them again with resume=True.",
                command="Write them again with --resume.",
            )

    def check_visible(self, record: PartRecord) -> None:
        """Raises an error if the files of a worker are not visible on this machine."""
        if self.folder is not None and self._lost([record]):
            raise FileError(
                f"a worker has written to {self.folder.path}, but its files are not visible on "
                "this machine: choose a folder that all machines share, or object storage."
            )

    def note_attempts(self, part: str, deaths: Mapping[str, int]) -> None:
        """Saves how often a process died for each range of rows, including the current attempt."""
        if self.folder is not None:
            note = {"run": self.run, "deaths": deaths}
            self.folder.write(_attempts(part), json.dumps(note).encode())

    def attempts(self, part: str) -> dict[str, int]:
        """The attempts that `note_attempts` saved for an unfinished part of this run."""
        note = {} if self.folder is None else _json(self.folder, _attempts(part))
        deaths: dict[str, int] = note["deaths"] if note.get("run") == self.run else {}
        return deaths

    def _write(self, name: str, content: bytes) -> None:
        assert self.folder is not None
        try:
            self.folder.write(name, content)
        except FileError as error:
            raise FileError(
                f"{error} The parts finished before are saved.",
                "Continue with resume=True.",
                command="Continue with --resume.",
            ) from error

    def _check_saved(self, saved: Mapping[str, Any]) -> None:
        assert self.folder is not None
        if differences := changes(saved, self.settings):
            raise FileError(
                f"cannot resume from {self.folder.path}: model, data, settings or versions changed "
                f"({'; '.join(differences)}). Choose another folder."
            )

    def _finished(self, names: list[str]) -> list[PartRecord]:
        """The records of this run whose files are unchanged."""
        folder = self.folder
        assert folder is not None
        records = []
        for name in names:
            record = _json(folder, f"{_RECORDS}/{name}")
            is_whole = record.pop("digest", None) == digest(json.dumps(record))
            if is_whole and record["run"] == self.run and name == f"{record['part']}.json":
                records.append(record)
        lost = self._lost(records) | {
            record["part"]
            for record in records
            for name, (_, content) in record["files"].items()
            if digest(folder.read(name)) != content
        }
        if lost:
            warnings.warn(
                f"files of {counted(len(lost), 'finished part')} are missing from "
                f"{folder.path} or were changed there: the rows are computed again."
            )
        return [record for record in records if record["part"] not in lost]

    def _lost(self, records: Iterable[PartRecord]) -> set[str]:
        """The parts whose record or tables are missing or have changed size."""
        if self.folder is None:
            return set()
        records = list(records)
        folders = {_RECORDS, *(name.rpartition("/")[0] for r in records for name in r["files"])}
        sizes = {
            f"{folder}/{name}": size
            for folder in folders
            for name, size in self.folder.sizes(folder).items()
        }
        return {
            record["part"]
            for record in records
            if f"{_RECORDS}/{record['part']}.json" not in sizes
            or any(sizes.get(name) != size for name, (size, _) in record["files"].items())
        }


def check_same_run(first: PartRecord, second: PartRecord) -> None:
    """Raises an error if two parts were explained with different models or settings."""
    if first["run"] != second["run"]:
        raise ModelError(
            f"workers have different models ({first['part']} and {second['part']}). {_SAME_FILES}"
        )


def _file(table: StoredTable, part: str) -> tuple[str, bytes]:
    """A table as a Parquet file, or as JSON if pyarrow is not installed."""
    try:
        content = parquet_bytes(table.columns, table.types)
    except MissingExtra:
        columns = {name: getattr(v, "tolist", lambda v=v: v)() for name, v in table.columns.items()}
        return f"{table.name}.json/{part}.json", json.dumps(columns).encode()
    return f"{table.name}.parquet/{part}.parquet", content


def _attempts(part: str) -> str:
    return f"{_RECORDS}/attempts-{part}.json"


def _as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings after a round trip through JSON: tuples become lists, keys strings."""
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def _json(folder: Folder, name: str) -> PartRecord:
    """The content of a file; empty if it is damaged, so that the part is computed again."""
    try:
        content = json.loads(folder.read(name) or b"{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _saved(folder: Folder) -> PartRecord | None:
    """The saved settings of a folder; None if there are none."""
    content = folder.read(_SETTINGS)
    if content is None:
        return None
    try:
        saved = json.loads(content)
    except (ValueError, RecursionError):
        saved = None
    if not isinstance(saved, dict):
        raise FileError(
            f"cannot resume: {folder.path}/{_SETTINGS} is damaged. Choose another folder."
        )
    return saved
