"""Work on Ray Data: pieces are read by tasks, items are worked on by a pool of actors.

A row of the dataset is one item, pickled: an item is never cut or joined with others, and Ray
repeats it elsewhere when a worker or a node is lost. Blocks hold one row, so Ray's back-pressure
counts items.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import ray
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from wherefrom.errors import WherefromError
from wherefrom.scale.engines import Engine, Work
from wherefrom.scale.ray_connection import connected, free_workers
from wherefrom.storage.arrow import binary_table

_READERS = 0.25  # reading tasks for each worker: reading is many times faster than explaining
_READ_HERE = 32_000_000  # bytes
_IN_FLIGHT = 2  # items of an actor: one in work, one waiting


def ray_results(engine: Engine, pieces: Sequence[Iterable[Any]], work: Work) -> Iterator[Any]:
    """The results of all items, as they come."""
    with connected(engine):
        workers = engine.workers or free_workers(engine)
        dataset = _dataset(engine, pieces, work, workers)
        for row in dataset.iter_rows():
            result = pickle.loads(row["result"])
            if isinstance(result, WherefromError):
                raise result
            yield result


def _dataset(engine: Engine, pieces: Sequence[Iterable[Any]], work: Work, workers: int) -> Any:
    context = ray.data.DataContext.get_current().copy()
    context.target_max_block_size = 1  # bytes: a block for each row
    context.execution_options.preserve_order = False
    context.enable_progress_bars = False
    with ray.data.DataContext.current(context):
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
            compute=ray.data.ActorPoolStrategy(
                size=workers, max_tasks_in_flight_per_actor=1 if few else _IN_FLIGHT
            ),
        )


def _read(engine: Engine, pieces: Sequence[Iterable[Any]], workers: int) -> tuple[Any, int | None]:
    """The items as a dataset, and their number: small data on one machine is read here.

    Else tasks read it, and the number is not known. Starting a process that reads takes a second.
    """
    if engine.address is None:
        blocks, size = [], 0
        for block in chain.from_iterable(_Reading(piece)() for piece in pieces):
            blocks.append(block)
            size += block.nbytes
            if size > _READ_HERE:
                break
        else:
            return ray.data.from_arrow(blocks), len(blocks)
    dataset = ray.data.read_datasource(
        _Pieces(pieces),
        num_cpus=0,  # the actors have all of them
        concurrency=max(1, min(len(pieces), round(workers * _READERS))),
        override_num_blocks=len(pieces),
    )
    return dataset, None


class _Pieces(Datasource):  # type: ignore[misc]
    """One task of reading for each piece."""

    def __init__(self, pieces: Sequence[Iterable[Any]]) -> None:
        self._pieces = list(pieces)

    def get_name(self) -> str:
        return "Parts"

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[Any]:
        unknown = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ReadTask(_Reading(piece), unknown) for piece in self._pieces]


class _Reading:
    """The items of a piece as blocks of one row; an error in the place of the item it came at."""

    __name__ = "read"

    def __init__(self, piece: Iterable[Any]) -> None:
        self.piece = piece

    def __call__(self) -> Iterator[Any]:
        try:
            for item in self.piece:
                yield binary_table("item", [pickle.dumps(item)])
        except WherefromError as error:
            yield binary_table("item", [_pickled_error(error)])


class _Worker:
    """An actor of the pool: the work is fetched once, and loads its model at the first item."""

    def __init__(self, work: list[Any]) -> None:
        from wherefrom.memory import keep_heap  # with torch, which the tasks that read do not need

        keep_heap()
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
