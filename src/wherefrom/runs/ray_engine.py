"""Work on Ray Data: pieces are read by tasks, items are worked on by a pool of actors.

A row of the dataset is one item, pickled: an item is never cut or joined with others, and Ray
repeats it elsewhere when a worker or a node is lost. Blocks hold one row, so Ray's back-pressure
counts items.

The only file that imports Ray. Ray Data takes longer to import than Ray, which can start before.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from itertools import chain
from typing import Any

import ray

from wherefrom.errors import InputError, WherefromError
from wherefrom.runs.engine import Engine, Work
from wherefrom.storage.arrow import binary_table

_READERS = 0.25  # reading tasks for each worker: reading is many times faster than explaining
_READ_HERE = 8_000_000  # bytes of items, some fifty thousand sentences
_IN_FLIGHT = 2  # items of an actor: one in work, one waiting
_NODE_SECONDS = 10  # after which Ray's own waiting begins
_OWN_RAY = {  # settings of a Ray that is started here
    "worker_niceness": 0,  # Ray's 15 is for machines that others use too
    "enable_worker_prestart": True,  # processes of workers start before the driver is connected
    # a process that is asked before it listens is asked again after this time: Ray's is a second
    "raylet_client_connect_timeout_milliseconds": 50,
    "raylet_client_num_connect_attempts": 200,
    "actor_graceful_shutdown_timeout_ms": 10,  # a worker that is through has nothing to put away
}
_USAGE = "RAY_USAGE_STATS_ENABLED"
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


def ray_results(engine: Engine, pieces: Sequence[Iterable[Any]], work: Work) -> Iterator[Any]:
    """The results of all items, as they come."""
    with connected(engine):
        workers = engine.workers or _free_workers(engine)
        dataset = _dataset(engine, pieces, work, workers)
        # nothing is fetched ahead: the thread that does so may outlive an error
        batches = iter(dataset.iter_batches(batch_size=None, prefetch_batches=0))
        try:
            for batch in batches:
                for content in batch["result"]:
                    result = pickle.loads(content)
                    if isinstance(result, WherefromError):
                        raise result
                    yield result
        finally:
            _end_execution(dataset, batches)


def _end_execution(dataset: Any, batches: Any) -> None:
    """Ends the threads in which Ray Data works on what is left, as after an error.

    They would end this process when they find that Ray is gone.
    """
    if hasattr(batches, "close"):
        batches.close()
    executor = getattr(dataset, "_current_executor", None)
    if executor is not None:
        executor.shutdown(force=True)


def is_running() -> bool:
    """Whether this process is connected to a Ray."""
    return bool(ray.is_initialized())


def import_ray_data() -> Any:
    """Ray Data, which takes a while at the first call."""
    return import_module("ray.data")


def _dataset(engine: Engine, pieces: Sequence[Iterable[Any]], work: Work, workers: int) -> Any:
    data = import_ray_data()
    context = data.DataContext.get_current().copy()
    context.target_max_block_size = 1  # bytes: a block for each row
    context.execution_options.preserve_order = False
    context.enable_progress_bars = False
    with data.DataContext.current(context):
        dataset, items = _read(engine, pieces, workers)
        # where items are few, none may wait for an actor while another has nothing to do
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
    """The items as a dataset, and their number: small data on one machine is read here.

    Else tasks read it, and the number is not known. Starting a process that reads takes a second.
    """
    if engine.address is None:
        rows, size = [], 0
        for content in chain.from_iterable(map(_contents, pieces)):
            rows.append({"item": content})
            size += len(content)
            if size > _READ_HERE:
                break
        else:
            if rows:  # Ray makes no dataset of none
                # unlike from_arrow, this starts no tasks that look at the blocks
                read_here = import_ray_data().from_items(rows, override_num_blocks=len(rows))
                return read_here, len(rows)
    dataset = import_ray_data().read_datasource(
        _of_pieces(pieces),
        num_cpus=0,  # the actors have all of them
        concurrency=max(1, min(len(pieces), round(workers * _READERS))),
        override_num_blocks=len(pieces),
    )
    return dataset, None


@contextmanager
def connected(engine: Engine) -> Iterator[None]:
    """The Ray that runs already, else that of the address, else a local one until the end."""
    if is_running():
        yield
        return
    own = engine.address is None
    with _without_usage_statistics() if own else nullcontext():
        try:
            if own:
                _start(engine.workers or os.cpu_count())
            else:
                ray.init(engine.address, **_QUIET)
        except (ConnectionError, ValueError, RuntimeError) as error:
            place = engine.address or "local"
            raise InputError(f"cannot start or reach Ray ({place}): {error}") from error
        for name in ("ray.data", "ray"):  # a line of progress is shown instead
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            if own:
                _check_gpus(engine)
            yield
        finally:
            if own:
                _end_autoscaler()
            ray.shutdown()


@contextmanager
def _without_usage_statistics() -> Iterator[None]:
    """Has a Ray that is started here send nothing to its makers, unless the environment says so.

    It also starts a process less.
    """
    if _USAGE in os.environ:
        yield
        return
    os.environ[_USAGE] = "0"
    try:
        yield
    finally:
        os.environ.pop(_USAGE, None)


def _start(workers: int | None) -> None:
    """Starts a Ray on this machine; one that does not know a setting starts without them all."""
    settings = {name: value for name, value in _OWN_RAY.items() if f"RAY_{name}" not in os.environ}
    try:
        with _node_awaited():
            ray.init("local", num_cpus=workers, _system_config=settings, **_QUIET)
    except RuntimeError as error:
        ray.shutdown()
        warnings.warn(
            f"Ray {ray.__version__} did not start with the settings that make it start sooner "
            f"({error}); it was started without them."
        )
        ray.init("local", num_cpus=workers, **_QUIET)


@contextmanager
def _node_awaited() -> Iterator[None]:
    """Lets Ray look for the node that it starts once it is there: else Ray sleeps a second.

    The names are private ones of Ray; where they are others, it takes that second.
    """
    services: Any = getattr(ray._private, "services", None)
    find_node = getattr(services, "get_node", None)
    if find_node is None:
        yield
        return

    def find_when_there(address: str, *arguments: Any, **named: Any) -> Any:
        with suppress(AttributeError, TypeError, ray.exceptions.RayError):
            registry = ray._raylet.GcsClient(address=address)
            end = time.monotonic() + _NODE_SECONDS
            while not registry.get_all_node_info() and time.monotonic() < end:
                time.sleep(0.02)
        return find_node(address, *arguments, **named)

    services.get_node = find_when_there
    try:
        yield
    finally:
        services.get_node = find_node


def _end_autoscaler() -> None:
    """Ends a process that a Ray on one machine does not need, and whose end takes Ray a second."""
    node = getattr(ray._private.worker, "_global_node", None)
    for info in node.all_processes.get("monitor", ()) if node is not None else ():
        info.process.kill()


def _check_gpus(engine: Engine) -> None:
    """A local Ray gets no more graphics cards; a cluster may, so there Ray waits for them."""
    needed = (engine.workers or 1) * engine.gpus_per_worker
    present = ray.cluster_resources().get("GPU", 0)
    if needed > present:
        raise InputError(f"the workers need {needed:g} GPUs, and this machine has {present:g}.")


def _free_workers(engine: Engine) -> int:
    """As many workers as the cluster has processors, or graphics cards for them, now."""
    resources = ray.cluster_resources()
    if engine.gpus_per_worker:
        return max(1, int(resources.get("GPU", 0) / engine.gpus_per_worker))
    return max(1, int(resources.get("CPU", 1)))


def _of_pieces(pieces: Sequence[Iterable[Any]]) -> Any:
    """A source of data for Ray with one task of reading for each piece."""
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
    """The items of a piece, pickled; an error in the place of the item it came at."""
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
    """An actor of the pool: the work is fetched once, and loads its model at the first item."""

    def __init__(self, work: list[Any]) -> None:
        # with torch, which the tasks that read do not need
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
    """An error as it travels; some are made of other things than their message."""
    content = pickle.dumps(error)
    try:
        pickle.loads(content)
    except TypeError:
        return pickle.dumps(WherefromError(str(error)))
    return content
