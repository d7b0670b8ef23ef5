"""The result of an audit, as data, text and page."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError
from wherefrom.storage.writing import write_text
from wherefrom.views import Views

SCHEMA = "wherefrom/audit/1"


@dataclass(frozen=True)
class Finding:
    """One axiom and one method: whether it holds (None: undecided), the number, the words."""

    method: str
    axiom: str
    holds: bool | None
    value: float | None
    words: str


@dataclass(frozen=True)
class Audit(Views):
    """The findings on each method, and what was measured about the model."""

    model: str
    inputs: tuple[str, ...]
    methods: tuple[str, ...]
    findings: tuple[Finding, ...]
    rewrites: dict[str, dict[str, Any]]  # kind: name, places, dropped, output_change
    conservation: tuple[str, ...]
    seconds: float

    def of(self, method: str) -> list[Finding]:
        """The findings on one method."""
        return [finding for finding in self.findings if finding.method == method]

    def sound(self) -> list[str]:
        """The methods that fail no axiom that was tested."""
        failed = {finding.method for finding in self.findings if finding.holds is False}
        unable = {finding.method for finding in self.findings if finding.axiom == "run"}
        return [name for name in self.methods if name not in failed | unable]

    def __str__(self) -> str:
        return str(import_module("wherefrom.show.audit").text(self))

    def to_json(self, path: str | Path | None = None) -> str:
        """Everything as JSON, also written to `path` if given."""
        data = {"schema": SCHEMA, **asdict(self), "sound": self.sound()}
        text = json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False)
        if path is not None:
            write_text(path, text)
        return text

    @classmethod
    def from_json(cls, path: str | Path) -> Audit:
        """The audit that `to_json` has written."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if data.pop("schema") != SCHEMA:
                raise ValueError("the schema is different")
            del data["sound"]  # follows from the findings
            tuples = {name: tuple(data[name]) for name in ("inputs", "methods", "conservation")}
            findings = tuple(Finding(**finding) for finding in data["findings"])
            return cls(**{**data, **tuples, "findings": findings})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileError(f"{path} cannot be read as an audit: {error}") from error

    def _html(self, whole_page: bool) -> str:
        return str(import_module("wherefrom.show.audit").render(self, whole_page))

    def _rows(self) -> list[dict[str, Any]]:
        """One row for each finding."""
        return [asdict(finding) for finding in self.findings]


def share(value: float) -> str:
    """A share, readable.

    >>> share(0), share(3.1e-16), share(0.0042), share(0.874), share(2.31), share(142.0)
    ('0', '3e-16', '0.42 %', '87 %', '231 %', '142×')
    """
    if math.isnan(value):
        return "undefined"
    if value < 1e-3:
        return f"{value:.0e}" if value else "0"
    if value >= 10:
        return f"{value:.0f}×"
    return f"{100 * value:.0f} %" if value >= 0.0995 else f"{100 * value:.2g} %"
