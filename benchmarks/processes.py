"""Processes that take turns: each runs one contender, since some patch transformers globally."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Worker:
    """A process that answers orders with dictionaries; one with `error` says why it cannot."""

    problem: str | None = None  # why it answers no more
    _process: Any = field(default=None, repr=False)
    _orders: Any = field(default=None, repr=False)

    def begin(self, target: Callable[..., None], *args: Any) -> dict[str, Any]:
        """Starts `target(*args, orders)` and waits for its first answer."""
        context = multiprocessing.get_context("fork")  # the common imports are made once, before
        self._orders, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(*args, theirs))
        self._process.start()
        theirs.close()
        return self._answer()

    def ask(self, order: Any) -> dict[str, Any]:
        """The answer to one order."""
        if self.problem is not None:
            return {"error": self.problem}
        with suppress(OSError):  # it has ended: so its answer says
            self._orders.send(order)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = self._orders.recv()
        except (EOFError, OSError):
            self.problem = "the process ended, most likely for want of memory"
            return {"error": self.problem}
        return answer

    def stop(self) -> None:
        """Ends the process."""
        if self._process is None:
            return
        with suppress(OSError):
            self._orders.send(None)
        self._process.join()


def quiet() -> None:
    """Lets this process print nothing, whatever writes."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def reason(error: BaseException) -> str:
    """The first line of an error."""
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"[:160]


def memory(name: str) -> float:
    """A figure of this process's memory, in MiB: VmRSS is resident now, VmHWM its peak."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


def forget_peak() -> None:
    """Lets the peak of the resident set begin anew; where that is refused it is that of all."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what is free goes back: earlier runs do not count
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
