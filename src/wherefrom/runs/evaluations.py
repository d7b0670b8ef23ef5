"""`wherefrom evaluate` on any engine: workers record windows of samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from wherefrom.evaluation.evaluate import Executor
from wherefrom.evaluation.sample_records import RecordedWindow, SampleRecorder
from wherefrom.runs.engine import Engine, ModelSource
from wherefrom.storage.fingerprint import explainer_fingerprint


def recorded_by(engine: Engine, model: ModelSource) -> Executor:
    """An `executor` for `evaluate` that records windows on the engine's workers."""

    def windows(recorder: SampleRecorder, rows: list[list[int]]) -> Iterator[RecordedWindow]:
        work = _RecordWindows(
            model,
            explainer_fingerprint(model.explainer()),
            engine.gpus_per_worker > 0,
            {
                "rows": recorder.rows, "methods": recorder.methods, "metrics": recorder.metrics,
                "studies": recorder.studies, "options": recorder.options,
            },
            dict(recorder.failed),
            set(recorder.explain.working),
        )  # fmt: skip
        if rows:
            yield from engine.results([[window] for window in rows], work)

    return windows


@dataclass
class _RecordWindows:
    model: ModelSource
    fingerprint: Mapping[str, Any]
    on_gpu: bool
    arguments: dict[str, Any]
    failed: dict[str, str]
    working: set[str]
    _recorder: SampleRecorder | None = None

    def __call__(self, window: list[int]) -> RecordedWindow:
        if self._recorder is None:
            explainer = self.model.verified(self.fingerprint, self.on_gpu)
            self._recorder = SampleRecorder(explainer, **self.arguments)
            self._recorder.begin_like(self.failed, self.working)
        return self._recorder.recorded(window)
