"""Finished windows of a corpus in files, so that an interrupted run can be resumed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from wherefrom.errors import FileError

Window = dict[str, NDArray[Any]]
_PREFIX = "window-"


@dataclass
class Checkpoint:
    """One file for each finished window of a run with these `settings`; no folder, no files."""

    folder: Path | None
    settings: dict[str, Any]
    windows: dict[int, Window] = field(default_factory=dict)

    def load(self) -> None:
        """Reads the windows that an earlier run with the same settings finished."""
        if self.folder is None or not (self.folder / "settings.json").exists():
            return
        settings = json.loads(json.dumps(self.settings))
        before = self._saved_settings(self.folder / "settings.json")
        changes = [
            "other texts" if key == "texts" else f"{key} {before.get(key)} → {settings.get(key)}"
            for key in dict.fromkeys([*before, *settings])
            if before.get(key) != settings.get(key)
        ]
        if changes:
            raise FileError(
                f"cannot resume from {self.folder}: the data or settings changed "
                f"({'; '.join(changes)}). Use another folder, or run without resume."
            )
        for path in self._files(self.folder):
            try:
                with np.load(path, allow_pickle=False) as arrays:
                    self.windows[_number(path)] = dict(arrays)
            except (OSError, ValueError, BadZipFile, EOFError) as error:
                raise FileError(f"{path} is damaged: delete it and resume again.") from error

    def start(self) -> None:
        """Makes the folder and removes windows of an earlier run that were not loaded."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self._files(self.folder):
                if _number(path) not in self.windows:
                    path.unlink()
            (self.folder / "settings.json").write_text(json.dumps(self.settings), "utf-8")
        except OSError as error:
            raise FileError(f"cannot write into {self.folder}: {error.strerror}") from error

    def add(self, number: int, window: Window) -> None:
        """Adds a finished window; its file appears only when it is complete."""
        self.windows[number] = window
        if self.folder is not None:
            path = self.folder / f"{_PREFIX}{number:06d}.npz"
            unfinished = path.with_suffix(".tmp")
            try:
                with unfinished.open("wb") as file:
                    np.savez(file, **window)  # type: ignore[arg-type]
                unfinished.replace(path)
            except OSError as error:
                raise FileError(f"cannot write {path}: {error.strerror}") from error

    @staticmethod
    def _files(folder: Path) -> list[Path]:
        return sorted(folder.glob(f"{_PREFIX}*.npz"))

    @staticmethod
    def _saved_settings(path: Path) -> dict[str, Any]:
        try:
            settings = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise FileError(f"{path} is damaged: {error}") from error
        if not isinstance(settings, dict):
            raise FileError(f"{path} is damaged: it does not hold settings.")
        return settings


def _number(path: Path) -> int:
    return int(path.stem.removeprefix(_PREFIX))
