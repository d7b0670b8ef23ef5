"""The worker: one job at a time, a short queue, and no job that runs for ever."""

import asyncio
import threading
import time

import pytest
import torch

from tests.web.test_cancellation import Slow, SlowJob
from wherefrom.core.progress import stop_if_late
from wherefrom.web import worker as worker_module
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
        return release.wait(60)

    async def fill():
        running = asyncio.ensure_future(worker.run(block))
        await asyncio.to_thread(started.wait, 60)
        queued = [asyncio.ensure_future(worker.run(lambda k=k: k)) for k in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await worker.run(lambda: None)
        waiting = asyncio.ensure_future(worker.run(lambda: "late", wait_for_room=True))
        await asyncio.sleep(0)
        release.set()
        return await asyncio.gather(running, *queued, waiting)

    assert asyncio.run(fill()) == [True, 0, 1, "late"]


def hooks_of(job):
    """The global hooks that stop this job; jobs left by other tests may have hooks too."""
    hooks = list(torch.nn.modules.module._global_forward_pre_hooks.values())
    cells = [cell for hook in hooks for cell in getattr(hook, "__closure__", None) or ()]
    return [cell for cell in cells if cell.cell_contents is job]


def test_a_job_that_runs_too_long_stops_and_leaves_no_hook():
    worker, model = Worker(seconds=0.05, queued_jobs=2, grace=60), Slow()
    submitted, seen = threading.Event(), []

    def run():
        submitted.wait(60)
        seen.append(len(hooks_of(job)))
        return model(torch.zeros(1))

    job = worker.submit(run)
    submitted.set()
    with pytest.raises(Stopped, match="took too long"):
        job.future.result(60)
    assert seen == [1]
    assert hooks_of(job) == []
    assert asyncio.run(worker.run(lambda: 5)) == 5
    worker.close()


def by_modules():
    """A model that runs for ever."""
    model, x = torch.nn.Identity(), torch.zeros(3)
    while True:
        x = model(x)


def by_asking():
    """A loop without torch that asks, as the search for a maximum flow does."""
    while True:
        stop_if_late()


@pytest.mark.parametrize("job", [by_modules, by_asking])
def test_a_job_that_is_late_stops(job):
    worker = Worker(seconds=0.05, queued_jobs=2, grace=60)
    with pytest.raises(Stopped, match="took too long"):
        asyncio.run(asyncio.wait_for(worker.run(job), 60))
    stop_if_late()
    worker.close()


def test_a_job_without_torch_calls_cannot_keep_its_request_waiting():
    worker, release = Worker(seconds=0.05, queued_jobs=2, grace=0.1), threading.Event()
    with pytest.raises(Stopped, match="took too long"):
        asyncio.run(asyncio.wait_for(worker.run(lambda: release.wait(60)), 60))
    assert not release.is_set()
    release.set()
    assert worker.submit(lambda: 5).future.result(60) == 5
    worker.close()


def test_a_job_may_take_its_whole_time(worker, monkeypatch):
    looks, wait = [], asyncio.wait

    async def look(*arguments, **options):
        looks.append(None)
        return await wait(*arguments, **options)

    def job():
        while len(looks) < 3:
            time.sleep(0.01)
        return 4

    monkeypatch.setattr(worker_module, "_WATCH_SECONDS", 0.01)
    monkeypatch.setattr(asyncio, "wait", look)
    assert asyncio.run(worker.run(job)) == 4


def test_another_thread_may_run_a_model_while_a_late_job_stops():
    worker, started, release = Worker(seconds=0.0, queued_jobs=2), threading.Event(), []

    def hold():
        started.set()
        while not release:
            pass
        return torch.nn.Identity()(1)

    job = worker.submit(hold)
    started.wait(60)
    assert torch.nn.Identity()(7) == 7  # the deadline is that of the worker's thread alone
    release.append(True)
    with pytest.raises(Stopped):
        job.future.result(60)
    worker.close()


def test_a_cancelled_job_stops(worker):
    job = SlowJob()

    async def cancel():
        task = asyncio.ensure_future(worker.run(job))
        await asyncio.to_thread(job.started.wait, 60)
        task.cancel()
        return await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    worker.submit(lambda: None).future.result(60)
    assert job.ended == ["the request was cancelled"]


def test_a_queued_job_that_is_cancelled_never_starts(worker):
    started, release, calls = threading.Event(), threading.Event(), []

    def block():
        started.set()
        release.wait(60)

    async def cancel():
        running = asyncio.ensure_future(worker.run(block))
        await asyncio.to_thread(started.wait, 60)
        task = asyncio.ensure_future(worker.run(lambda: calls.append(1)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        release.set()
        await running

    asyncio.run(cancel())
    worker.submit(lambda: None).future.result(60)
    assert calls == []


def test_a_caller_cancelled_while_it_waits_for_room_queues_nothing(worker):
    started, release, calls = threading.Event(), threading.Event(), []

    def block():
        started.set()
        release.wait(60)

    async def cancel():
        worker.submit(block)
        await asyncio.to_thread(started.wait, 60)
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
            worker.submit(lambda: None).future.result(60)
            break
        except QueueFull:
            pass
    assert calls == []
