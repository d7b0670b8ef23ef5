"""What the matrices of families share: their rows, and when a ledger counts as closed."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from wherefrom import Explanation

_REACHED = 1e-7  # of the output: the least that some unit must have


@dataclass(frozen=True)
class Row:
    """One family and what came of it."""

    family: str
    kind: str
    verdict: str  # closed, open, not run
    residual: float | None = None
    casts: bool = False
    note: str = ""
    units: int | None = None


class Casts(TorchFunctionMode):
    """Notes whether the model turns float64 into something narrower."""

    narrower = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.dtype in (torch.float32, torch.float16):
            given = [a for a in args if isinstance(a, torch.Tensor)]
            self.narrower |= any(a.dtype == torch.float64 for a in given)
        return out


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises TimeoutError when the time is over."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def verdict(residual: float, casts: bool, reach: float) -> str:
    """Closed if the ledger adds up and the input has a part in it.

    That biases alone add up would say nothing.
    """
    return "closed" if residual < (1e-5 if casts else 1e-9) and reach > _REACHED else "open"


def smallest_reach(explanations: Sequence[Explanation]) -> float:
    """The largest |score| as a share of the output, of the explanation that has the least."""
    return min(float(abs(e.scores).max()) / max(abs(e.output), 1e-30) for e in explanations)


def reason(error: Exception) -> str:
    """The kind of an error and the first line of its message, cut."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:110] if lines else ''}"
