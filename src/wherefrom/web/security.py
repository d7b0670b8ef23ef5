"""Access control for requests, headers that restrict the browser, and reports from one folder."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import math
import os
import re
import socket
from base64 import b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from wherefrom.show import corpus

AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
App = Callable[[AsgiMessage, Receive, Send], Awaitable[None]]

# a name or address with an optional port; no user, path or space, which some parsers skip
_HOST = re.compile(r"(\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(:[0-9]{1,5})?")
_REQUESTS = 256  # at once; more get status 503
COOKIE = "wherefrom_token"
HEADER = "x-wherefrom-token"
HEALTH, METRICS = "/healthz", "/metrics"
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
# a report has inline styles, and is isolated from the page by the sandbox
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Gate:
    """Forwards requests that name this server and, if there is a token, contain it.

    A site that points its name at this machine (DNS rebinding) is refused, since it sends that name
    in `Host`. Requests to the API contain one of the `keys` instead, if there are any; one that
    does may use any name, since no site knows a key.
    """

    app: App
    host: str = "127.0.0.1"
    token: str | None = None
    keys: tuple[str, ...] = ()
    key_requests: int = 8  # at once with one key
    wait: Callable[[], float] = lambda: 1.0  # the seconds after which a refused one may come back
    _active: Counter[str] = field(default_factory=Counter)
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_REQUESTS))

    async def __call__(self, scope: AsgiMessage, receive: Receive, send: Send) -> None:
        """Forwards a request or refuses it; every response carries the security headers."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        headers: dict[str, str] = {}
        for key, value in scope["headers"]:
            name, text = key.decode("latin-1").lower(), value.decode("latin-1")
            # proxies may split cookies into several headers
            headers[name] = f"{headers[name]}; {text}" if name in headers else text
        send_secured = _with_headers(send)
        if scope["path"] == HEALTH:
            await self.app(scope, receive, send_secured)
        elif self.keys and is_api(scope["path"]):
            await self._with_key(headers, scope, receive, send_secured)
        elif not self.is_own_name(headers.get("host", "")):
            message = "this server has another host name."
            await _refuse(send_secured, 421, "host", message, is_api(scope["path"]))
        elif not _same_site(headers):
            message = "requests from other sites are refused."
            await _refuse(send_secured, 403, "origin", message, is_api(scope["path"]))
        elif self.token is None or self._has_token(headers):
            await self._in_place(scope, receive, send_secured)
        elif (token := _token_in_address(scope)) is not None and self._matches(token):
            await _set_cookie(send_secured, token)
        else:
            message = "token missing: open the address that `wherefrom serve` printed."
            await _refuse(send_secured, 401, "token", message)

    async def _with_key(
        self, headers: dict[str, str], scope: AsgiMessage, receive: Receive, send: Send
    ) -> None:
        """Forwards a request with a key of the API, unless the key has too many at once."""
        scheme, _, own = headers.get("authorization", "").partition(" ")
        matches = [hmac.compare_digest(own.encode(), key.encode()) for key in self.keys]
        if scheme.lower() != "bearer" or not any(matches):
            message = "the API key is wrong or missing: send it as Authorization: Bearer KEY."
            await _refuse(send, 401, "invalid_api_key", message, api=True)
        elif self._active[own] >= self.key_requests:
            message = f"this API key has {self.key_requests} requests at once: try again shortly."
            await _refuse(send, 429, "too_many_requests", message, True, self.wait())
        else:
            self._active[own] += 1
            try:
                await self._in_place(scope, receive, send)
            finally:
                self._active[own] -= 1

    async def _in_place(self, scope: AsgiMessage, receive: Receive, send: Send) -> None:
        """Forwards a request, or tells the client to wait if too many are under way."""
        if self.places.locked():
            message = "the server is busy: try again shortly."
            await _refuse(send, 503, "busy", message, is_api(scope["path"]), self.wait())
            return
        async with self.places:
            await self.app(scope, receive, send)

    def is_own_name(self, host: str) -> bool:
        """Whether a Host header names this server."""
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match["address"] or match["name"]).lower()
        if is_loopback(self.host):
            return is_loopback(name)
        if self.host not in ("0.0.0.0", "::"):
            return name == self.host.lower()
        try:
            return bool(ipaddress.ip_address(name))
        except ValueError:
            return name in ("localhost", socket.gethostname().lower())

    def _has_token(self, headers: dict[str, str]) -> bool:
        # parsed by hand, since SimpleCookie stops at the first malformed cookie of another app
        cookies = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        tokens = [value for name, _, value in cookies if name == COOKIE]
        return any(map(self._matches, [*tokens, headers.get(HEADER, "")]))

    def _matches(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), (self.token or "").encode())


def _same_site(headers: dict[str, str]) -> bool:
    origin = headers.get("origin")
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return headers.get("sec-fetch-mode") == "navigate" and origin is None  # a link
    host = headers.get("host", "").lower()
    return origin is None or origin.lower() in (f"http://{host}", f"https://{host}")


def _token_in_address(scope: AsgiMessage) -> str | None:
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    return query.get("token", [None])[0] if scope["method"] == "GET" else None


def _with_headers(send: Send) -> Send:
    async def send_secured(message: AsgiMessage) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message.get("headers", ())}
            added = {**_HEADERS, "content-security-policy": PAGE_POLICY}
            message["headers"] = [
                *message.get("headers", ()),
                *((k.encode(), v.encode()) for k, v in added.items() if k.encode() not in present),
            ]
        await send(message)

    return send_secured


def is_api(path: str) -> bool:
    """Whether a path belongs to the API, whose clients are programs."""
    return path == METRICS or path.startswith("/v1/")


def api_error(status: int, kind: str, message: str) -> dict[str, Any]:
    """An error of the API, in OpenAI's form."""
    types = {401: "authentication_error", 429: "rate_limit_error"}
    other = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": types.get(status, other), "param": None, "code": kind}
    return {"error": error}


def retry_after(seconds: float) -> str:
    """The value of the header of this name; clients of OpenAI follow it up to a minute."""
    return str(min(max(math.ceil(seconds), 1), 60))


async def _refuse(
    send: Send, status: int, kind: str, message: str, api: bool = False, wait: float | None = None
) -> None:
    error = {"error": {"kind": kind, "message": message}}
    body = json.dumps(api_error(status, kind, message) if api else error).encode()
    headers = [(b"content-type", b"application/json")]
    if wait is not None:
        headers.append((b"retry-after", retry_after(wait).encode()))
    await _respond(send, status, headers, body)


async def _set_cookie(send: Send, token: str) -> None:
    """Moves the token from the address into a cookie."""
    cookie = f"{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict".encode("latin-1")
    await _respond(send, 303, [(b"location", b"/"), (b"set-cookie", cookie)], b"")


async def _respond(
    send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


_MAX_REPORTS = 200


@cache
def report_policy() -> str:
    """The content security policy of a report: it allows only the library's own script."""
    script = Path(corpus.__file__).with_name("corpus.js").read_text(encoding="utf-8")
    digest = b64encode(sha256(script.encode()).digest()).decode("ascii")
    return f"{REPORT_POLICY} allow-scripts; script-src 'sha256-{digest}'"


@dataclass(frozen=True)
class Reports:
    """The HTML files in a folder and its direct subfolders, requested by name."""

    folder: Path | None = None

    def by_name(self) -> dict[str, Path]:
        """Paths by name, newest first, without symbolic links to files outside the folder."""
        if self.folder is None or not self.folder.is_dir():
            return {}
        folder = self.folder.resolve()
        paths = [
            path
            for pattern in ("*.html", "*/*.html")
            for path in folder.glob(pattern)
            if path.is_file() and path.resolve().is_relative_to(folder)
        ]
        paths.sort(key=_changed, reverse=True)
        names: dict[str, Path] = {}
        for path in paths[:_MAX_REPORTS]:
            name = shown = _printable(path.relative_to(folder).as_posix())
            number = 2
            while shown in names:  # two names may differ only in unprintable bytes
                shown, number = f"{name} ({number})", number + 1
            names[shown] = path
        return names

    def read(self, name: str) -> bytes | None:
        """The content of a listed report; None for other names and for deleted files."""
        path = self.by_name().get(name)
        try:
            return None if path is None else path.read_bytes()
        except OSError:
            return None


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # deleted meanwhile
        return 0.0


def _printable(name: str) -> str:
    """The name of a file as UTF-8; file systems allow other bytes."""
    return os.fsencode(name).decode("utf-8", "replace")
