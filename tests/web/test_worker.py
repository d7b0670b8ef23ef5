"""The worker: one thing at a time, a short line, and nothing that runs for ever."""

import asyncio
import threading
import time

import pytest
import torch
from torch import nn

from wherefrom.web.worker import Busy, Stopped, Worker


class Slow(nn.Module):
    """A model whose pass takes a while."""

    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(2, 2) for _ in range(1000))

    def forward(self, x):
        for step in self.steps:
            time.sleep(0.01)
            x = step(x)
        return x


@pytest.fixture
def worker():
    made = Worker(seconds=60, waiting=2)
    yield made
    made.close()


def run(model):
    with torch.no_grad():
        return model(torch.zeros(1, 2))


def test_work_is_done_in_one_other_thread(worker):
    async def all_three():
        return await asyncio.gather(*(worker.do(threading.get_ident) for _ in range(2)))

    first, second = asyncio.run(all_three())
    assert first == second != threading.get_ident()


def test_an_error_reaches_whoever_asked(worker):
    with pytest.raises(ZeroDivisionError):
        asyncio.run(worker.do(lambda: 1 // 0))
    assert asyncio.run(worker.do(lambda: 3)) == 3


def test_a_full_line_is_told_at_once_and_patient_work_waits(worker):
    gate = threading.Event()

    async def scene():
        running = asyncio.ensure_future(worker.do(gate.wait))
        await asyncio.sleep(0.2)
        waiting = [asyncio.ensure_future(worker.do(lambda k=k: k)) for k in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await worker.do(lambda: None)
        patient = asyncio.ensure_future(worker.do(lambda: "late", patient=True))
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(running, *waiting, patient)

    assert asyncio.run(scene()) == [True, 0, 1, "late"]


def test_a_model_that_runs_too_long_is_stopped_and_left_as_it_was():
    worker, model = Worker(seconds=0.1, waiting=2), Slow()
    with pytest.raises(Stopped, match="too long"):
        asyncio.run(worker.do(lambda: run(model)))
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert asyncio.run(worker.do(lambda: 5)) == 5
    worker.close()


def test_work_that_nobody_waits_for_is_given_up(worker):
    ended = []

    def work():
        try:
            run(Slow())
        except Stopped as error:
            ended.append(str(error))
            raise

    async def leave():
        task = asyncio.ensure_future(worker.do(work))
        await asyncio.sleep(0.2)
        task.cancel()
        return await asyncio.gather(task, return_exceptions=True)

    asyncio.run(leave())
    assert asyncio.run(worker.do(lambda: list(ended))) == ["nobody waits for this any more"]


def test_work_in_line_that_nobody_waits_for_is_never_begun(worker):
    gate, begun = threading.Event(), []

    async def leave():
        running = asyncio.ensure_future(worker.do(gate.wait))
        await asyncio.sleep(0.1)
        task = asyncio.ensure_future(worker.do(lambda: begun.append(1)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gate.set()
        await running

    asyncio.run(leave())
    asyncio.run(worker.do(lambda: None))
    assert begun == []
