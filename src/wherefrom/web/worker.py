"""A thread that runs all jobs, one at a time, from a short queue."""

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

from wherefrom.core.progress import stopped_by

Result = TypeVar("Result")
_TOO_LONG = "this took too long and was stopped"
_RETRY_SECONDS = 0.05  # between two attempts to enter a full queue
_GRACE_SECONDS = 5.0  # for a late job to finish its current torch call
_WATCH_SECONDS = 0.5  # between two checks of a running job


class QueueFull(Exception):
    """Too many jobs are waiting."""


class Stopped(Exception):
    """A job ran too long, or its request was cancelled."""


@dataclass
class Job:
    """A function in the queue, or running."""

    function: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)
    cancelled: threading.Event = field(default_factory=threading.Event)
    deadline: float | None = None  # set when it starts

    def check(self) -> None:
        """Raises `Stopped` after the deadline or a cancellation."""
        if self.cancelled.is_set():
            raise Stopped("the request was cancelled")
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise Stopped(_TOO_LONG)


class Worker:
    """Runs one job at a time in its own thread.

    A thread cannot be killed, but a running model enters a module every few microseconds: there the
    worker checks the clock, and a late or cancelled job ends with `Stopped`. Work between modules,
    such as a backward pass, is short because input sizes are limited. If a call hangs, the request
    is answered at the deadline plus `grace` seconds.
    """

    def __init__(self, seconds: float, queued_jobs: int, grace: float = _GRACE_SECONDS) -> None:
        self.seconds, self.grace = seconds, grace
        self.jobs, self.job_seconds = 0, 0.0  # of those that ended
        self._job: Job | None = None  # that is running
        self._queue: queue.Queue[Job | None] = queue.Queue(queued_jobs)
        self._thread = threading.Thread(target=self._loop, name="wherefrom-worker", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], Any]) -> Job:
        """Queues a function; raises `QueueFull` if there is no room."""
        job = Job(function)
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            raise QueueFull from None
        return job

    async def run(self, function: Callable[[], Result], wait_for_room: bool = False) -> Result:
        """The result of a function. Cancelling this coroutine stops the job."""
        while True:
            try:
                job = self.submit(function)
                break
            except QueueFull:
                if not wait_for_room:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
        future: asyncio.Future[Result] = asyncio.wrap_future(job.future)
        try:
            while not future.done():
                await asyncio.wait((future,), timeout=min(_WATCH_SECONDS, self.grace))
                late = job.deadline is not None and time.monotonic() - job.deadline
                if late and late > self.grace and not future.done():
                    raise Stopped(_TOO_LONG)
            return future.result()
        finally:
            job.cancelled.set()
            future.cancel()

    @property
    def queued(self) -> int:
        """The number of jobs that wait."""
        return self._queue.qsize()

    @property
    def wait(self) -> float:
        """The seconds until the queue is empty, by the mean time of the jobs so far."""
        return (self.queued + 1) * self.job_seconds / max(self.jobs, 1)

    @property
    def hangs(self) -> bool:
        """Whether a job runs that should have stopped, so that no other can start."""
        job = self._job
        deadline = None if job is None else job.deadline
        return deadline is not None and time.monotonic() > deadline + self.grace

    def close(self) -> None:
        """Ends the thread after the last queued job."""
        self._queue.put(None)
        self._thread.join()

    def _loop(self) -> None:
        while (job := self._queue.get()) is not None:
            if job.cancelled.is_set() or not job.future.set_running_or_notify_cancel():
                continue
            start = time.monotonic()
            job.deadline, self._job = start + self.seconds, job
            try:
                with _stoppable(job):
                    result = job.function()
            except BaseException as error:
                self._ended(start)
                job.future.set_exception(error)
            else:
                self._ended(start)
                job.future.set_result(result)

    def _ended(self, start: float) -> None:
        self._job = None
        self.jobs, self.job_seconds = self.jobs + 1, self.job_seconds + time.monotonic() - start


@contextmanager
def _stoppable(job: Job) -> Iterator[None]:
    """Checks a job at every module, and in loops that call `stop_if_late`."""
    thread = threading.get_ident()

    def check(module: nn.Module, args: tuple[Any, ...]) -> None:
        if threading.get_ident() == thread:
            job.check()

    hook = register_module_forward_pre_hook(check)
    try:
        with stopped_by(job.check):
            yield
    finally:
        hook.remove()
