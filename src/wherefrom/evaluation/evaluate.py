"""Runs any list of methods and metrics over any data, in one stream."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wherefrom.errors import InputError, MethodError
from wherefrom.evaluation.checkpoint import Store
from wherefrom.evaluation.explain_samples import Explains
from wherefrom.evaluation.job import Job
from wherefrom.evaluation.metrics import Metric
from wherefrom.evaluation.results import Evaluation
from wherefrom.inputs.table import Rows, as_rows
from wherefrom.methods import METHODS, Method
from wherefrom.methods import method as find_method
from wherefrom.studies.base import Study
from wherefrom.studies.registry import asked_for

DEFAULT_METRICS = ("activation", "pruning")
Progress = Callable[[float, int, str], None]  # samples done, of how many, what is being done


def evaluate(
    explainer: Explains,
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
    progress: Progress | None = None,
) -> Evaluation:
    """Tests methods on texts or images (or pairs of one and its label).

    The class explained is the label where one is given, else the prediction. Erased units become
    `blank`: a token of a text ("unk" by default), "zero", "mean" or "blur" of an image. By default
    special tokens are erased like any other and curves have ten steps, as in Ali et al. 2022;
    `keep_special` and `every` change that. With `out`, finished samples are kept in a file there,
    and `resume` goes on from them. Ctrl-C gives back what was done. `metrics` may also name
    studies of the model: `attention_erasure`, `layers`.
    """
    rows = as_rows(data)
    chosen = [find_method(each) for each in methods or METHODS]
    names = [each.name for each in chosen]
    if len(set(names)) < len(names):
        raise MethodError(f"a method can be tested once in a run, not twice: {', '.join(names)}")
    tests, studies = asked_for(metrics)
    order = _drawn(len(rows), sample, seed)
    store = Store(
        Path(out) / "samples.jsonl" if out is not None else None,
        {
            "model": explainer.subject.name,
            "methods": [[each.name, each.settings()] for each in chosen],
            "metrics": [each.name for each in tests],
            "studies": [each.name for each in studies],
            "data": zlib.crc32(repr(([_mark(t) for t in rows.texts], rows.labels)).encode()),
            "rows": len(rows),
            "sample": sample,
            "seed": seed,
            "blank": blank,
            "keep_special": keep_special,
            "every": every,
            "truncate": truncate,
        },
    )
    if resume:
        store.load()
    job = Job(explainer, rows, chosen, tests, blank, keep_special, every, truncate, store)
    store.start()
    job.studies = {
        each: set(order)
        if each.limit is None
        else {order[at] for at in _drawn(len(order), each.limit, seed)}
        for each in studies
    }
    began = time.perf_counter()
    left = [i for i in order if i not in store.done]
    try:
        for start in range(0, len(left), window):
            job.told = _within(progress, len(order) - len(left) + start, len(order))
            job.do(left[start : start + window])
        job.told = _within(progress, len(order), len(order))
        job.tell(0, 0.0, "")
        complete = True
    except KeyboardInterrupt:
        complete = False
    total = time.perf_counter() - began
    if not store.done:
        reasons = ", ".join(f"{n} {why}" for why, n in job.skipped.items())
        reasons = reasons or f"interrupted before the first {min(window, len(order))} were done"
        raise InputError(f"no sample could be evaluated ({reasons}).")
    return job.result(order, complete, total)


def _mark(given: Any) -> Any:
    """Something small that differs where inputs do."""
    if isinstance(given, str):
        return given
    if hasattr(given, "numpy"):
        return zlib.crc32(given.cpu().numpy().tobytes())
    return zlib.crc32(given.tobytes()) if hasattr(given, "tobytes") else str(given)


def _within(
    progress: Progress | None, done: int, total: int
) -> Callable[[float, str], None] | None:
    return None if progress is None else lambda more, doing: progress(done + more, total, doing)


def _drawn(count: int, sample: int | None, seed: int) -> list[int]:
    if sample is None or sample >= count:
        return list(range(count))
    return sorted(np.random.default_rng(seed).choice(count, sample, replace=False).tolist())
