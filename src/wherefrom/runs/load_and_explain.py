"""The work of `run` where only workers load the model: the driver imports no torch for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wherefrom.runs.model_source import ModelSource
from wherefrom.runs.parts import Part
from wherefrom.runs.store import OpenedFolder, Record

if TYPE_CHECKING:
    from wherefrom.runs.explain_parts import ExplainPart


@dataclass
class LoadAndExplain:
    """Explains parts as `ExplainPart` does; at the first, the model is loaded and checked."""

    model: ModelSource
    options: dict[str, Any]
    on_gpu: bool
    folder: OpenedFolder
    _explain: ExplainPart | None = None

    def __call__(self, part: Part) -> Record:
        if self._explain is None:
            self._explain = self.loaded()
        return self._explain(part)

    def loaded(self) -> ExplainPart:
        """The work with its model; an error if the model or the settings are not those of the run.

        No such target, no such method, or other weights, tokenizer or versions than the run that
        is continued, or than another worker.
        """
        from wherefrom.runs.explain_parts import Explaining  # with torch

        explaining = Explaining.checked(self.model, self.options)
        folder = self.folder.completed(explaining.settings)
        return explaining.work(folder, self.on_gpu)
