"""Finished windows of a corpus in files, so that an interrupted run can be resumed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from wherefrom.errors import CONTINUE, FileError, counted
from wherefrom.storage.fingerprint import changes, digest
from wherefrom.storage.writing import reason, remove_partial_files, replacing, write_text

Window = dict[str, NDArray[Any]]
_PREFIX = "window-"


@dataclass
class Checkpoint:
    """One file for each finished window of a run with these `settings`; no folder, no files.

    The settings are the fingerprint of the run: method, weights, texts, versions. Each window
    carries the digest of them. The folder above must be locked while a checkpoint is in use.
    """

    folder: Path | None
    settings: dict[str, Any]
    windows: dict[int, Window] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.settings = json.loads(json.dumps(self.settings))
        self.run = digest(self.settings)

    def open(self, resume: bool) -> None:
        """Reads what the same run has finished, or starts anew where there is nothing to lose."""
        if self.folder is None:
            return
        files = self._files(self.folder)
        if resume and (self.folder / "settings.json").exists():
            self._load(self.folder, files)
        elif files:
            raise FileError(
                f"{self.folder} has {counted(len(files), 'finished chunk')} of an earlier run.",
                **CONTINUE,
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_partial_files(self.folder)
        except OSError as error:
            raise FileError(f"cannot write to {self.folder}: {reason(error)}.") from error
        write_text(self.folder / "settings.json", json.dumps(self.settings))

    def add(self, number: int, window: Window) -> None:
        """Adds a finished window; its file appears only when it is complete."""
        if self.folder is not None:
            try:
                with replacing(self.folder / f"{_PREFIX}{number:06d}.npz") as file:
                    np.savez(file, run=np.array(self.run), **window)  # type: ignore[arg-type]
            except FileError as error:
                raise FileError(
                    f"{error} The {len(self.windows)} chunks finished before are saved.",
                    "Continue with resume=True.",
                    command="Continue with --resume.",
                ) from error
        self.windows[number] = window

    def _load(self, folder: Path, files: list[Path]) -> None:
        differences = changes(self._saved_settings(folder / "settings.json"), self.settings)
        if differences:
            raise FileError(
                f"cannot resume from {folder}: model, data, settings or versions changed "
                f"({'; '.join(differences)}). Choose another folder."
            )
        for path in files:
            try:
                with np.load(path, allow_pickle=False) as arrays:
                    window = dict(arrays)
            except (OSError, ValueError, BadZipFile, EOFError) as error:
                raise FileError(f"{path} is damaged: delete it and resume again.") from error
            if str(window.pop("run", "")) == self.run:  # that of another run is written again
                self.windows[_number(path)] = window

    @staticmethod
    def _files(folder: Path) -> list[Path]:
        return sorted(folder.glob(f"{_PREFIX}*.npz"))

    @staticmethod
    def _saved_settings(path: Path) -> dict[str, Any]:
        try:
            settings = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise FileError(f"{path} is damaged: {error}") from error
        if not isinstance(settings, dict):
            raise FileError(f"{path} is damaged: it does not hold settings.")
        return settings


def _number(path: Path) -> int:
    return int(path.stem.removeprefix(_PREFIX))
