"""The work of `run`: a part is explained and written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wherefrom.methods import method as find_method
from wherefrom.runs.crash_isolation import Attempts
from wherefrom.runs.explain_rows import RowExplainer
from wherefrom.runs.model_source import ModelSource
from wherefrom.runs.parts import Part
from wherefrom.runs.rows import REJECTED, TYPES, Row, columns, rejected_row
from wherefrom.runs.store import Record, ResultsFolder, Table
from wherefrom.storage.fingerprint import explainer_fingerprint


@dataclass(frozen=True)
class Explaining:
    """How rows are explained: the model, and the arguments of `RowExplainer`."""

    model: ModelSource
    options: dict[str, Any]
    name: str
    fingerprint: dict[str, Any]

    @staticmethod
    def checked(model: ModelSource, options: dict[str, Any]) -> Explaining:
        """Loads the model; an error if it has no such target, or there is no such method."""
        explainer = model.explainer()
        for name in ("target", "against"):
            if options[name] is not None:
                explainer.index_of(options[name])
        options = options | {"method": find_method(options["method"])}
        return Explaining(model, options, explainer.runner.name, explainer_fingerprint(explainer))

    @property
    def settings(self) -> dict[str, Any]:
        """What the results depend on."""
        method = self.options["method"]
        return {
            "model": self.name,
            "method": [method.name, method.settings()],
            "target": [self.options["target"], self.options["against"]],
            "truncate": self.options["truncate"],
            **self.fingerprint,
        }

    def work(self, folder: ResultsFolder, on_gpu: bool) -> ExplainPart:
        """What workers do with a part; its rows go into this folder."""
        return ExplainPart(self, on_gpu, folder)


@dataclass
class ExplainPart:
    """Explains a part and writes its rows; what comes back is its record."""

    explaining: Explaining
    on_gpu: bool
    folder: ResultsFolder
    _explain: RowExplainer | None = None

    def __call__(self, part: Part) -> Record:
        if self._explain is None:
            explainer = self.explaining.model.verified(self.explaining.fingerprint, self.on_gpu)
            self._explain = RowExplainer(explainer, **self.explaining.options)
        explain = self._explain
        explained: list[Row] = []
        rejected: list[Row] = []
        for rows, result in Attempts.at(self.folder, part.name).results(
            len(part.ids),
            lambda some: explain(part.ids[some], part.texts[some], part.labels[some]),
        ):
            if isinstance(result, str):
                rejected.append(rejected_row(part.ids[rows.start], part.texts[rows.start], result))
            else:
                explained += result[0]
                rejected += result[1]
        tables = [
            Table("results", columns(explained, TYPES), TYPES),
            Table("rejected", columns(rejected, REJECTED), REJECTED),
        ]
        counts = {"explained": len(explained), "rejected": len(rejected), "size": part.size}
        return self.folder.add(part.name, tables, counts)
