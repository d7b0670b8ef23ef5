"""Pages that explain, evaluate and bias wrote into a folder that was allowed at the start."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from wherefrom.show import corpus
from wherefrom.web.security import REPORT

_MOST = 200


@cache
def policy() -> str:
    """What a report may do in a browser: run the one script that the library writes into some."""
    script = Path(corpus.__file__).with_name("corpus.js").read_text(encoding="utf-8")
    digest = b64encode(sha256(script.encode()).digest()).decode("ascii")
    return f"{REPORT} allow-scripts; script-src 'sha256-{digest}'"


@dataclass(frozen=True)
class Reports:
    """The pages in a folder and its own folders; a request names one as it is listed."""

    folder: Path | None = None

    def found(self) -> dict[str, Path]:
        """Pages by name, the newest first. Links that lead out of the folder are left out."""
        if self.folder is None or not self.folder.is_dir():
            return {}
        home = self.folder.resolve()
        pages = [
            path
            for pattern in ("*.html", "*/*.html")
            for path in home.glob(pattern)
            if path.is_file() and path.resolve().is_relative_to(home)
        ]
        pages.sort(key=lambda path: -path.stat().st_mtime)
        return {path.relative_to(home).as_posix(): path for path in pages[:_MOST]}

    def read(self, name: str) -> bytes | None:
        """The page of this name, if it is one of those listed."""
        path = self.found().get(name)
        return None if path is None else path.read_bytes()
