"""Explains, perturbs and measures samples, with one record per sample."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from wherefrom.core.explanation import Explanation
from wherefrom.core.runner import ModelRunner, Rejected
from wherefrom.core.target import OutputNames, ToProbability
from wherefrom.errors import (
    InputError,
    ModelError,
    NotEnoughMemory,
    NotFinite,
    ScoresNotFinite,
    TargetError,
    TooLong,
    WherefromError,
)
from wherefrom.evaluation.forward_cache import ForwardCache
from wherefrom.evaluation.metrics import Metric, Sample, correlations
from wherefrom.inputs.reader import Reader
from wherefrom.inputs.table import Rows
from wherefrom.methods import Method
from wherefrom.studies import Record, Study, StudySamples

_CHUNK = 16  # inputs per call; progress is reported between calls
_Pending = tuple[str, Metric, Sample, list[int]]  # method label, …, ids of perturbed inputs


class ExplainerLike(Protocol):
    """The parts of an explainer that an evaluation uses."""

    runner: ModelRunner

    @property
    def output_names(self) -> OutputNames: ...
    def each(
        self, inputs: Sequence[Any], method: Any = ..., **options: Any
    ) -> list[Explanation | Rejected]: ...
    def _reader(self, inputs: Any, /) -> Reader[Any, Any]: ...
    def index_of(self, label: str | int) -> int: ...


class TooFewToJudge(Exception):
    """A method failed on all of a few inputs, and there are more inputs to try."""


class _ValueNotFinite(NotFinite):
    """A metric is NaN or infinite."""


class NotLastPosition(InputError):
    """The explained prediction is not at the last position."""


@dataclass
class SampleExplainer:
    """Explains samples by all methods.

    A method that fails on all of its first samples, or returns scores that are not finite, is
    listed in `failed_methods` (label to reason) and not used again. If the first samples are few,
    `TooFewToJudge` requests more.
    """

    explainer: ExplainerLike
    methods: list[Method]
    truncate: bool
    failed_methods: dict[str, str]
    seconds: float = 0.0
    seconds_each: dict[str, float] = field(default_factory=dict)  # per explanation, by method
    working: set[str] = field(default_factory=set)  # labels of methods that succeeded at least once

    def __call__(
        self,
        inputs: dict[int, Any],
        targets: Sequence[int] | None,
        order: Sequence[int],
        progress: Callable[[float, str], None],
        is_all: bool = True,
    ) -> tuple[dict[str, dict[int, Explanation]], dict[int, WherefromError]]:
        """Explanations by method label and row, and the errors of rows that a method rejects.

        `inputs` and `targets` are by row; `order` is the order of the rows. `progress` receives
        the number of methods done and the current label. `is_all`: there are no further rows.
        """
        start = time.perf_counter()
        by_method: dict[str, dict[int, Explanation]] = {}
        rejected: dict[int, WherefromError] = {}
        for number, method in enumerate(self.methods):
            label = method.label
            if label in self.failed_methods:
                continue
            begin = time.perf_counter()
            explanations: dict[int, Explanation] = {}
            errors: dict[int, WherefromError] = {}
            try:
                for first in range(0, len(order), _CHUNK):
                    progress(number + first / len(order), label)
                    rows = order[first : first + _CHUNK]
                    self._explain(method, rows, inputs, targets, explanations, errors)
                    self._check_working(label, explanations, errors, is_all)
            except ModelError as error:
                if len(self.methods) == 1:
                    raise
                self.failed_methods[label] = str(error)
                self.working.discard(label)
                continue
            self.working.add(label)
            self.seconds_each[label] = (time.perf_counter() - begin) / max(1, len(order))
            by_method[label] = explanations
            rejected.update(errors)
        self.seconds += time.perf_counter() - start
        if not by_method:
            reason = next(iter(self.failed_methods.values()))
            raise ModelError(f"no method works on this model: {reason}")
        return by_method, rejected

    def _explain(
        self,
        method: Method,
        rows: Sequence[int],
        inputs: dict[int, Any],
        targets: Sequence[int] | None,
        explanations: dict[int, Explanation],
        errors: dict[int, WherefromError],
    ) -> None:
        results = self.explainer.each(
            [inputs[row] for row in rows],
            method,
            target=None if targets is None else [targets[row] for row in rows],
            truncate=self.truncate,
        )
        for row, result in zip(rows, results, strict=True):
            if isinstance(result, Rejected):
                if isinstance(result.error, ScoresNotFinite):  # the method's fault, not the input's
                    raise NotFinite(f"its scores are NaN or infinite (sample {row}).")
                errors[row] = result.error
                continue
            position = result.target.position
            if position is not None and position != len(result.units) - 1:
                # metrics read the output at the last position
                errors[row] = NotLastPosition(f"the prediction is at position {position}.")
            else:
                explanations[row] = result

    def _check_working(
        self,
        label: str,
        explanations: dict[int, Explanation],
        errors: dict[int, WherefromError],
        is_all: bool,
    ) -> None:
        """Raises the first error of a method that has failed on every sample so far."""
        # input errors say nothing about the method
        error = next((e for e in errors.values() if not isinstance(e, InputError)), None)
        if explanations or label in self.working or error is None:
            return
        if len(errors) < _CHUNK and not is_all:
            raise TooFewToJudge
        raise error if isinstance(error, ModelError) else ModelError(str(error))


def _rejection_kind(error: Exception) -> str:
    """The category under which the result counts a rejected sample."""
    if isinstance(error, TooLong):
        return "too long"
    if isinstance(error, NotLastPosition):
        return "prediction not at the last position"
    if isinstance(error, TargetError):
        return "unknown class"
    if isinstance(error, NotEnoughMemory):
        return "not enough memory"
    return "unreadable" if isinstance(error, InputError) else "a method failed"


@dataclass(frozen=True)
class Options:
    """How samples are read and perturbed; see `evaluate`."""

    blank: str | int | None
    keep_special: bool
    every: bool
    truncate: bool


@dataclass(frozen=True)
class RecordedWindow:
    """The records of a window from another process, with its rejections, failures and costs."""

    records: list[Record]
    rejected: dict[int, Record]
    failed: dict[str, str]
    costs: dict[str, float]


@dataclass
class SampleRecorder:
    """Turns rows of the data into records, one window at a time.

    A record is the contribution of one sample to an `Evaluation`, by method label: values, curves,
    sums of scores, rank correlations, and the records of studies. A row that cannot be read,
    explained or measured is listed in `rejected`, with the reason.
    """

    explainer: ExplainerLike
    rows: Rows
    methods: list[Method]
    metrics: list[Metric]
    studies: dict[Study, set[int]]  # with the rows to study
    options: Options
    rejected: dict[int, Record] = field(default_factory=dict)  # sample, input, kind, reason
    failed: dict[str, str] = field(default_factory=dict)  # methods and studies, with the reason
    study_seconds: float = 0.0
    _others: dict[str, float] = field(default_factory=dict)  # the costs of other processes

    def __post_init__(self) -> None:
        runner = self.explainer.runner
        _check_single_input(runner)
        self.reader = self.explainer._reader(self.rows.texts[0])
        self.labels = (
            None
            if self.rows.labels is None
            else [self.explainer.index_of(label) for label in self.rows.labels]
        )
        self.explain = SampleExplainer(
            self.explainer, self.methods, self.options.truncate, self.failed
        )
        self.cache = ForwardCache(self.reader)
        for_classes = [metric.name for metric in self.metrics if metric.needs_classes]
        if self.to_probability == "none" and for_classes:
            raise InputError(
                f"{runner.name} predicts no class, which these metrics require: "
                f"{', '.join(for_classes)}. Leave them out."
            )

    @property
    def to_probability(self) -> ToProbability:
        """The function for the model's outputs, as far as it is known from those explained."""
        output_names = self.explainer.output_names
        outputs = len(output_names.labels)
        return output_names.to_probability(outputs or 2, per_position=not outputs)

    @property
    def skipped(self) -> Counter[str]:
        """The number of samples that were left out, by reason."""
        kinds = (rejection["kind"] for rejection in self.rejected.values())
        return Counter(self.rows.skipped) + Counter(kinds)

    def resume(self, record: Record) -> None:
        """Leaves out the methods that an earlier run left out, by one of its records."""
        labels = [method.label for method in self.methods]
        missing = [label for label in labels if label not in record["sums"]]
        self.failed.update(dict.fromkeys(missing, "failed in the earlier run"))
        self.explain.working.update(record["sums"])

    def begin_like(self, failed: dict[str, str], working: set[str]) -> None:
        """Copies from another process which methods fail and which work."""
        self.failed.update(failed)
        self.explain.working.update(working)

    @property
    def costs(self) -> dict[str, float]:
        """Seconds by kind of work, and counts of perturbed inputs, over all processes."""
        cache = self.cache
        here = {
            "studies": self.study_seconds,
            "explaining": self.explain.seconds,
            "forward": cache.forward_seconds,
            "requested": cache.requested,
            "computed": cache.computed,
        }
        return {name: value + self._others.get(name, 0) for name, value in here.items()}

    def recorded(self, window: Sequence[int]) -> RecordedWindow:
        """The records of these rows for another process."""
        before = self.costs
        self.rejected.clear()
        records = self.records(window, lambda share, step: None)
        costs = {name: value - before[name] for name, value in self.costs.items()}
        return RecordedWindow(records, dict(self.rejected), dict(self.failed), costs)

    def add_recorded(self, window: RecordedWindow) -> None:
        """Adds the rejections, failures and costs of a window from another process."""
        self.rejected.update(window.rejected)
        self.failed.update(window.failed)
        for name, value in window.costs.items():
            self._others[name] = self._others.get(name, 0) + value

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

        items = self._read(window)
        if not items:
            return []
        order = sorted(items, key=lambda row: self.reader.size(items[row]))
        by_method, errors = self.explain(items, self.labels, order, report, is_all)
        for row, error in errors.items():
            self._reject(row, error)
        rows = [row for row in items if row not in errors]
        records = self._measure(rows, items, by_method, report)
        self._study(rows, items, by_method, records, report)
        return list(records.values())

    def _reject(self, row: int, error: Exception, kind: str = "") -> None:
        """Rejects a row for all methods, so that they are compared on the same samples."""
        source = self.rows.texts[row]
        self.rejected[row] = {
            "sample": row,
            "input": str(source) if isinstance(source, str) else "",
            "kind": kind or _rejection_kind(error),
            "reason": str(error),
        }

    def _read(self, window: Sequence[int]) -> dict[int, Any]:
        """The readable rows of a window that have a unit to erase."""
        items: dict[int, Any] = {}
        sources = [self.rows.texts[row] for row in window]
        readings = self.reader.read_each(sources, self.options.truncate)
        for row, item in zip(window, readings, strict=True):
            if isinstance(item, InputError):
                self._reject(row, item)
            elif all(unit.special for unit in self.reader.units_of(item)):
                error = InputError("the input has only special tokens.")
                self._reject(row, error, "only special tokens")
            else:
                items[row] = item
        return items

    def _measure(
        self,
        rows: list[int],
        items: dict[int, Any],
        by_method: dict[str, dict[int, Explanation]],
        report: Callable[[float, str], None],
    ) -> dict[int, Record]:
        """The records of the rows whose outputs and values are all finite."""
        pending: dict[int, list[_Pending]] = {}
        for row in rows:
            samples = {label: self._sample(of[row]) for label, of in by_method.items()}
            try:
                pending[row] = self._requests(items[row], samples)
            except InputError as error:
                self._reject(row, error, "too large for a metric")
        first = len(self.methods)
        self.cache.run(lambda share: report(first + share * len(self.metrics), "perturbed inputs"))
        records: dict[int, Record] = {}
        for row, requests in pending.items():
            record = _record(row, {label: of[row] for label, of in by_method.items()})
            if getattr(items[row], "cut_from", None) is not None:
                record["cut"] = True
            try:
                for request in requests:
                    self._add_value(record, *request)
            except _ValueNotFinite as error:
                self._reject(row, error, str(error))
                continue
            except NotFinite as error:
                self._reject(row, error, "output not finite after perturbation")
                continue
            record["seconds"] = dict(self.explain.seconds_each)
            records[row] = record
        self.cache.clear()
        return records

    def _requests(self, item: Any, samples: dict[str, Sample]) -> list[_Pending]:
        """Requests the perturbed inputs of one sample, for each method and metric."""
        numbers: dict[bytes, list[int]] = {}  # ids by masks, which metrics and methods often share
        requests = []
        for label, sample in samples.items():
            for metric in self.metrics:
                masks = metric.masks(sample)
                key = masks.tobytes()
                if key not in numbers:
                    forms = self.reader.erased(item, masks, self.options.blank)
                    numbers[key] = self.cache.request(forms)
                requests.append((label, metric, sample, numbers[key]))
        return requests

    def _add_value(
        self, record: Record, label: str, metric: Metric, sample: Sample, forms: list[int]
    ) -> None:
        """Adds a metric of one method, and its curve, to the record of a sample."""
        logits = self.cache.logits(forms).astype(np.float64) if forms else np.zeros((0, 0))
        value, curve = metric.value(sample, logits)
        if not np.isfinite(value):
            raise _ValueNotFinite(f"{metric.name} not finite")
        record["values"].setdefault(label, {})[metric.name] = float(value)
        if curve is not None:
            series = record["series"].setdefault(label, {})
            series[metric.name] = np.asarray(curve, dtype=np.float64).tolist()

    def _study(
        self,
        rows: list[int],
        items: dict[int, Any],
        by_method: dict[str, dict[int, Explanation]],
        records: dict[int, Record],
        report: Callable[[float, str], None],
    ) -> None:
        """Adds the records of each study for its rows."""
        start = time.perf_counter()
        for number, (study, wanted) in enumerate(self.studies.items()):
            studied = [row for row in rows if row in wanted and row in records]
            if not studied or study.name in self.failed:
                continue
            samples = StudySamples(
                self.reader.runner,
                lambda indices, studied=studied: self.reader.batch(  # type: ignore[misc]
                    [items[studied[i]] for i in indices]
                ),
                {label: [of[row] for row in studied] for label, of in by_method.items()},
            )
            step = partial(report, len(self.methods) + len(self.metrics) + number, study.name)
            step()
            try:
                study_records = study.records(samples, step)
            except ModelError as error:
                self.failed[study.name] = str(error)
                continue
            for row, record in zip(studied, study_records, strict=True):
                records[row].setdefault("studies", {})[study.name] = record
        self.study_seconds += time.perf_counter() - start

    def _sample(self, explanation: Explanation) -> Sample:
        keep = self.options.keep_special
        erasable = np.array([not (keep and unit.special) for unit in explanation.units])
        index, every = explanation.target.index, self.options.every
        return Sample(explanation, erasable, index, every, self.to_probability)


def _record(row: int, explanations: dict[str, Explanation]) -> Record:
    """The record of one sample before any metric is measured."""
    sums = {
        label: [e.ledger.total if e.ledger else float(e.scores.sum()), e.output]
        for label, e in explanations.items()
    }
    rho = correlations(np.stack([e.scores for e in explanations.values()]).astype(np.float64))
    labels = list(explanations)
    agreement = {
        a: {b: float(rho[x, y]) for y, b in enumerate(labels) if y > x}
        for x, a in enumerate(labels)
    }
    return {"sample": row, "values": {}, "series": {}, "sums": sums, "agreement": agreement}


def _check_single_input(runner: ModelRunner) -> None:
    """Refuses models of spans, and encoder-decoders that generate text from more than one text."""
    config = getattr(runner.model, "config", None)
    generates = getattr(runner.model, "can_generate", None)
    if runner.forward is None and runner.task in ("QuestionAnswering", "TokenClassification"):
        kind = "predicts spans of its input"
    elif getattr(config, "is_encoder_decoder", False) and callable(generates) and generates():
        kind = "generates text with a decoder"
    else:
        return
    raise ModelError(
        f"{runner.name} {kind}, which cannot be evaluated. Evaluation supports classifiers and "
        "decoder-only language models."
    )
