"""Explained windows of a corpus in files, so that an interrupted run can go on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from wherefrom.errors import FileError

Part = dict[str, NDArray[Any]]


@dataclass
class Parts:
    """A file for each window, whole or not there; `settings` are those of the run."""

    folder: Path | None
    settings: dict[str, Any]
    done: dict[int, Part] = field(default_factory=dict)

    def load(self) -> None:
        """Reads the windows that an earlier run with the same settings has finished."""
        if self.folder is None or not (self.folder / "settings.json").exists():
            return
        if self._known() != json.loads(json.dumps(self.settings)):
            raise FileError(
                f"{self.folder} is of a run with other data or settings: it cannot be gone on "
                "with. Give another folder, or start anew without resuming."
            )
        for path in sorted(self.folder.glob("part-*.npz")):
            try:
                with np.load(path, allow_pickle=False) as held:
                    self.done[int(path.stem.removeprefix("part-"))] = dict(held)
            except (OSError, ValueError, BadZipFile, EOFError) as error:
                raise FileError(f"{path} is damaged: delete it and resume again.") from error

    def start(self) -> None:
        """Makes the folder, and clears it of windows of an earlier run that is not gone on with."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self.folder.glob("part-*.npz"):
                if int(path.stem.removeprefix("part-")) not in self.done:
                    path.unlink()
            (self.folder / "settings.json").write_text(json.dumps(self.settings), "utf-8")
        except OSError as error:
            raise FileError(f"cannot write into {self.folder}: {error.strerror}") from error

    def add(self, number: int, part: Part) -> None:
        """Keeps one more window."""
        self.done[number] = part
        if self.folder is not None:
            path = self.folder / f"part-{number:06d}.npz"
            unfinished = path.with_suffix(".tmp")
            with unfinished.open("wb") as file:
                np.savez(file, **part)  # type: ignore[arg-type]
            unfinished.replace(path)

    def _known(self) -> Any:
        assert self.folder is not None
        try:
            return json.loads((self.folder / "settings.json").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise FileError(f"{self.folder / 'settings.json'} is damaged: {error}") from error
