"""The worker: one job at a time, a short queue, and no job that runs for ever."""

import asyncio
import threading
import time

import pytest
import torch

from tests.web.test_cancellation import Slow, SlowJob
from wherefrom.core.progress import stop_if_late
from wherefrom.core.torch_internals import function_modes
from wherefrom.tracing.call_mode import CallMode
from wherefrom.web.worker import QueueFull, Stopped, Worker


@pytest.fixture
def worker():
    worker = Worker(seconds=60, queued_jobs=2)
    yield worker
    worker.close()


def test_jobs_run_in_one_other_thread(worker):
    async def run_two():
        return await asyncio.gather(*(worker.run(threading.get_ident) for _ in range(2)))

    first, second = asyncio.run(run_two())
    assert first == second != threading.get_ident()


def test_an_error_reaches_the_caller(worker):
    with pytest.raises(ZeroDivisionError):
        asyncio.run(worker.run(lambda: 1 // 0))
    assert asyncio.run(worker.run(lambda: 3)) == 3


def test_a_full_queue_is_an_error_unless_the_caller_waits_for_room(worker):
    started, release = threading.Event(), threading.Event()

    def block():
        started.set()
        return release.wait(30)

    async def fill():
        running = asyncio.ensure_future(worker.run(block))
        await asyncio.to_thread(started.wait, 30)
        queued = [asyncio.ensure_future(worker.run(lambda k=k: k)) for k in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await worker.run(lambda: None)
        waiting = asyncio.ensure_future(worker.run(lambda: "late", wait_for_room=True))
        await asyncio.sleep(0)
        release.set()
        return await asyncio.gather(running, *queued, waiting)

    assert asyncio.run(fill()) == [True, 0, 1, "late"]


def test_a_job_that_runs_too_long_stops_and_leaves_no_hook():
    worker, model = Worker(seconds=0.05, queued_jobs=2), Slow()
    before = set(torch.nn.modules.module._global_forward_pre_hooks)  # of jobs left by other tests
    with pytest.raises(Stopped, match="took too long"):
        asyncio.run(worker.run(lambda: model(torch.zeros(1))))
    assert set(torch.nn.modules.module._global_forward_pre_hooks) <= before
    assert asyncio.run(worker.run(lambda: 5)) == 5
    worker.close()


def without_modules():
    """Torch calls for ever, outside any module."""
    x = torch.zeros(3)
    while True:
        x = x + 1


class Passing(CallMode):
    def on_call(self, call):
        return call.run()


def within_a_mode():
    """Torch calls for ever, within a mode as methods open it."""
    x = torch.zeros(3, requires_grad=True)
    with Passing():
        while True:
            torch.exp(x)


def by_asking():
    """A loop without torch that asks, as the search for a maximum flow does."""
    while True:
        stop_if_late()


@pytest.mark.parametrize("job", [without_modules, within_a_mode, by_asking])
def test_a_job_that_is_late_stops_at_its_next_call(job):
    worker = Worker(seconds=0.05, queued_jobs=2, grace=60)
    with pytest.raises(Stopped, match="took too long"):
        asyncio.run(asyncio.wait_for(worker.run(job), 20))
    assert asyncio.run(worker.run(function_modes)) != []  # the check of this job alone
    assert len(asyncio.run(worker.run(function_modes))) == 1
    assert function_modes() == []
    stop_if_late()
    worker.close()


def test_a_job_without_torch_calls_cannot_keep_its_request_waiting():
    worker, release = Worker(seconds=0.05, queued_jobs=2, grace=0.1), threading.Event()
    with pytest.raises(Stopped, match="took too long"):
        asyncio.run(asyncio.wait_for(worker.run(lambda: release.wait(30)), 20))
    assert not release.is_set()
    release.set()
    assert worker.submit(lambda: 5).future.result(10) == 5
    worker.close()


def test_a_job_may_take_its_whole_time(worker):
    def wait():
        time.sleep(0.7)  # longer than the worker's look at it
        return 4

    assert asyncio.run(worker.run(wait)) == 4


def test_another_thread_may_run_a_model_while_a_late_job_stops():
    worker, started, release = Worker(seconds=0.0, queued_jobs=2), threading.Event(), []

    def hold():
        started.set()
        while not release:
            pass
        return torch.nn.Identity()(1)

    job = worker.submit(hold)
    started.wait(30)
    assert torch.nn.Identity()(7) == 7  # the deadline is that of the worker's thread alone
    release.append(True)
    with pytest.raises(Stopped):
        job.future.result(30)
    worker.close()


def test_a_cancelled_job_stops(worker):
    job = SlowJob()

    async def cancel():
        task = asyncio.ensure_future(worker.run(job))
        await asyncio.to_thread(job.started.wait, 30)
        task.cancel()
        return await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    worker.submit(lambda: None).future.result(5)
    assert job.ended == ["the request was cancelled"]


def test_a_queued_job_that_is_cancelled_never_starts(worker):
    started, release, calls = threading.Event(), threading.Event(), []

    def block():
        started.set()
        release.wait(30)

    async def cancel():
        running = asyncio.ensure_future(worker.run(block))
        await asyncio.to_thread(started.wait, 30)
        task = asyncio.ensure_future(worker.run(lambda: calls.append(1)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        release.set()
        await running

    asyncio.run(cancel())
    worker.submit(lambda: None).future.result(5)
    assert calls == []


def test_a_caller_cancelled_while_it_waits_for_room_queues_nothing(worker):
    started, release, calls = threading.Event(), threading.Event(), []

    def block():
        started.set()
        release.wait(30)

    async def cancel():
        worker.submit(block)
        await asyncio.to_thread(started.wait, 30)
        for _ in range(2):
            worker.submit(lambda: None)
        task = asyncio.ensure_future(worker.run(lambda: calls.append(1), wait_for_room=True))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    release.set()
    while True:
        try:
            worker.submit(lambda: None).future.result(5)
            break
        except QueueFull:
            pass
    assert calls == []
