"""Where the work is done: in this process or by actors of Ray; and with which model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from wherefrom.errors import InputError, MissingExtra, ModelError
from wherefrom.storage.fingerprint import changes, explainer_fingerprint

if TYPE_CHECKING:
    from wherefrom.explainer import Explainer

EngineName = Literal["local", "ray"]
Loaded = TypeVar("Loaded")
Work = Callable[[Any], Any]
"""From an item to its result; it is sent to every worker once, and loads its model there."""


@dataclass(frozen=True)
class Engine:
    """Where work is done: `address` of a Ray cluster, or None for a Ray on this machine."""

    name: EngineName = "local"
    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float = 0

    def __post_init__(self) -> None:
        if self.name not in ("local", "ray"):
            raise InputError(f'there is no engine "{self.name}": use "local" or "ray".')
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers must be 1 or more, got {self.workers}.")
        if self.gpus_per_worker < 0:
            raise InputError(f"gpus_per_worker must be 0 or more, got {self.gpus_per_worker}.")
        several = self.address is not None or (self.workers or 1) > 1 or self.gpus_per_worker
        if self.name == "local" and several:
            raise InputError(
                "the local engine is one process: an address, several workers, or GPUs for them "
                "need Ray.",
                'Use engine="ray".',
                command="Use --engine ray.",
            )

    @property
    def starts_ray(self) -> bool:
        """Whether a Ray is started on this machine, so that workers have the files of this one."""
        return self.name == "ray" and self.address is None and not _ray_engine().is_running()

    @contextmanager
    def connected(self, load: Callable[[], Loaded]) -> Iterator[Loaded]:
        """One connection, or one local Ray, for the whole block; returns the result of `load`.

        `load` runs while Ray starts, which is mostly waiting for its processes.
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


@dataclass(frozen=True)
class ModelSource:
    """The model that explains: a name, folder or hub id with options of `load`, or an explainer."""

    source: str | Path | Explainer
    options: Mapping[str, Any] = field(default_factory=dict)
    process: int = field(default_factory=os.getpid)  # that of the driver

    @property
    def only_named(self) -> bool:
        """Whether this process knows only the model's name, since it has not imported torch.

        Once it has, there may be methods and readers of the user that workers do not have.
        """
        return isinstance(self.source, (str, Path)) and "torch" not in sys.modules

    def explainer(self) -> Explainer:
        """The explainer, loaded once in a process."""
        if isinstance(self.source, (str, Path)):
            return _loaded(str(self.source), tuple(sorted(self.options.items())))
        return self.source

    def verified(self, fingerprint: Mapping[str, Any], on_gpu: bool) -> Explainer:
        """The explainer; an error if weights, tokenizer or versions are not those of the driver."""
        explainer = self.explainer()
        if os.getpid() == self.process:
            return explainer
        differences = changes(fingerprint, explainer_fingerprint(explainer))
        if differences:
            raise ModelError(
                "the model of a worker is not that of the process that started it "
                f"({'; '.join(differences)}). Give all machines the same files and versions."
            )
        if on_gpu:
            explainer.runner.model.to("cuda")
        return explainer


@cache
def _loaded(source: str, options: tuple[tuple[str, Any], ...]) -> Explainer:
    from wherefrom.loading import load  # with torch, which the start of a run does not need

    return load(source, **dict(options))
