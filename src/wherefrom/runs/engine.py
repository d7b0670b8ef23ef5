"""Engines, which run work in this process or on Ray, and the source of the model."""

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
"""Maps an item to its result; sent once to every worker, where it loads its model."""


@dataclass(frozen=True)
class Engine:
    """Where work runs: `address` is that of a Ray cluster; None starts Ray on this machine."""

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
        needs_ray = self.address is not None or (self.workers or 1) > 1 or self.gpus_per_worker
        if self.name == "local" and needs_ray:
            raise InputError(
                "the local engine is one process: an address, several workers and GPUs for workers "
                "require Ray.",
                'Use engine="ray".',
                command="Use --engine ray.",
            )

    @property
    def starts_ray(self) -> bool:
        """Whether Ray is started on this machine, so that workers see its files."""
        return self.name == "ray" and self.address is None and not _ray_engine().is_running()

    @contextmanager
    def connected(self, load: Callable[[], Loaded]) -> Iterator[Loaded]:
        """Keeps one connection, or one local Ray, for the whole block; yields the result of `load`.

        `load` runs while Ray starts, which mostly waits for its processes.
        """
        if self.name == "local":
            yield load()
            return
        ray_engine_module = _ray_engine()
        with ThreadPoolExecutor(1) as thread:
            loading = thread.submit(load)
            thread.submit(ray_engine_module.import_ray_data)
            with ray_engine_module.connected(self):
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
    """The model to explain: a name, folder or hub id with options of `load`, or an explainer."""

    source: str | Path | Explainer
    options: Mapping[str, Any] = field(default_factory=dict)
    process: int = field(default_factory=os.getpid)  # of the driver

    @property
    def only_named(self) -> bool:
        """Whether only the model's name is known and torch is not imported.

        After that import, the user may have registered methods and readers that workers lack.
        """
        return isinstance(self.source, (str, Path)) and "torch" not in sys.modules

    def explainer(self) -> Explainer:
        """The explainer, loaded once per process."""
        if isinstance(self.source, (str, Path)):
            return _loaded(str(self.source), tuple(sorted(self.options.items())))
        return self.source

    def verified(self, fingerprint: Mapping[str, Any], on_gpu: bool) -> Explainer:
        """The explainer; raises if weights, tokenizer or versions differ from the driver's."""
        explainer = self.explainer()
        if os.getpid() == self.process:
            return explainer
        differences = changes(fingerprint, explainer_fingerprint(explainer))
        if differences:
            raise ModelError(
                "the model of a worker differs from that of the driver "
                f"({'; '.join(differences)}). Install the same files and versions on all machines."
            )
        if on_gpu:
            explainer.runner.model.to("cuda")
        return explainer


@cache
def _loaded(source: str, options: tuple[tuple[str, Any], ...]) -> Explainer:
    from wherefrom.loading import load  # imports torch, which the start of a run does not need

    return load(source, **dict(options))
