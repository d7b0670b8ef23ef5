"""Names of torch calls, and what can be told of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

Call = Callable[..., Any]
_HOMES = (
    torch,
    torch.Tensor,
    torch.nn.functional,
    torch.special,
    torch.linalg,
    torch._C._nn,
)


def calls(*names: str) -> tuple[Call, ...]:
    """Every torch function that a call by one of these names may arrive as.

    `a + b`, `a += b`, `torch.add(a, b)` and `a.add_(b)` are one call with several spellings.
    """
    found: dict[Call, None] = {}
    for name in names:
        for spelled in (name, f"{name}_", f"__{name}__", f"__r{name}__", f"__i{name}__"):
            for home in _HOMES:
                function = getattr(home, spelled, None)
                if callable(function) and function not in found:
                    found[function] = None
    return tuple(found)


def spelled(function: Call) -> str:
    """The plain name of a torch function, as messages and counts show it."""
    return getattr(function, "__name__", str(function)).strip("_") or str(function)


@cache
def in_place(function: Call) -> bool:
    """Whether the call writes into its first argument."""
    name = getattr(function, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name in (
        "__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__setitem__",
    )  # fmt: skip


def live(value: object) -> bool:
    """Whether a value depends on the input: within the mode, just what requires a gradient."""
    return isinstance(value, Tensor) and value.requires_grad


def tensors(*values: object) -> Iterator[Tensor]:
    """The tensors among the values, also those in lists and tuples."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(*value)


def replaced(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The value with every tensor in it changed, also those in lists and tuples."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(replaced(item, change) for item in value)
    return value


def mark(value: Any, kind: str) -> Any:
    """Writes on the tensors of a value what they are, for the calls that will meet them."""
    for tensor in tensors(value):
        tensor.wherefrom_kind = kind  # type: ignore[attr-defined]
    return value


def stream_of(value: object) -> int | None:
    """Which field of the input a tensor runs along with, or None."""
    return getattr(value, "wherefrom_stream", None)


def set_stream(value: Any, stream: int) -> Any:
    """Writes on the tensors of a value which field of the input they run along with."""
    for tensor in tensors(value):
        tensor.wherefrom_stream = stream  # type: ignore[attr-defined]
    return value


def turned_of(value: object) -> bool:
    """Whether a tensor has its places on the first axis and its samples on the second."""
    return getattr(value, "wherefrom_turned", False)


def kind_of(value: object) -> str:
    """What `mark` wrote on the tensor, or the empty string."""
    return getattr(value, "wherefrom_kind", "")
