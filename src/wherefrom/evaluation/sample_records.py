"""Explains, perturbs and measures samples: one record for each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from wherefrom.core.explanation import Explanation
from wherefrom.core.output_names import ToProbability
from wherefrom.errors import InputError, ModelError
from wherefrom.evaluation.explain_samples import (
    ExplainerLike,
    SampleExplainer,
    check_single_input,
    skip_reason,
)
from wherefrom.evaluation.forward_cache import ForwardCache
from wherefrom.evaluation.metrics import Metric, Sample, correlations
from wherefrom.inputs.table import Rows
from wherefrom.methods import Method
from wherefrom.studies.base import Record, Study, StudySamples


@dataclass(frozen=True)
class Options:
    """How samples are read and perturbed; see `evaluate`."""

    blank: str | int | None
    keep_special: bool
    every: bool
    truncate: bool


@dataclass(frozen=True)
class RecordedWindow:
    """The records of a window, and what else another process has seen while making them."""

    records: list[Record]
    skipped: Counter[str]
    failed: dict[str, str]
    seconds: tuple[float, float, float]  # explaining, studies, forward passes
    passes: tuple[int, int]  # requested, computed


@dataclass
class SampleRecorder:
    """Turns rows of the data into records, a window of them at a time.

    A record holds what one sample contributes to an `Evaluation`, by method label: values,
    curves, sums of scores, rank correlations, and the records of studies.
    """

    explainer: ExplainerLike
    rows: Rows
    methods: list[Method]
    metrics: list[Metric]
    studies: dict[Study, set[int]]  # and the rows that each looks at
    options: Options
    skipped: Counter[str] = field(default_factory=Counter)  # number of samples by reason
    failed: dict[str, str] = field(default_factory=dict)  # methods and studies, with the reason
    study_seconds: float = 0.0

    def __post_init__(self) -> None:
        check_single_input(self.explainer.runner)
        self.reader = self.explainer._reader(self.rows.texts[0])
        self.skipped.update(self.rows.skipped)
        self.labels = (
            None
            if self.rows.labels is None
            else [self.explainer.index_of(label) for label in self.rows.labels]
        )
        self.explain = SampleExplainer(
            self.explainer, self.methods, self.options.truncate, self.failed
        )
        self.cache = ForwardCache(self.reader)
        output_names = getattr(self.explainer, "output_names", None)
        outputs = len(output_names.labels) if output_names is not None else 0
        self.to_probability: ToProbability = (
            output_names.to_probability(outputs)
            if output_names is not None and outputs
            else "softmax"
        )
        of_classes = [metric.name for metric in self.metrics if metric.needs_classes]
        if self.to_probability == "none" and of_classes:
            raise InputError(
                f"{self.explainer.runner.name} gives a number and predicts no class, so there is "
                f"nothing to count for: {', '.join(of_classes)}. Leave out these metrics."
            )

    def resume(self, record: Record) -> None:
        """Leaves out what an earlier run left out, by one of its records."""
        labels = [method.label for method in self.methods]
        missing = [label for label in labels if label not in record["sums"]]
        self.failed.update(dict.fromkeys(missing, "failed in the earlier run"))
        self.explain.working.update(record["sums"])

    def begin_like(self, failed: dict[str, str], working: set[str]) -> None:
        """Knows of methods what another process has found out."""
        self.failed.update(failed)
        self.explain.working.update(working)

    def recorded(self, window: Sequence[int]) -> RecordedWindow:
        """The records of these rows for another process."""
        self.skipped.clear()
        before = self._seen()
        records = self.records(window, lambda share, step: None)
        seen = [now - then for now, then in zip(self._seen(), before, strict=True)]
        return RecordedWindow(
            records, Counter(self.skipped), dict(self.failed),
            (seen[0], seen[1], seen[2]), (int(seen[3]), int(seen[4])),
        )  # fmt: skip

    def _seen(self) -> tuple[float, ...]:
        cache = self.cache
        return (
            self.explain.seconds, self.study_seconds, cache.forward_seconds, cache.requested,
            cache.computed,
        )  # fmt: skip

    def add_seen(self, window: RecordedWindow) -> None:
        """Takes over what another process has seen."""
        self.skipped.update(window.skipped)
        self.failed.update(window.failed)
        explaining, studies, forward = window.seconds
        self.explain.seconds += explaining
        self.study_seconds += studies
        self.cache.forward_seconds += forward
        self.cache.requested += window.passes[0]
        self.cache.computed += window.passes[1]

    def records(
        self,
        window: Sequence[int],
        progress: Callable[[float, str], None],
        is_all: bool = True,
    ) -> list[Record]:
        """The records of these rows; `progress` receives the share done and the current step.

        `is_all`: no larger window can be tried if a method fails on all of these rows.
        """
        steps = len(self.methods) + len(self.metrics) + len(self.studies)

        def report(steps_done: float, step: str) -> None:
            progress(steps_done / max(1, steps), step)

        rows, items, skipped = self._read(window)
        if not rows:
            self.skipped.update(skipped)
            return []
        explanations, failures = self.explain(
            items,  # read once, not again by every method
            None if self.labels is None else [self.labels[row] for row in rows],
            sorted(range(len(rows)), key=lambda i: self.reader.size(items[i])),
            report,
            is_all,
        )
        self.skipped.update(skipped)
        self.skipped.update(skip_reason(error) for error in failures.values())
        complete = [i for i in range(len(rows)) if i not in failures]
        rows, items = [rows[i] for i in complete], [items[i] for i in complete]
        records = self._measure(rows, items, explanations, report)
        self._study(rows, items, explanations, records, report)
        return list(records.values())

    def _read(self, window: Sequence[int]) -> tuple[list[int], list[Any], Counter[str]]:
        """The rows of a window that can be read and have something to erase; the others counted."""
        skipped: Counter[str] = Counter()
        rows: list[int] = []
        items: list[Any] = []
        texts = [self.rows.texts[row] for row in window]
        readings = self.reader.read_each(texts, self.options.truncate)
        for row, item in zip(window, readings, strict=True):
            if isinstance(item, InputError):
                skipped[skip_reason(item)] += 1
            elif all(unit.special for unit in self.reader.units_of(item)):
                skipped["only special tokens"] += 1
            else:
                rows.append(row)
                items.append(item)
        return rows, items, skipped

    def _measure(
        self,
        rows: list[int],
        items: list[Any],
        explanations: dict[str, list[Explanation]],
        report: Callable[[float, str], None],
    ) -> dict[int, Record]:
        """The records of these rows, without those for which an output is not finite."""
        pending: list[tuple[int, str, Metric, Sample, list[int]]] = []
        for i, row in enumerate(rows):
            for label, of_method in explanations.items():
                sample = self._sample(of_method[i])
                for metric in self.metrics:
                    forms = self.reader.erased(items[i], metric.masks(sample), self.options.blank)
                    pending.append((row, label, metric, sample, self.cache.request(forms)))
        first = len(self.methods)
        self.cache.run(lambda share: report(first + share * len(self.metrics), "perturbed inputs"))
        records = {row: _record(row, i, explanations) for i, row in enumerate(rows)}
        for record in records.values():
            record["seconds"] = dict(self.explain.seconds_each)
        for row, label, metric, sample, numbers in pending:
            if row not in records:
                continue
            logits = self.cache.logits(numbers).astype(np.float64) if numbers else np.zeros((0, 0))
            if not np.isfinite(logits).all():
                del records[row]
                self.skipped["output not finite after perturbation"] += 1
                continue
            value, curve = metric.value(sample, logits)
            if not np.isfinite(value):
                del records[row]
                self.skipped[f"{metric.name} not finite"] += 1
                continue
            records[row]["values"].setdefault(label, {})[metric.name] = float(value)
            if curve is not None:
                series = records[row]["series"].setdefault(label, {})
                series[metric.name] = np.asarray(curve, dtype=np.float64).tolist()
        self.cache.clear()
        return records

    def _study(
        self,
        rows: list[int],
        items: list[Any],
        explanations: dict[str, list[Explanation]],
        records: dict[int, Record],
        report: Callable[[float, str], None],
    ) -> None:
        """Adds the records of the studies, for the rows that each of them looks at."""
        start = time.perf_counter()
        for number, (study, wanted) in enumerate(self.studies.items()):
            indices = [i for i, row in enumerate(rows) if row in wanted and row in records]
            if not indices or study.name in self.failed:
                continue
            samples = StudySamples(
                self.reader.runner,
                lambda some, indices=indices: self.reader.batch(  # type: ignore[misc]
                    [items[indices[i]] for i in some]
                ),
                {m: [of_method[i] for i in indices] for m, of_method in explanations.items()},
            )
            step = partial(report, len(self.methods) + len(self.metrics) + number, study.name)
            step()
            try:
                study_records = study.records(samples, step)
            except ModelError as error:
                self.failed[study.name] = str(error)
                continue
            for i, record in zip(indices, study_records, strict=True):
                records[rows[i]].setdefault("studies", {})[study.name] = record
        self.study_seconds += time.perf_counter() - start

    def _sample(self, explanation: Explanation) -> Sample:
        keep = self.options.keep_special
        erasable = np.array([not (keep and unit.special) for unit in explanation.units])
        index, every = explanation.target.index, self.options.every
        return Sample(explanation, erasable, index, every, self.to_probability)


def _record(row: int, i: int, explanations: dict[str, list[Explanation]]) -> Record:
    """The record of one sample before anything is measured."""
    of_sample = {label: of_method[i] for label, of_method in explanations.items()}
    sums = {
        label: [e.ledger.total if e.ledger else float(e.scores.sum()), e.output]
        for label, e in of_sample.items()
    }
    rho = correlations(np.stack([e.scores for e in of_sample.values()]).astype(np.float64))
    labels = list(of_sample)
    agreement = {
        a: {b: float(rho[x, y]) for y, b in enumerate(labels) if y > x}
        for x, a in enumerate(labels)
    }
    return {"sample": row, "values": {}, "series": {}, "sums": sums, "agreement": agreement}
