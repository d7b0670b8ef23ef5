"""The result of an audit, as data, text and page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, ClassVar, Self

from wherefrom.core.displayable import Displayable
from wherefrom.storage.record import Record


@dataclass(frozen=True)
class Finding:
    """One axiom and one method: whether it holds (None: undecided), the number, the words."""

    method: str
    axiom: str
    holds: bool | None
    value: float | None
    words: str


@dataclass(frozen=True)
class Audit(Displayable, Record):
    """The findings on each method, and what was measured about the model."""

    schema: ClassVar[str] = "wherefrom/audit/1"
    noun: ClassVar[str] = "audit"
    json_options: ClassVar[Mapping[str, Any]] = {"indent": 1, "allow_nan": False}

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

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"schema": self.schema, **asdict(self), "sound": self.sound()}

    @classmethod
    def _of_data(cls, data: dict[str, Any]) -> Self:
        derived = ("schema", "sound")
        values = {name: value for name, value in data.items() if name not in derived}
        tuples = {name: tuple(values[name]) for name in ("inputs", "methods", "conservation")}
        findings = tuple(Finding(**finding) for finding in values["findings"])
        return cls(**{**values, **tuples, "findings": findings})

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
