"""How the tests run a function under a table."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wherefrom.rules.maps import Maps
from wherefrom.rules.mode import LocallyLinear, Table
from wherefrom.rules.sources import Sources


class Run(NamedTuple):
    """What came of a function under a table."""

    out: Tensor
    relevance: list[Tensor]  # gradient × input of each input
    view: LocallyLinear

    @property
    def booked(self) -> float:
        """The sum of all constants."""
        return sum(float(entry.total.sum()) for entry in self.view.ledger.entries.values())


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
    sources = Sources([inputs[0]])
    view = LocallyLinear(table, sources, ledger=ledger, maps=maps, model=model)
    with view:
        out = f(*(sources.enter(x.clone(), sources.span_of(0)) for x in inputs))
        leaves = [source.leaf for source in sources.entered]
        gradients = torch.autograd.grad(
            out, leaves, torch.ones_like(out) if seed is None else seed, allow_unused=True
        )
    found = [
        torch.zeros_like(x) if g is None else x.detach() * g
        for x, g in zip(leaves, gradients, strict=True)
    ]
    return Run(out.detach(), found, view)


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
