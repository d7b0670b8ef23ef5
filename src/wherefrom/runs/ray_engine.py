"""The Ray engine: tasks read pieces of the data, a pool of actors processes the items.

A row of the dataset is one pickled item: items are never split or merged, and Ray retries them
elsewhere when a worker or a node is lost. Blocks have one row, so Ray's back-pressure counts items.

The only file that imports Ray. Ray starts while Ray Data is imported, which takes longer.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from importlib import import_module
from itertools import chain
from typing import Any

import ray

from wherefrom.errors import InputError, WherefromError
from wherefrom.runs.engine import Engine, Work
from wherefrom.storage.arrow import binary_table

_READERS = 0.25  # reading tasks for each worker: reading is many times faster than explaining
_READ_BY_DRIVER = 8_000_000  # bytes of items, some fifty thousand sentences
_IN_FLIGHT = 2  # items per actor: one in progress, one queued
_NICENESS = "RAY_worker_niceness"
_USAGE = "RAY_USAGE_STATS_ENABLED"
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


def ray_results(engine: Engine, pieces: Sequence[Iterable[Any]], work: Work) -> Iterator[Any]:
    """The results of all items, in the order of completion."""
    with connected(engine):
        workers = engine.workers or _free_workers(engine)
        dataset = _dataset(engine, pieces, work, workers)
        # no prefetching, since its thread may outlive an error
        batches = iter(dataset.iter_batches(batch_size=None, prefetch_batches=0))
        with closing(batches) if hasattr(batches, "close") else nullcontext():
            for batch in batches:
                for content in batch["result"]:
                    result = pickle.loads(content)
                    if isinstance(result, WherefromError):
                        raise result
                    yield result


def is_running() -> bool:
    """Whether this process is connected to a Ray."""
    return bool(ray.is_initialized())


def import_ray_data() -> Any:
    """Imports Ray Data, which is slow the first time."""
    return import_module("ray.data")


def _dataset(engine: Engine, pieces: Sequence[Iterable[Any]], work: Work, workers: int) -> Any:
    data = import_ray_data()
    context = data.DataContext.get_current().copy()
    context.target_max_block_size = 1  # bytes: a block for each row
    context.execution_options.preserve_order = False
    context.enable_progress_bars = False
    with data.DataContext.current(context):
        dataset, items = _read(engine, pieces, workers)
        # with few items, none may wait for a busy actor while another actor is idle
        few = items is not None and items < _IN_FLIGHT * workers
        return dataset.map_batches(
            _Worker,
            fn_constructor_args=([ray.put(work)],),
            batch_size=1,
            batch_format="numpy",
            num_cpus=1,
            num_gpus=engine.gpus_per_worker or None,
            compute=data.ActorPoolStrategy(
                size=workers, max_tasks_in_flight_per_actor=1 if few else _IN_FLIGHT
            ),
        )


def _read(engine: Engine, pieces: Sequence[Iterable[Any]], workers: int) -> tuple[Any, int | None]:
    """The items as a dataset, and their number if known.

    On one machine the driver reads small data itself, since starting a reading process takes a
    second; otherwise tasks read the data.
    """
    if engine.address is None:
        rows, size = [], 0
        for content in chain.from_iterable(map(_contents, pieces)):
            rows.append({"item": content})
            size += len(content)
            if size > _READ_BY_DRIVER:
                break
        else:
            if rows:  # Ray has no empty dataset
                # unlike from_arrow, this starts no tasks to inspect the blocks
                small = import_ray_data().from_items(rows, override_num_blocks=len(rows))
                return small, len(rows)
    dataset = import_ray_data().read_datasource(
        _of_pieces(pieces),
        num_cpus=0,  # the actors use all of them
        concurrency=max(1, min(len(pieces), round(workers * _READERS))),
        override_num_blocks=len(pieces),
    )
    return dataset, None


@contextmanager
def connected(engine: Engine) -> Iterator[None]:
    """Uses the running Ray, or connects to the address, or starts a local Ray for the block."""
    if is_running():
        yield
        return
    is_local = engine.address is None
    with _environment({_USAGE: "0", _NICENESS: "0"} if is_local else {}):
        try:
            if is_local:
                ray.init("local", num_cpus=engine.workers or os.cpu_count(), **_QUIET)
            else:
                ray.init(engine.address, **_QUIET)
        except (ConnectionError, ValueError, RuntimeError) as error:
            address = engine.address or "local"
            raise InputError(f"cannot start or reach Ray ({address}): {error}") from error
        for name in ("ray.data", "ray"):  # our progress bar is shown instead
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            if is_local:
                _check_gpus(engine)
            yield
        finally:
            ray.shutdown()


@contextmanager
def _environment(defaults: dict[str, str]) -> Iterator[None]:
    """Sets these variables unless the environment has them; Ray passes them to its processes.

    A Ray started here sends no usage statistics, and its workers have niceness 0 instead of 15.
    """
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _check_gpus(engine: Engine) -> None:
    """Raises an error if a local Ray lacks GPUs; on a cluster, which may get more, Ray waits."""
    needed = (engine.workers or 1) * engine.gpus_per_worker
    present = ray.cluster_resources().get("GPU", 0)
    if needed > present:
        raise InputError(f"the workers need {needed:g} GPUs, but this machine has {present:g}.")


def _free_workers(engine: Engine) -> int:
    """The number of workers for which the cluster has CPUs, or GPUs."""
    resources = ray.cluster_resources()
    if engine.gpus_per_worker:
        return max(1, int(resources.get("GPU", 0) / engine.gpus_per_worker))
    return max(1, int(resources.get("CPU", 1)))


def _of_pieces(pieces: Sequence[Iterable[Any]]) -> Any:
    """A data source for Ray with one reading task for each piece."""
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask

    class Pieces(Datasource):  # type: ignore[misc]
        def get_name(self) -> str:
            return "Parts"

        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[Any]:
            unknown = BlockMetadata(
                num_rows=None, size_bytes=None, input_files=None, exec_stats=None
            )
            return [ReadTask(_Reading(piece), unknown) for piece in pieces]

    return Pieces()


def _contents(piece: Iterable[Any]) -> Iterator[bytes]:
    """The pickled items of a piece; an error replaces the item where it occurred."""
    try:
        for item in piece:
            yield pickle.dumps(item)
    except WherefromError as error:
        yield _pickled_error(error)


class _Reading:
    """The items of a piece as blocks of one row."""

    __name__ = "read"

    def __init__(self, piece: Iterable[Any]) -> None:
        self.piece = piece

    def __call__(self) -> Iterator[Any]:
        for content in _contents(self.piece):
            yield binary_table("item", [content])


class _Worker:
    """An actor of the pool: fetches the work once, which loads its model at the first item."""

    def __init__(self, work: list[Any]) -> None:
        # imports torch, which reading tasks do not need
        from wherefrom.runs.explain_rows import prepare_for_many_rows

        prepare_for_many_rows()
        self._work: Work = ray.get(work[0])

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[bytes]]:
        results = []
        for content in batch["item"]:
            item = pickle.loads(content)
            try:
                result = item if isinstance(item, WherefromError) else self._work(item)
                results.append(pickle.dumps(result))
            except WherefromError as error:
                results.append(_pickled_error(error))
        return {"result": results}


def _pickled_error(error: WherefromError) -> bytes:
    """A pickled error; an error that cannot be restored becomes a `WherefromError`."""
    content = pickle.dumps(error)
    try:
        pickle.loads(content)
    except TypeError:
        return pickle.dumps(WherefromError(str(error)))
    return content
