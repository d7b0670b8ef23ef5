"""HTML reports in the folder that the server was started with."""

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
    """The content security policy of a report: it allows only the library's own script."""
    script = Path(corpus.__file__).with_name("corpus.js").read_text(encoding="utf-8")
    digest = b64encode(sha256(script.encode()).digest()).decode("ascii")
    return f"{REPORT_POLICY} allow-scripts; script-src 'sha256-{digest}'"


@dataclass(frozen=True)
class Reports:
    """The HTML files in a folder and its direct subfolders, requested by name."""

    folder: Path | None = None

    def by_name(self) -> dict[str, Path]:
        """Paths by name, newest first, without symbolic links to files outside the folder."""
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
            while shown in names:  # two names may differ only in unprintable bytes
                shown, number = f"{name} ({number})", number + 1
            names[shown] = path
        return names

    def read(self, name: str) -> bytes | None:
        """The content of a listed report; None for other names and for deleted files."""
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
    """The name of a file as UTF-8; file systems allow other bytes."""
    return os.fsencode(name).decode("utf-8", "replace")
