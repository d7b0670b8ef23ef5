"""`run`: explains every row of the data and writes the results as Parquet."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wherefrom.errors import InputError
from wherefrom.runs.engine import Engine, EngineName, ModelSource, Work
from wherefrom.runs.parts import ColumnNames, DataPart, FileSource, open_source
from wherefrom.storage.store import PartRecord, Store, check_same_run

if TYPE_CHECKING:
    from wherefrom.explainer import Explainer
    from wherefrom.methods import Method
    from wherefrom.runs.explain_rows import Explaining, ExplainPart

KIND = "`wherefrom run`"
PART_ROWS = 2048
RunProgress = Callable[[float, int, str], None]  # rows done, estimated total, a note


@dataclass(frozen=True)
class Run:
    """The counts of a run: rows explained and rejected, and parts written."""

    out: str
    explained: int
    rejected: int
    parts: int
    seconds: float
    complete: bool = True

    def __str__(self) -> str:
        rows = "row" if self.explained == 1 else "rows"
        rejected = f", {self.rejected:,} rejected" if self.rejected else ""
        state = "" if self.complete else " (interrupted)"
        reasons = f" (reasons: {self.out.rstrip('/')}/rejected.parquet)" if self.rejected else ""
        return f"{self.explained:,} {rows} explained{rejected}{state}: {self.out}{reasons}"


def run(
    explainer: Explainer | str | Path,
    data: Any,
    out: str | Path,
    method: str | Method = "auto",
    target: str | int | None = None,
    against: str | int | None = None,
    *,
    engine: EngineName = "local",
    address: str | None = None,
    workers: int | None = None,
    gpus_per_worker: float = 0,
    text_column: str | None = None,
    label_column: str | None = None,
    id_column: str | None = None,
    batch_size: int = 128,
    batch_tokens: int = 4096,
    part_rows: int = PART_ROWS,
    truncate: bool = False,
    dtype: str | None = None,
    device: str | None = None,
    encoding: str | None = None,
    resume: bool = False,
    filesystem: Any = None,
    progress: RunProgress | None = None,
) -> Run:
    """Explains every row of `data` and writes the results to the folder `out`.

    `explainer` is an Explainer, or a name for `load`, which every worker then calls. `data`: a
    file (CSV, TSV, JSON lines, Parquet, gzipped or not), a folder or a pattern, as a path or a URI
    (`s3://`, `gs://`, `hdfs://`); or texts. Row ids come from `id_column`, else from file and row
    number. `engine="ray"` uses Ray Data: at `address`, else on this machine. `dtype` and `device`
    apply to a model that is loaded; on Ray the worker's device is used. `encoding` applies to text
    files; by default it is detected.

    `out/results.parquet` is a folder with a file for each part of `part_rows` rows, with the
    columns of `wherefrom.runs.rows.TYPES`. Rows that cannot be explained go into
    `out/rejected.parquet`, also a folder, with the reason. `resume` continues an interrupted or
    failed run and keeps its finished parts; weights, data, settings and versions must be the same.
    Ctrl-C returns the finished parts.
    """
    ray_or_local = Engine(engine, address, workers, gpus_per_worker)
    columns = ColumnNames(text_column, label_column, id_column, encoding)
    source = open_source(data, columns, part_rows, filesystem)
    if device is not None and engine == "ray":
        raise InputError(
            "device applies only to the local engine: Ray workers use their CPUs or GPUs.",
            "For a GPU use gpus_per_worker=1.",
            command="For a GPU use --gpus-per-worker 1.",
        )
    loading = {"dtype": dtype, "device": device}
    model = ModelSource(explainer, {key: v for key, v in loading.items() if v is not None})
    for name, value in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
        if value < 1:
            raise InputError(f"{name} must be 1 or more, got {value}.")
    options = {
        "method": method, "target": target, "against": against,
        "batch_size": batch_size, "batch_tokens": batch_tokens, "truncate": truncate,
    }  # fmt: skip

    settings = {
        "batches": [batch_size, batch_tokens, part_rows],
        "columns": [text_column, label_column, id_column, *([encoding] if encoding else [])],
        "data": source.fingerprint,
    }
    on_gpu = gpus_per_worker > 0
    if ray_or_local.starts_ray and model.only_named:
        with (
            Store.opened(out, KIND, settings, resume, filesystem) as (store, finished),
            ray_or_local.connected(lambda: None),
        ):
            later = LoadAndExplain(model, options, on_gpu, store)
            result = _follow(ray_or_local, source, later, store, finished, progress)
            if result.complete and result.parts == len(finished):
                later.loaded()  # no worker has checked the model's settings
            return result
    with ray_or_local.connected(partial(_explaining, model, options)) as explaining:
        whole = {**settings, **explaining.settings}
        with Store.opened(out, KIND, whole, resume, filesystem) as (store, finished):
            store = store.completed()
            work = LoadAndExplain(model, options, on_gpu, store, explaining)
            return _follow(ray_or_local, source, work, store, finished, progress)


@dataclass
class LoadAndExplain:
    """Explains parts like `ExplainPart`, but imports torch only at the first part.

    Without `explaining`, the worker loads the model and completes the settings of the store.
    """

    model: ModelSource
    options: dict[str, Any]
    on_gpu: bool
    store: Store
    explaining: Explaining | None = None
    _explain: ExplainPart | None = None

    def __call__(self, part: DataPart) -> PartRecord:
        if self._explain is None:
            self._explain = self.loaded()
        return self._explain(part)

    def loaded(self) -> ExplainPart:
        """The work with its model; raises an error if model or settings do not fit the run.

        That is, if the target or the method does not exist, or if weights, tokenizer or versions
        differ from those of the resumed run or of another worker.
        """
        from wherefrom.runs.explain_rows import ExplainPart  # imports torch

        if self.explaining is not None:
            return ExplainPart(self.explaining, self.on_gpu, self.store)
        explaining = _explaining(self.model, self.options)
        return ExplainPart(explaining, self.on_gpu, self.store.completed(explaining.settings))


def _explaining(model: ModelSource, options: dict[str, Any]) -> Explaining:
    from wherefrom.runs.explain_rows import Explaining  # imports torch: see `Engine.connected`

    return Explaining.checked(model, options)


def _follow(
    engine: Engine,
    source: FileSource,
    work: Work,
    store: Store,
    finished: list[PartRecord],
    progress: RunProgress | None,
) -> Run:
    """Explains the unfinished parts, and counts all parts."""
    start, complete = time.monotonic(), True
    counts = {"explained": 0, "rejected": 0, "size": 0}
    records: list[PartRecord] = []

    def add(record: PartRecord) -> None:
        records.append(record)
        for key in counts:
            counts[key] += record[key]

    def report() -> None:
        if progress is not None:
            done = counts["explained"] + counts["rejected"]
            share = min(1.0, counts["size"] / max(1, source.size))
            progress(done, max(done, round(done / share)) if share else done, "")

    for record in finished:
        add(record)
    report()
    try:
        pieces = source.without(record["part"] for record in finished)
        for number, record in enumerate(engine.results(pieces, work)):
            if number == 0:
                first = record
                store.check_visible(record)
            check_same_run(first, record)
            add(record)
            report()
    except KeyboardInterrupt:
        complete = False
    store.check(records)
    assert store.folder is not None
    return Run(
        store.folder.path, counts["explained"], counts["rejected"], len(records),
        time.monotonic() - start, complete,
    )  # fmt: skip
