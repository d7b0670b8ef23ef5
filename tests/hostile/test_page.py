"""Hostile requests are refused with a reason and the security headers; nobody else waits."""

import asyncio
import json
import os
import select
import socket
import threading
import time
from contextlib import ExitStack

import pytest
from starlette.testclient import TestClient

from tests.hostile.requests import BODIES, FIELDS, HOSTS, ORIGINS, ROUTES, VALUES, WIRE
from tests.web.helpers import HOME, JSON, PAGE_HEADERS
from wherefrom import load
from wherefrom.web.app import make_app
from wherefrom.web.models import Models
from wherefrom.web.request import Limits
from wherefrom.web.serve import make_server, serve_on
from wherefrom.web.worker import Worker

TOKEN = "abcdefgh12345678"
INPUTS = {
    "sentiment": {"text": "dull but witty."},
    "bace": {"text": "CCO"},
}


@pytest.fixture(scope="module")
def models():
    return Models({name: load(name) for name in INPUTS})


@pytest.fixture(scope="module")
def worker():
    worker = Worker(60, 16)
    yield worker
    worker.close()


@pytest.fixture
def client(models, worker):
    # what a server raises, a client must get as a response
    app = make_app(models, worker)
    return TestClient(app, HOME, raise_server_exceptions=True, follow_redirects=False)


def check_refusal(response, *statuses):
    assert response.status_code in statuses, (response.status_code, response.text[:200])
    assert set(response.json()["error"]) == {"kind", "message"}
    assert {name: response.headers.get(name) for name in PAGE_HEADERS} == PAGE_HEADERS


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: repr(host)[:30])
def test_an_odd_host_is_refused(client, host):
    check_refusal(client.get("/api/about", headers={"host": host.encode("latin-1")}), 421)


@pytest.mark.parametrize("origin", ORIGINS, ids=lambda origin: repr(origin)[:30])
def test_an_odd_origin_is_refused(client, origin):
    headers = {"origin": origin.encode("latin-1")}
    check_refusal(client.get("/api/about", headers=headers), 403)
    request = {"model": "sentiment", "text": "x"}
    check_refusal(client.post("/api/predict", json=request, headers=headers), 403)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body)[:30])
def test_a_body_that_is_no_request_is_refused(client, route, body):
    check_refusal(client.post(f"/api/{route}", content=body, headers=JSON), 400, 422)


@pytest.mark.parametrize(
    ("route", "field"), [(route, field) for route, fields in FIELDS.items() for field in fields]
)
@pytest.mark.parametrize("model", ["sentiment", "bace"])
def test_no_value_of_any_field_is_an_internal_error(client, route, field, model):
    for value in VALUES:
        request = {"model": model, **INPUTS[model], "methods": ["gradient"], field: value}
        content = json.dumps(request).encode()
        response = client.post(f"/api/{route}", content=content, headers=JSON)
        assert response.status_code in (200, 422), (field, value, response.text[:200])


@pytest.mark.parametrize(
    "header", ["cookie", "x-wherefrom-token", "content-type", "content-length"]
)
@pytest.mark.parametrize(
    "value", ["", "=", ";;", "a=b=c", "\xff", '"', "wherefrom_token", "-1", "9" * 40]
)
def test_odd_headers_are_refused(models, worker, header, value):
    client = TestClient(make_app(models, worker, token=TOKEN), HOME, follow_redirects=False)
    headers = {**JSON, header: value.encode("latin-1")}
    check_refusal(client.post("/api/predict", content=b"{}", headers=headers), 401)
    headers = {"x-wherefrom-token": TOKEN, **headers}
    check_refusal(client.post("/api/predict", content=b"{}", headers=headers), 401, 413, 415, 422)


def test_a_report_whose_name_is_not_utf8_is_listed_and_served(models, worker, tmp_path):
    for name in (b"caf\xe9.html", b"caf\xe8.html", b"plain.html"):
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
            file.write(b"<p>" + name)
    client = TestClient(make_app(models, worker, reports=tmp_path), HOME)
    names = client.get("/api/about").json()["reports"]
    assert sorted(names) == ["caf\N{REPLACEMENT CHARACTER}.html",
                             "caf\N{REPLACEMENT CHARACTER}.html (2)", "plain.html"]  # fmt: skip
    contents = {client.get(f"/reports/{name}").content for name in names}
    assert contents == {b"<p>caf\xe9.html", b"<p>caf\xe8.html", b"<p>plain.html"}


def test_a_report_that_cannot_be_read_is_not_there(models, worker, tmp_path, monkeypatch):
    (tmp_path / "one.html").write_text("<p>one", encoding="utf-8")

    def fail(path):
        raise PermissionError(path)

    client = TestClient(make_app(models, worker, reports=tmp_path), HOME)
    monkeypatch.setattr("pathlib.Path.read_bytes", fail)
    check_refusal(client.get("/reports/one.html"), 404)


def test_an_input_of_too_many_units_is_refused_before_the_model_runs(models, worker, monkeypatch):
    client = TestClient(make_app(models, worker, limits=Limits(units=4)), HOME)
    monkeypatch.setattr("wherefrom.web.answers.run", lambda *arguments: pytest.fail("it ran"))
    for route in ROUTES:
        request = {"model": "sentiment", "text": "one two three four", "curve": "activation",
                   "methods": ["lrp"]}  # fmt: skip
        response = client.post(f"/api/{route}", json=request)
        check_refusal(response, 422)
        assert "6 units; the page explains up to 4" in response.json()["error"]["message"]


class Running:
    """A server on a socket, with a token."""

    def __init__(self, models, worker, idle_seconds=60, limits=None):
        self.server = make_server(make_app(models, worker, token=TOKEN, limits=limits))
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.thread = threading.Thread(
            target=lambda: asyncio.run(serve_on(self.server, self.listener, idle_seconds)),
            daemon=True,
        )

    def __enter__(self):
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *error):
        self.server.should_exit = True
        self.thread.join()
        self.listener.close()

    def connect(self):
        return socket.create_connection(self.listener.getsockname(), timeout=120)

    def send(self, content):
        """The whole response to bytes on the wire; the client sends nothing more."""
        with self.connect() as connection:
            connection.sendall(content)
            return received(connection)


def received(connection):
    chunks = []
    while chunk := connection.recv(1 << 16):
        chunks.append(chunk)
    return b"".join(chunks)


def with_token(path="/api/about"):
    return (
        f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nx-wherefrom-token: {TOKEN}\r\n"
        "connection: close\r\n\r\n"
    ).encode()


@pytest.fixture(scope="module")
def running(models, worker):
    with Running(models, worker, 2, Limits(upload_seconds=2)) as server:
        yield server


@pytest.mark.parametrize("content", WIRE, ids=lambda content: repr(content)[:40])
def test_bytes_that_are_not_http_are_refused_or_dropped(running, content):
    response = running.send(content)
    if response:  # else the headers never ended, and the connection was closed
        head, _, body = response.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        assert lines[0].split()[1] in ("400", "401", "408", "421", "505"), lines[0]
        if lines[0].split()[1] == "400":  # from uvicorn: no application has seen the request
            assert b"Invalid HTTP request received." in body
            return
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        assert {name: headers.get(name) for name in PAGE_HEADERS} == PAGE_HEADERS
        assert set(json.loads(body)["error"]) == {"kind", "message"}
    assert b"200 OK" in running.send(with_token()).partition(b"\r\n")[0]


def test_connections_without_a_request_are_closed(running):
    """Silent from the first, begun, and silent after an answered request."""
    answered = with_token().replace(b"connection: close\r\n", b"")
    with ExitStack() as opened:
        connections = [opened.enter_context(running.connect()) for _ in range(3)]
        for connection, content in zip(connections, (b"", b"GET /", answered), strict=True):
            connection.sendall(content)
        silent, begun, idle = map(received, connections)
    assert silent == begun == b""
    assert b"200 OK" in idle


def trickle(connection):
    connection.sendall(b"GET / HTTP/1.1\r\n")
    for _ in range(2000):
        connection.sendall(b"a: b\r\n")
        time.sleep(0.05)


def test_headers_that_trickle_in_are_no_reason_to_wait(running):
    with running.connect() as connection, pytest.raises(OSError, match=r"(?i)reset|pipe|abort"):
        trickle(connection)


def test_a_body_that_never_comes_is_not_waited_for(running):
    head = (
        f"POST /api/predict HTTP/1.1\r\nhost: 127.0.0.1\r\nx-wherefrom-token: {TOKEN}\r\n"
        "content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    )
    assert b" 408 " in running.send(head.encode()).partition(b"\r\n")[0]


def test_idle_connections_do_not_keep_out_the_holder_of_a_token(models, worker):
    with Running(models, worker, idle_seconds=1) as server, ExitStack() as idle:
        strangers = [idle.enter_context(server.connect()) for _ in range(140)]
        for _ in range(5):
            assert b"200 OK" in server.send(with_token()).partition(b"\r\n")[0]
        for stranger in strangers:
            assert received(stranger) == b""  # closed by the server


def test_of_60_clients_at_once_each_is_served_or_told_to_wait(models):
    """The worker is held: one request runs, 16 wait in the queue, and the others are refused."""
    release, started, worker = threading.Event(), threading.Event(), Worker(60, 16)
    content = b'{"model": "sentiment", "text": "dull."}'
    request = (
        f"POST /api/predict HTTP/1.1\r\nhost: 127.0.0.1\r\nx-wherefrom-token: {TOKEN}\r\n"
        "content-type: application/json\r\nconnection: close\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    ).encode() + content
    worker.submit(lambda: (started.set(), release.wait(60)))
    assert started.wait(60)
    try:
        with Running(models, worker) as server, ExitStack() as stack:
            waiting = [stack.enter_context(server.connect()) for _ in range(60)]
            for client in waiting:
                client.sendall(request)
            refused = []
            while len(refused) < 60 - 16:
                ready = select.select(waiting, [], [], 60)[0]
                assert ready
                refused += ready
                waiting = [client for client in waiting if client not in ready]
            for response in map(received, refused):
                assert b" 503 " in response
                assert b"retry-after: 1" in response.lower()
            release.set()
            assert all(b" 200 OK" in received(client) for client in waiting)
    finally:
        release.set()
        worker.close()
