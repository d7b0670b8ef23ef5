"""One thread does all the work, piece by piece; the line before it is short."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

Result = TypeVar("Result")
_PATIENCE = 0.05  # seconds between two tries of work that may wait


class Busy(Exception):
    """The line is full."""


class Stopped(Exception):
    """The work took too long, or nobody waits for it any more."""


@dataclass
class Ticket:
    """A piece of work in line, or running."""

    work: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)
    left: threading.Event = field(default_factory=threading.Event)  # whoever asked is gone


class Worker:
    """Runs one piece of work after the other in a thread of its own.

    A thread cannot be killed, but a model that runs enters a module every few microseconds: there
    the time is looked at, and work that is late or wanted no more ends with `Stopped`.
    """

    def __init__(self, seconds: float, waiting: int) -> None:
        self.seconds = seconds
        self._line: queue.Queue[Ticket | None] = queue.Queue(waiting)
        self._thread = threading.Thread(target=self._run, name="wherefrom-worker", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Any]) -> Ticket:
        """Puts work in line, or says that the line is full."""
        ticket = Ticket(work)
        try:
            self._line.put_nowait(ticket)
        except queue.Full:
            raise Busy from None
        return ticket

    async def do(self, work: Callable[[], Result], patient: bool = False) -> Result:
        """The result of work; it is stopped when the caller is cancelled.

        Patient work waits while the line is full.
        """
        while True:
            try:
                ticket = self.submit(work)
                break
            except Busy:
                if not patient:
                    raise
                await asyncio.sleep(_PATIENCE)
        try:
            result: Result = await asyncio.wrap_future(ticket.future)
            return result
        finally:
            ticket.left.set()

    def close(self) -> None:
        """Ends the thread once what is in line is done."""
        self._line.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (ticket := self._line.get()) is not None:
            if ticket.left.is_set() or not ticket.future.set_running_or_notify_cancel():
                continue
            try:
                with _watched(ticket, time.monotonic() + self.seconds):
                    ticket.future.set_result(ticket.work())
            except BaseException as error:
                ticket.future.set_exception(error)


@contextmanager
def _watched(ticket: Ticket, deadline: float) -> Iterator[None]:
    """Looks at the time whenever this thread enters a module."""
    thread = threading.get_ident()

    def check(module: nn.Module, args: tuple[Any, ...]) -> None:
        if threading.get_ident() != thread:
            return
        if ticket.left.is_set():
            raise Stopped("nobody waits for this any more")
        if time.monotonic() > deadline:
            raise Stopped("this took too long and was stopped")

    hook = register_module_forward_pre_hook(check)
    try:
        yield
    finally:
        hook.remove()
