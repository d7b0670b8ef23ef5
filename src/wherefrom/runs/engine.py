"""Who does the work: this process, or actors of Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from wherefrom.errors import InputError, MissingExtra

EngineName = Literal["local", "ray"]
Loaded = TypeVar("Loaded")
Work = Callable[[Any], Any]
"""From an item to its result; it goes to every worker once, and loads its model there."""


@dataclass(frozen=True)
class Engine:
    """Where work is done: `address` is that of a Ray cluster, none for a local Ray."""

    name: EngineName = "local"
    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float = 0

    def __post_init__(self) -> None:
        if self.name not in ("local", "ray"):
            raise InputError(f'there is no engine "{self.name}": take "local" or "ray".')
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers must be 1 or more, got {self.workers}.")
        if self.gpus_per_worker < 0:
            raise InputError(f"gpus_per_worker must be 0 or more, got {self.gpus_per_worker}.")
        executor = self.address is not None or (self.workers or 1) > 1 or self.gpus_per_worker
        if self.name == "local" and executor:
            raise InputError(
                "the local engine is one process, with the model where it is: several workers, "
                "those of an address, or GPUs for them need Ray.",
                'Use engine="ray".',
                command="Use --engine ray.",
            )

    @property
    def starts_ray(self) -> bool:
        """Whether a Ray is started on this machine, so that workers have the files of this one."""
        return self.name == "ray" and self.address is None and not _ray_engine().is_running()

    @contextmanager
    def connected(self, load: Callable[[], Loaded]) -> Iterator[Loaded]:
        """One connection, or one local Ray, for all that is done within; gives what `load` does.

        Starting a Ray is mostly waiting for its processes: `load` runs meanwhile.
        """
        if self.name == "local":
            yield load()
            return
        on_ray = _ray_engine()
        with ThreadPoolExecutor(1) as thread:
            loading = thread.submit(load)
            thread.submit(on_ray.import_ray_data)
            with on_ray.connected(self):
                yield loading.result()

    def results(self, pieces: Sequence[Iterable[Any]], work: Work) -> Iterator[Any]:
        """The result of every item of every piece, in any order."""
        if self.name == "ray":
            yield from _ray_engine().ray_results(self, pieces, work)
            return
        for piece in pieces:
            for item in piece:
                yield work(item)


def _ray_engine() -> Any:
    try:
        from wherefrom.runs import ray_engine
    except ImportError as error:
        raise MissingExtra("ray", "ray", "the engine ray") from error
    return ray_engine
