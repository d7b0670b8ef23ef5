"""How the tests run a function under a table, compare numbers, and see what a model keeps."""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch import Tensor

from benchmarks.tiny import TASKS
from benchmarks.tiny import model as tiny
from wherefrom.core.torch_internals import global_hook_registries
from wherefrom.testing import differences
from wherefrom.tracing.observers.attention_maps import Maps
from wherefrom.tracing.observers.entry_points import EntryPoints
from wherefrom.tracing.tracer import Table, Tracer

# transformers 5 has it a second time, for torchvision, and this name for the one without
ViTProcessor = getattr(transformers, "ViTImageProcessorPil", transformers.ViTImageProcessor)
GLOBAL_HOOKS = list(global_hook_registries())


class Run(NamedTuple):
    """What came of a function under a table."""

    out: Tensor
    relevance: list[Tensor]  # gradient × input of each input
    tracer: Tracer

    @property
    def recorded(self) -> float:
        """The sum of all constants."""
        return sum(float(entry.total.sum()) for entry in self.tracer.ledger.entries.values())


def through(
    table: Table,
    f: Callable[..., Any],
    *inputs: Tensor,
    seed: Tensor | None = None,
    ledger: bool = True,
    maps: Maps | None = None,
    model: Any = None,
) -> Run:
    """f under a table, and the gradient × input from `seed` (ones) at its output."""
    sources = EntryPoints([inputs[0]])
    tracer = Tracer(table, sources, ledger=ledger, maps=maps, model=model)
    with tracer:
        out = f(*(sources.enter(x.clone(), sources.span_of(0)) for x in inputs))
        leaves = [source.leaf for source in sources.entered]
        gradients = torch.autograd.grad(
            out, leaves, torch.ones_like(out) if seed is None else seed, allow_unused=True
        )
    found = [
        torch.zeros_like(x) if g is None else x.detach() * g
        for x, g in zip(leaves, gradients, strict=True)
    ]
    return Run(out.detach(), found, tracer)


def family_model(name: str, task: str) -> Any:
    """A tiny model of the family; skips the test where this version of transformers has none."""
    if name not in TASKS[task]:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    return tiny(name, task)


def normal(rng: torch.Generator, *shape: int) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def exactly(actual: Any, expected: Any, tol: float = 1e-10) -> None:
    """Equal within a tight tolerance, relative and absolute."""
    torch.testing.assert_close(
        torch.as_tensor(actual, dtype=torch.float64),
        torch.as_tensor(expected, dtype=torch.float64),
        rtol=tol,
        atol=tol,
    )


def captured(maps: Maps) -> list[Tensor]:
    """The attention maps of a pass, each (batch, heads, query, key)."""
    return [one_map.weights for one_map in maps.seen]


def assert_unchanged(before, after):
    """Two snapshots are the same."""
    assert differences(before, after) == []


@contextmanager
def full_disk(largest: int):
    """No file can grow beyond so many bytes: the operating system refuses, as on a full disk."""
    resource = pytest.importorskip("resource")  # Unix only
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def contents(folder):
    """Every file of a folder, hidden ones too, with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
