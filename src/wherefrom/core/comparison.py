"""Explanations of one input by several methods, as `Explainer.compare` returns them."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from wherefrom.core.displayable import Displayable
from wherefrom.core.explanation import Explanation
from wherefrom.storage.writing import write_text


class Comparison(Displayable, list[Explanation]):
    """A list of explanations, one for each method, that shows them as rows."""

    def __str__(self) -> str:
        if not self:
            return "no explanations"
        return str(import_module("wherefrom.show.terminal").render_rows(self))

    def _html(self, whole_page: bool) -> str:
        if not self:
            return ""
        return str(import_module("wherefrom.show.html").render(self, whole_page))

    def _rows(self) -> list[dict[str, Any]]:
        """One row for each unit, one column for each method."""
        names = [explanation.method_label for explanation in self]
        columns = [explanation.scores.tolist() for explanation in self]
        units = self[0].units if self else ()
        return [
            {"unit": unit.text} | dict(zip(names, scores, strict=True))
            for unit, scores in zip(units, zip(*columns, strict=True), strict=True)
        ]

    def to_json(self, path: str | Path | None = None) -> str:
        """The explanations as a JSON list, also written to `path` if set."""
        text = json.dumps([each.to_dict() for each in self], ensure_ascii=False, indent=1)
        if path is not None:
            write_text(path, text)
        return text

    @classmethod
    def from_json(cls, source: str | Path) -> Comparison:
        """Back from JSON: a path, or the JSON text itself."""
        return cls(Explanation.list_from_json(source))
