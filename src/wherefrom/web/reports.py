"""Report pages in the folder that the server was started with."""

from __future__ import annotations

import os
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from wherefrom.show import corpus
from wherefrom.web.security import REPORT_POLICY

_MAX_REPORTS = 200


@cache
def report_policy() -> str:
    """The content security policy of a report: it may run the one script the library writes."""
    script = Path(corpus.__file__).with_name("corpus.js").read_text(encoding="utf-8")
    digest = b64encode(sha256(script.encode()).digest()).decode("ascii")
    return f"{REPORT_POLICY} allow-scripts; script-src 'sha256-{digest}'"


@dataclass(frozen=True)
class Reports:
    """The HTML files in a folder and its direct subfolders; a request uses a listed name."""

    folder: Path | None = None

    def by_name(self) -> dict[str, Path]:
        """Paths by name, newest first, without symbolic links that lead out of the folder."""
        if self.folder is None or not self.folder.is_dir():
            return {}
        folder = self.folder.resolve()
        paths = [
            path
            for pattern in ("*.html", "*/*.html")
            for path in folder.glob(pattern)
            if path.is_file() and path.resolve().is_relative_to(folder)
        ]
        paths.sort(key=_changed, reverse=True)
        names: dict[str, Path] = {}
        for path in paths[:_MAX_REPORTS]:
            name = shown = _printable(path.relative_to(folder).as_posix())
            number = 2
            while shown in names:  # two names may differ in what cannot be shown
                shown, number = f"{name} ({number})", number + 1
            names[shown] = path
        return names

    def read(self, name: str) -> bytes | None:
        """The content of a listed report; None for any other name, and for one that is gone."""
        path = self.by_name().get(name)
        try:
            return None if path is None else path.read_bytes()
        except OSError:
            return None


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # deleted meanwhile
        return 0.0


def _printable(name: str) -> str:
    """The name of a file as UTF-8; a file system may hold other bytes."""
    return os.fsencode(name).decode("utf-8", "replace")
