"""`run`: explains every row of the data and writes the results as Parquet."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wherefrom.errors import InputError, row_sum
from wherefrom.runs.engine import Engine, EngineName, ModelSource, Work
from wherefrom.runs.parts import ColumnNames, DataPart, FileSource, open_source
from wherefrom.storage.store import PartRecord, Store, check_same_run

if TYPE_CHECKING:
    from wherefrom.explainer import Explainer
    from wherefrom.methods import Method
    from wherefrom.runs.explain_rows import Explaining, ExplainPart

KIND = "`wherefrom run`"
PART_ROWS = 2048
_TABLES = ("results", "rejected")
RunProgress = Callable[[float, int, str], None]  # rows done, estimated total, a note


@dataclass(frozen=True)
class Run:
    """The counts of a run: rows read, explained and rejected, and parts written."""

    out: str
    read: int
    explained: int
    rejected: int
    parts: int
    seconds: float
    complete: bool = True

    def __str__(self) -> str:
        rows = row_sum(self.read, explained=self.explained, rejected=self.rejected)
        state = "" if self.complete else " (interrupted)"
        reasons = f" (reasons: {self.out.rstrip('/')}/rejected.parquet)" if self.rejected else ""
        return f"{rows}{state}: {self.out}{reasons}"


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
            Store.opened(out, KIND, settings, resume, filesystem, _TABLES) as (store, finished),
            ray_or_local.connected(lambda: None),
        ):
            later = LoadAndExplain(model, options, on_gpu, store)
            result = _follow(ray_or_local, source, later, store, finished, progress, id_column)
            if result.complete and result.parts == len(finished):
                later.loaded()  # no worker has checked the model's settings
            return result
    with ray_or_local.connected(partial(_explaining, model, options)) as explaining:
        whole = {**settings, **explaining.settings}
        with Store.opened(out, KIND, whole, resume, filesystem, _TABLES) as (store, finished):
            store = store.completed()
            work = LoadAndExplain(model, options, on_gpu, store, explaining)
            return _follow(ray_or_local, source, work, store, finished, progress, id_column)


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
    id_column: str | None,
) -> Run:
    """Explains the unfinished parts, and counts all parts."""
    start, complete = time.monotonic(), True
    if id_column is not None:
        _check_ids(engine, source, id_column)
    counts = {"read": 0, "explained": 0, "rejected": 0, "size": 0}
    records: list[PartRecord] = []

    def add(record: PartRecord) -> None:
        records.append(record)
        for key in counts:
            counts[key] += record[key]

    def report() -> None:
        if progress is not None:
            done = counts["read"]
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
    row_sum(counts["read"], explained=counts["explained"], rejected=counts["rejected"])
    return Run(
        store.folder.path, counts["read"], counts["explained"], counts["rejected"], len(records),
        time.monotonic() - start, complete,
    )  # fmt: skip


def _check_ids(engine: Engine, source: FileSource, column: str) -> None:
    """Raises an error if an id occurs twice: rows of the results could not be told apart."""
    digests = np.concatenate([np.empty(0, "u8"), *engine.results(source.pieces, _id_digests)])
    values, counts = np.unique(digests, return_counts=True)
    twice = set(values[counts > 1].tolist())
    if not twice:
        return
    ids = (id for piece in source.pieces for part in piece for id in part.ids)
    found = dict.fromkeys(id for id in ids if _digest(id) in twice)
    shown = ", ".join(list(found)[:3]) + (f", … ({len(found):,} ids)" if len(found) > 3 else "")
    raise InputError(
        f'the ids in the column "{column}" are not unique: {shown}.',
        "Leave id_column out: ids are then file and row number.",
        command="Leave --id-column out: ids are then file and row number.",
    )


def _id_digests(part: DataPart) -> np.ndarray[Any, Any]:
    return np.array([_digest(id) for id in part.ids], "u8")


def _digest(id: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(id.encode(errors="surrogatepass"), digest_size=8).digest()
    )
