"""`evaluate`: any methods and metrics over any data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wherefrom.core.progress import Progress, shown
from wherefrom.errors import InputError, MethodError, ModelError, counted, nearest
from wherefrom.evaluation.metrics import METRICS, Metric, check_metric
from wherefrom.evaluation.recommendation import FEWEST
from wherefrom.evaluation.results import Evaluation
from wherefrom.evaluation.sample_records import (
    ExplainerLike,
    Options,
    RecordedWindow,
    SampleRecorder,
    TooFewToJudge,
)
from wherefrom.inputs.pictures import is_image
from wherefrom.inputs.table import Rows, as_rows
from wherefrom.methods import Method, default_methods
from wherefrom.methods import method as find_method
from wherefrom.storage.fingerprint import digest, explainer_fingerprint
from wherefrom.storage.store import Store
from wherefrom.studies import Record, Study
from wherefrom.studies.attention_erasure import AttentionErasure
from wherefrom.studies.layer_profile import LayerProfile

DEFAULT_METRICS = ("activation", "pruning")
FIRST_WINDOW = 4
"""Samples in the first window; windows double in size, so that Ctrl-C soon leaves a result."""
STUDIES: dict[str, Study] = {study.name: study for study in (AttentionErasure(), LayerProfile())}
"""Every study by its name."""
Executor = Callable[[SampleRecorder, list[list[int]]], Iterator[RecordedWindow]]
"""Records windows of samples in other processes, in any order."""


def evaluate(
    explainer: ExplainerLike,
    data: Rows | Iterable[Any] | Iterable[tuple[Any, str | int]],
    methods: Sequence[str | Method] | None = None,
    metrics: Sequence[str | Metric | Study] = DEFAULT_METRICS,
    *,
    sample: int | None = None,
    seed: int = 0,
    blank: str | int | None = None,
    keep_special: bool = False,
    every: bool = False,
    truncate: bool = False,
    window: int = 64,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | bool | None = None,
    executor: Executor | None = None,
) -> Evaluation:
    """Measures how well methods explain a model on some data.

    `data` holds texts, images or other inputs, or pairs (input, label). The class explained is
    the label if there is one, else the prediction.

    `methods` are names or instances, by default all but `shapley`, with which the metrics
    `shapley_r`, `shapley_slope` and `shapley_error` compare. Results are keyed by `Method.label`,
    so one method can be evaluated with several settings. `metrics` are names, instances of your
    own `Metric`, or studies of the model (`attention_erasure`, `layers`).

    Erased units are replaced by `blank`: a token for texts ("unk" by default); "zero", "mean" or
    "blur" for images. By default special tokens are erased like any other and curves have ten
    steps, as in Ali et al. 2022; `keep_special` and `every` (one step per unit) change that.
    `sample`: the number of rows to draw at random, with `seed`.

    A row that cannot be explained by every working method is left out for all; the result lists
    it with the reason (`rejected`). A method that fails on every row, or gives scores that are
    not finite, is left out of the result, with a note.

    With `out`, finished samples are written to a file in that folder, which only one run at a time
    may use, and `resume` continues from it. Resuming fails if weights, data, settings or versions
    changed; without `resume`, a folder with finished samples is an error. Ctrl-C returns the
    result so far, with `complete` False; before the first sample is finished it raises
    KeyboardInterrupt.

    With `executor`, this process records the first window, which shows which methods work, and
    other processes record the rest (`wherefrom.runs.evaluations`).
    """
    rows = as_rows(data)
    if sample is not None and sample < 1:
        raise InputError(f"sample must be 1 or more, got {sample}.")
    if seed < 0:
        raise InputError(f"seed must be 0 or more, got {seed}.")
    if window < 1:
        raise InputError(f"window must be 1 or more, got {window}.")
    method_list = _methods(methods or default_methods())
    metric_list, study_list = _metrics(metrics)
    order = _draw(range(len(rows)), sample, seed)
    options = Options(blank, keep_special, every, truncate)
    settings = {
        "model": explainer.runner.name,
        "methods": {method.label: method.settings() for method in method_list},
        "metrics": [metric.name for metric in metric_list],
        "studies": [study.name for study in study_list],
        "rows": len(rows),
        "sample": sample,
        "seed": seed,
        **vars(options),
    }
    study_rows = {study: set(_draw(order, study.limit, seed)) for study in study_list}
    recorder = SampleRecorder(explainer, rows, method_list, metric_list, study_rows, options)
    if out is not None:
        settings |= explainer_fingerprint(explainer) | {
            "data": digest([_contents(rows.texts), rows.labels]),
            "metric_settings": digest([[type(m), vars(m)] for m in [*metric_list, *study_list]]),
        }
    with Store.opened(out, "an evaluation", settings, resume) as (store, finished):
        samples = _Samples(store.completed(), finished)
        with shown("evaluating", progress) as report:
            return _run(recorder, samples, order, window, report, executor)


class _Samples:
    """The records of finished samples by row; each window is a part of the store."""

    def __init__(self, store: Store, finished: list[Record]) -> None:
        self.store, self.parts = store, finished
        self.by_row = {record["sample"]: record for part in finished for record in part["samples"]}

    def add(self, records: list[Record]) -> None:
        """Saves the records of a window."""
        if records:
            name = f"part-{records[0]['sample']:08d}"
            self.parts.append(self.store.add(name, (), {"samples": records}))
            self.by_row |= {record["sample"]: record for record in records}


def _run(
    recorder: SampleRecorder,
    samples: _Samples,
    order: list[int],
    window: int,
    progress: Progress,
    executor: Executor | None,
) -> Evaluation:
    """Records the unfinished samples, and collects all records."""
    if samples.by_row:
        recorder.resume(next(iter(samples.by_row.values())))
    start = time.perf_counter()
    remaining = [row for row in order if row not in samples.by_row]
    total = len(order)

    def report(rows_left: int, share: float, step: str, size: int = 0) -> None:
        progress(total - rows_left + share * size, total, step)

    complete = True
    size = min(FIRST_WINDOW, window)
    try:
        while remaining:
            part, rest = remaining[:size], remaining[size:]

            def within(share: float, step: str, left: int = len(remaining), of: int = size) -> None:
                report(left, share, step, min(of, left))

            try:
                records = recorder.records(part, within, is_all=not rest or size >= window)
            except TooFewToJudge:  # retry with more samples
                size = min(2 * size, window)
                continue
            samples.add(records)
            remaining, size = rest, min(2 * size, window)
            if executor is not None:
                for recorded in executor(recorder, _windows(remaining, size, window)):
                    samples.add(recorded.records)
                    recorder.add_recorded(recorded)
                    finished = len(samples.by_row) + len(recorder.rejected)
                    report(total - finished, 0.0, "")
                remaining = []
        report(0, 0.0, "")
    except KeyboardInterrupt:
        if not samples.by_row:
            raise KeyboardInterrupt("interrupted before the first samples were finished") from None
        complete = False
    if not samples.by_row:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in recorder.skipped.items())
        raise InputError(f"no sample could be evaluated: {reasons}.")
    samples.store.check(samples.parts)
    records = [samples.by_row[row] for row in order if row in samples.by_row]
    settings = {name: v for name, v in samples.store.settings.items() if name != "kind"}
    return _collect(recorder, records, settings, complete, time.perf_counter() - start)


def _windows(rows: list[int], size: int, largest: int) -> list[list[int]]:
    """The windows that one process would record, so that batches and rounding are the same."""
    windows = []
    while rows:
        windows.append(rows[:size])
        rows, size = rows[size:], min(2 * size, largest)
    return windows


def _methods(entries: Sequence[str | Method]) -> list[Method]:
    """The methods, whose labels must differ."""
    methods = [find_method(entry) for entry in entries]
    labels = [method.label for method in methods]
    twice = list(dict.fromkeys(label for label in labels if labels.count(label) > 1))
    if twice:
        raise MethodError(f"listed twice with the same settings: {', '.join(twice)}")
    return methods


def _metrics(entries: Sequence[str | Metric | Study]) -> tuple[list[Metric], list[Study]]:
    """Splits the entries into metrics and studies."""
    metrics: list[Metric] = []
    studies: list[Study] = []
    known = [*METRICS, *STUDIES]
    for entry in dict.fromkeys(entries):
        if isinstance(entry, Study):
            studies.append(entry)
        elif isinstance(entry, Metric):
            metrics.append(check_metric(entry))
        elif entry in STUDIES:
            studies.append(STUDIES[entry])
        elif entry in METRICS:
            metrics.append(METRICS[entry])
        else:
            raise MethodError(f'unknown metric or study "{entry}"; {nearest(str(entry), known)}')
    if not metrics and not studies:
        raise MethodError(f"no metric was selected. There are: {', '.join(known)}")
    names = [metric.name for metric in metrics] + [study.name for study in studies]
    twice = list(dict.fromkeys(name for name in names if names.count(name) > 1))
    if twice:
        raise MethodError(f"two metrics have the same name: {', '.join(twice)}")
    return metrics, studies


def _contents(sources: Sequence[Any]) -> list[Any]:
    """The inputs for a digest; paths of image files are digested by content."""
    return [
        Path(source)
        if isinstance(source, (str, Path)) and is_image(source) and os.path.isfile(source)
        else source
        for source in sources
    ]


def _draw(rows: Sequence[int], size: int | None, seed: int) -> list[int]:
    """Draws `size` random rows, in order; None keeps all rows."""
    if size is None or size >= len(rows):
        return list(rows)
    picks = np.random.default_rng(seed).choice(len(rows), size, replace=False)
    return [rows[i] for i in sorted(picks.tolist())]


def _collect(
    recorder: SampleRecorder,
    records: list[Record],
    settings: dict[str, Any],
    complete: bool,
    seconds: float,
) -> Evaluation:
    """Combines the records of all samples into one result."""
    labels = [
        method.label
        for method in recorder.methods
        if method.label not in recorder.failed and all(method.label in r["sums"] for r in records)
    ]
    if not labels:
        raise ModelError("no method works on all samples: " + "; ".join(recorder.failed.values()))
    names = [metric.name for metric in recorder.metrics]
    studies = {
        study: [r["studies"][study.name] for r in records if study.name in r.get("studies", {})]
        for study in recorder.studies
        if study.name not in recorder.failed
    }
    costs = recorder.costs
    measuring = max(seconds - costs["explaining"] - costs["studies"], 1e-9)
    return Evaluation(
        model=recorder.explainer.runner.name,
        methods=labels,
        metrics=names,
        values={m: {n: [r["values"][m][n] for r in records] for n in names} for m in labels},
        series={
            m: {
                n: [r["series"][m][n] for r in records]
                for n in names
                if all(n in r["series"].get(m, {}) for r in records)
            }
            for m in labels
        },
        sums={m: [(r["sums"][m][0], r["sums"][m][1]) for r in records] for m in labels},
        agreement=_agreement(labels, records),
        seconds={m: float(np.mean([r["seconds"][m] for r in records])) for m in labels},
        titles={metric.name: metric.title or metric.name for metric in recorder.metrics},
        better={metric.name: metric.better for metric in recorder.metrics},
        skipped=dict(recorder.skipped),
        rejected=[
            *(
                {"sample": f"row {row}", "input": "", "kind": "not read", "reason": reason}
                for row, reason in recorder.rows.rejected.items()
            ),
            *(recorder.rejected[row] for row in sorted(recorder.rejected)),
        ],
        settings=settings | {"failed": recorder.failed},
        studies={study.name: of_study for study, of_study in studies.items()},
        study_summaries={s.name: s.summary(of_study) for s, of_study in studies.items()},
        study_tables={
            name: table
            for study, of_study in studies.items()
            for name, table in study.tables(of_study).items()
        },
        notes=_notes(recorder, records),
        timing={"seconds": seconds, **costs, "efficiency": costs["forward"] / measuring},
        complete=complete,
    )


def _agreement(labels: list[str], records: list[Record]) -> dict[str, dict[str, float]]:
    """The mean rank correlation of each pair of methods; records have each pair once."""
    table = {a: dict.fromkeys(labels, 1.0) for a in labels}
    for x, a in enumerate(labels):
        for b in labels[x + 1 :]:
            table[a][b] = table[b][a] = float(np.mean([r["agreement"][a][b] for r in records]))
    return table


def _notes(recorder: SampleRecorder, records: list[Record]) -> list[str]:
    """Caveats about the numbers."""
    notes = [f"{name} was left out: {reason}" for name, reason in recorder.failed.items()]
    if recorder.to_probability == "none":
        notes.append("the model gives no probabilities: all metrics use its output instead")
    cut = sum(record.get("cut", False) for record in records)
    if cut:
        notes.append(
            f"{cut} of {counted(len(records), 'text')} cut to the length that the model takes"
        )
    erasing = recorder.reader.note_on_erasing(recorder.options.blank)
    notes += [] if erasing is None else [erasing]
    names, classes = recorder.rows.labels or [], recorder.labels or []
    if names and len({classes[record["sample"]] for record in records}) == 1:
        label = names[records[0]["sample"]]
        notes.append(f"all samples have the label {label}: other classes are untested")
    if len(records) < FEWEST:
        verb = "is" if len(records) == 1 else "are"
        notes.append(f"{counted(len(records), 'sample')} {verb} too few for reliable intervals")
    return notes
