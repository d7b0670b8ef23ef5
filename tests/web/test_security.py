"""Who may send requests, and what a browser may do with the responses: every header, exactly."""

import asyncio
import base64
import hashlib
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.web.helpers import HOME, JSON, PAGE_HEADERS, body, error_kind
from wherefrom.show import corpus
from wherefrom.web.answers import Answers
from wherefrom.web.request import Limits
from wherefrom.web.security import HEADER, Gate
from wherefrom.web.worker import Worker

TOKEN = "abcdefgh12345678"

# Written out, not imported: a part that gets lost must make a test fail.
FILE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox"
)


def headers_of(response):
    headers = dict(response.headers)
    length = headers.pop("content-length", None)
    assert length is None or int(length) == len(response.content)
    return headers


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/static/main.js", "text/javascript; charset=utf-8"),
        ("/static/page.css", "text/css; charset=utf-8"),
        ("/static/heatmap.css", "text/css; charset=utf-8"),
        ("/static/icon.svg", "image/svg+xml"),
        ("/api/about", "application/json"),
    ],
)
def test_headers_of_the_page_and_its_files(client, path, media_type):
    response = client.get(path)
    assert response.status_code == 200
    assert headers_of(response) == {**PAGE_HEADERS, "content-type": media_type}


def test_headers_of_answers(client):
    explained = client.post("/api/predict", json=body())
    assert explained.status_code == 200
    assert headers_of(explained) == {**PAGE_HEADERS, "content-type": "application/json"}
    compared = client.post("/api/compare", json=body(methods=["lrp"]))
    assert compared.status_code == 200
    assert headers_of(compared) == {**PAGE_HEADERS, "content-type": "application/x-ndjson"}


def test_headers_of_a_download(client):
    response = client.post("/api/html", json=body())
    assert response.status_code == 200
    assert headers_of(response) == {
        **PAGE_HEADERS,
        "content-type": "text/html; charset=utf-8",
        "content-disposition": 'attachment; filename="wherefrom.html"',
        "content-security-policy": FILE_POLICY,
    }


def test_headers_of_a_report(make_client, tmp_path):
    (tmp_path / "one.html").write_text("<p>one</p>", encoding="utf-8")
    script = Path(corpus.__file__).with_name("corpus.js").read_bytes()
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    response = make_client(reports=tmp_path).get("/reports/one.html")
    assert response.status_code == 200
    assert headers_of(response) == {
        **PAGE_HEADERS,
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": f"{FILE_POLICY} allow-scripts; script-src 'sha256-{digest}'",
    }


@pytest.mark.parametrize(
    ("status", "method", "path", "options"),
    [
        (400, "POST", "/api/explain", {"content": b"{", "headers": JSON}),
        (403, "GET", "/", {"headers": {"origin": "http://evil.example"}}),
        (404, "GET", "/nothing", {}),
        (404, "GET", "/static/nothing.js", {}),
        (404, "GET", "/reports/nothing.html", {}),
        (405, "GET", "/api/explain", {}),
        (405, "DELETE", "/", {}),
        (413, "POST", "/api/explain", {"json": {"text": "x" * 500}}),
        (415, "POST", "/api/explain", {"content": b"{}"}),
        (421, "GET", "/", {"headers": {"host": "evil.example"}}),
        (422, "POST", "/api/explain", {"json": {}}),
    ],
)
def test_headers_of_errors(make_client, status, method, path, options):
    response = make_client(Limits(body_bytes=300)).request(method, path, **options)
    error_kind(response, status)
    headers = headers_of(response)
    allowed = headers.pop("allow", None)
    expected = {"GET", "HEAD"} if path == "/" else {"POST"}
    assert allowed is None if status != 405 else set(allowed.split(", ")) == expected
    assert headers == {**PAGE_HEADERS, "content-type": "application/json"}


def test_headers_of_internal_errors_and_of_a_busy_server(make_client, monkeypatch):
    json_headers = {**PAGE_HEADERS, "content-type": "application/json"}
    monkeypatch.setattr(Answers, "predict", lambda self, request: 1 / 0)
    failed = make_client().post("/api/predict", json=body())
    assert error_kind(failed, 500) == "internal"
    assert headers_of(failed) == json_headers
    late = make_client(Limits(job_seconds=0.0)).post("/api/explain", json=body())
    assert error_kind(late, 504, "took too long") == "time"
    assert headers_of(late) == json_headers
    release, worker = threading.Event(), Worker(60, 1)
    worker.submit(release.wait)
    while not worker._queue.empty():
        pass
    worker.submit(lambda: None)
    busy = make_client(worker=worker).post("/api/predict", json=body())
    release.set()
    worker.close()
    assert error_kind(busy, 503, "busy") == "busy"
    assert headers_of(busy) == {**json_headers, "retry-after": "1"}


def test_headers_with_a_token(make_client):
    client = make_client(token=TOKEN)
    refused = client.get("/")
    assert error_kind(refused, 401, "open the address") == "token"
    assert headers_of(refused) == {**PAGE_HEADERS, "content-type": "application/json"}
    redirected = client.get(f"/?token={TOKEN}")
    assert redirected.status_code == 303
    assert headers_of(redirected) == {
        **PAGE_HEADERS,
        "location": "/",
        "set-cookie": f"wherefrom_token={TOKEN}; Path=/; HttpOnly; SameSite=Strict",
    }
    assert client.get("/api/about").status_code == 200  # by the cookie


def test_a_token_is_needed_everywhere(make_client):
    client = make_client(token=TOKEN)
    for path in ("/", "/static/main.js", "/api/about", "/reports/x.html", "/?token=wrong"):
        assert error_kind(client.get(path), 401) == "token"
    assert error_kind(client.post(f"/api/predict?token={TOKEN}", json=body()), 401) == "token"
    assert client.get("/api/about", headers={HEADER: TOKEN}).status_code == 200
    error_kind(
        client.get("/api/about", headers={HEADER: "äbcdefgh12345678".encode("latin-1")}), 401
    )
    error_kind(client.get("/api/about", headers={"cookie": "wherefrom_token=no; ="}), 401)
    for odd in ("a[b]=c", 'x="', "=", "é=1", "a=b=c", "wherefrom_token=old"):  # of another app
        cookie = f"{odd}; wherefrom_token={TOKEN}; {odd}".encode("latin-1")
        assert client.get("/api/about", headers={"cookie": cookie}).status_code == 200, odd


def test_cookies_in_several_headers_are_all_read(make_client):
    client = make_client(token=TOKEN)
    for values in ((f"wherefrom_token={TOKEN}", "x=1"), ("x=1", f"wherefrom_token={TOKEN}")):
        response = client.get("/api/about", headers=[("cookie", value) for value in values])
        assert response.status_code == 200


def test_too_many_requests_at_once_are_told_to_wait(client):
    one_more = TestClient(replace(client.app, places=asyncio.Semaphore(0)), HOME).get("/")
    error_kind(one_more, 503)
    assert one_more.headers["retry-after"] == "1"
    alone = TestClient(replace(client.app, places=asyncio.Semaphore(1)), HOME)
    for path in ("/", "/api/none", "/"):  # each request gives its place back
        assert alone.get(path).status_code == (404 if "none" in path else 200)


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere(client):
    page = client.get("/").text
    assert '<script type="module" src=' in page
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=|https?://", page)
    todo, seen = re.findall(r"/static/([\w.]+)", page), set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        response = client.get(f"/static/{name}")
        assert response.status_code == 200, name
        if name.endswith(".js"):
            assert not re.search(r"innerHTML|insertAdjacentHTML|eval\(", response.text)
            todo += re.findall(r'from "\./([\w.]+)"', response.text)
    assert {"main.js", "heatmap.js", "download.js", "heatmap.css", "icon.svg"} <= seen


@pytest.mark.parametrize("path", ["/static/../app.py", "/static/..%2fapp.py"])
def test_only_files_of_the_page_are_served(client, path):
    error_kind(client.get(path), 404)


@pytest.mark.parametrize("host", ["evil.example:8765", "", "127.0.0.1.evil.example"])
def test_a_foreign_host_name_is_refused(client, host):
    assert error_kind(client.get("/api/about", headers={"host": host}), 421) == "host"


@pytest.mark.parametrize(
    ("bound", "host", "is_own"),
    [
        ("127.0.0.1", "localhost:8765", True),
        ("127.0.0.1", "[::1]:8765", True),
        ("127.0.0.1", "a]b[", False),
        ("0.0.0.0", "192.168.1.5:8765", True),
        ("0.0.0.0", "evil.example", False),
        ("::", "[fe80::1]:8765", True),
        ("box.local", "box.local:8765", True),
        ("box.local", "127.0.0.1:8765", False),
    ],
)
def test_host_names_of_this_server(bound, host, is_own):
    assert Gate(None, bound, "t").is_own_name(host) is is_own


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://127.0.0.1:3000"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {
            "sec-fetch-site": "cross-site",
            "sec-fetch-mode": "navigate",
            "origin": "http://e.example",
        },
    ],
)
def test_a_page_of_another_site_may_not_send_requests(client, headers):
    assert error_kind(client.post("/api/predict", json=body(), headers=headers), 403) == "origin"


def test_a_link_on_another_site_may_lead_here(client):
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=headers).status_code == 200
    assert client.get("/", headers={"origin": HOME}).status_code == 200
