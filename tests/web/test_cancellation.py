"""A client that disconnects: its job stops, or never starts."""

import asyncio
import json
import threading
import time

import pytest
import torch
from torch import nn

from tests.web.helpers import PAGE_HEADERS, body
from wherefrom.web.answers import Answers
from wherefrom.web.api import Api
from wherefrom.web.app import make_app
from wherefrom.web.worker import Stopped, Worker


class Slow(nn.Module):
    """A model whose pass takes a minute unless a module stops it."""

    def __init__(self):
        super().__init__()
        self.step = nn.Identity()

    def forward(self, x):
        for _ in range(6000):
            time.sleep(0.01)
            x = self.step(x)
        return x


class SlowJob:
    """Runs the slow model, and records how that ended."""

    def __init__(self):
        self.model, self.started, self.ended = Slow(), threading.Event(), []

    def __call__(self, *arguments):
        self.started.set()
        try:
            self.model(torch.zeros(1))
        except Stopped as error:
            self.ended.append(str(error))
            raise


@pytest.fixture
def worker():
    worker = Worker(seconds=60, queued_jobs=4)
    yield worker
    worker.close()


def send_and_leave(models, worker, path, content, leave, more_body=False, afterwards=None):
    """The messages of a response, to a client that disconnects when `leave` is set.

    The event loop goes on until the worker is free again: closing it would cancel every task.
    """
    app = make_app(models, worker, api=True)
    chunks = [{"type": "http.request", "body": content, "more_body": more_body}]
    received = []

    async def receive():
        if chunks:
            return chunks.pop(0)
        await asyncio.to_thread(leave.wait, 60)
        return {"type": "http.disconnect"}

    async def send(message):
        received.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},  # as uvicorn says
        "method": "POST",
        "path": path,
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
        "query_string": b"",
        "root_path": "",
        "http_version": "1.1",
        "scheme": "http",
    }

    async def serve():
        await app(scope, receive, send)
        if afterwards is not None:
            afterwards()
        await asyncio.wait_for(worker.run(lambda: None), 60)

    asyncio.run(serve())
    return received


def test_a_running_job_stops(models, worker, monkeypatch):
    job = SlowJob()
    monkeypatch.setattr(Answers, "predict", lambda self, request: job())
    content = json.dumps(body()).encode()
    messages = send_and_leave(models, worker, "/api/predict", content, job.started)
    assert messages[0]["status"] == 499
    assert job.ended == ["the request was cancelled"]


def test_a_queued_job_never_starts(models, worker, monkeypatch):
    release, calls, leave = threading.Event(), [], threading.Event()
    monkeypatch.setattr(Answers, "predict", lambda self, request: calls.append(request))
    worker.submit(release.wait)
    leave.set()
    content = json.dumps(body()).encode()
    messages = send_and_leave(
        models, worker, "/api/predict", content, leave, afterwards=release.set
    )
    assert messages[0]["status"] == 499
    assert calls == []


def test_a_comparison_stops_and_runs_no_further_method(models, worker, monkeypatch):
    job, methods = SlowJob(), []

    def explain(self, request):
        methods.append(request.method)
        return job() if request.method == "gradient" else {}

    monkeypatch.setattr(Answers, "explain", explain)
    content = json.dumps(body(methods=["lrp", "gradient", "gae"])).encode()
    messages = send_and_leave(models, worker, "/api/compare", content, job.started)
    assert messages[0]["status"] == 200
    assert [json.loads(m["body"]) for m in messages[1:] if m["body"]] == [{"method": "lrp"}]
    assert methods == ["lrp", "gradient"]
    assert job.ended == ["the request was cancelled"]


def test_an_upload_that_breaks_off_runs_nothing(models, worker, monkeypatch):
    calls, leave = [], threading.Event()
    monkeypatch.setattr(Answers, "predict", lambda self, request: calls.append(request))
    leave.set()
    messages = send_and_leave(models, worker, "/api/predict", b'{"model":', leave, more_body=True)
    assert messages[0]["status"] == 499
    assert calls == []


def test_the_response_to_a_cancelled_request_has_the_security_headers(models, worker):
    leave = threading.Event()
    leave.set()
    start = send_and_leave(models, worker, "/api/predict", b"{", leave, more_body=True)[0]
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert headers == {**PAGE_HEADERS, "content-length": "0"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_stops(models, worker, monkeypatch, stream):
    job = SlowJob()
    monkeypatch.setattr(Api, "chat", lambda self, body, send: [send({"number": 1}), job()])
    message = {"role": "user", "content": "x"}
    content = json.dumps({"model": "sentiment", "messages": [message], "stream": stream}).encode()
    messages = send_and_leave(models, worker, "/v1/chat/completions", content, job.started)
    assert messages[0]["status"] == (200 if stream else 499)
    assert [m["body"] for m in messages[1:] if m["body"]] == [b'data: {"number": 1}\n\n'] * stream
    assert job.ended == ["the request was cancelled"]
