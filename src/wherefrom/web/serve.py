"""Starts the server: loads the models, opens the socket, prints the address."""

from __future__ import annotations

import asyncio
import re
import secrets
import signal
import socket
import time
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wherefrom.errors import FileError, InputError, MissingExtra, WherefromError
from wherefrom.explainer import Explainer
from wherefrom.loading import load
from wherefrom.models.embedded import embedded
from wherefrom.web.models import Models, ServedModel, open_models
from wherefrom.web.security import App, is_loopback
from wherefrom.web.worker import Worker

if TYPE_CHECKING:
    import uvicorn

Say = Callable[[str], None]
_IDLE_SECONDS = 10.0  # a connection may take this long to send a request


def serve(
    models: Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    reports: Path | None = None,
    browse: bool = False,
    api: bool = False,
    api_keys: Sequence[str] = (),
    limits: Mapping[str, Any] | None = None,
    say: Say = print,
    **options: Any,
) -> None:
    """Serves the page until interrupted, and with `api` the API for programs.

    By default it serves the embedded models. If other machines can reach the host, a token is
    required, random unless `token` is passed; it is the key of the API unless there are `api_keys`.
    `limits` are fields of `Limits`. Other options go to `load` (`dtype=`, `device=`).
    """
    for library in ("pydantic", "starlette", "uvicorn"):
        if find_spec(library) is None:
            raise MissingExtra(library, "web", "the web page")
    from wherefrom.web.app import make_app
    from wherefrom.web.request import Limits, checked

    if reports is not None and not reports.is_dir():
        raise FileError(f"--reports: {reports} is not a folder.")
    if token is not None and not (token.isascii() and token.isalnum() and len(token) >= 16):
        raise InputError("a token must consist of at least 16 letters and digits.")
    if any(not re.fullmatch(r"[!-~]{16,}", key) for key in api_keys):
        raise InputError("an API key must consist of at least 16 ASCII characters, without spaces.")
    if api_keys and not api:
        raise InputError(
            "an API key is of use with the API only.", "Pass api=True.", command="Add --api."
        )
    try:
        checked_limits = checked(Limits, limits or {})
    except InputError as error:
        raise error.at("limits") from error
    if token is None and not is_loopback(host):
        token = secrets.token_hex(16)
    read = partial(load, **options)
    with _listening(host, port) as listener:
        served = open_models(models, read) if models else _embedded_models(read, say)
        worker = Worker(checked_limits.job_seconds, checked_limits.queued_jobs)
        for model in served:
            worker.submit(partial(_warm_up, model))
        app = make_app(
            served, worker, limits=checked_limits, host=host, token=token, reports=reports, api=api,
            keys=api_keys,
        )  # fmt: skip
        address = _address(host, listener.getsockname()[1], token)
        say(f"wherefrom serves {', '.join(served.names)} at {address} (stop with Ctrl-C)")
        if api:
            key = "an API key" if api_keys else "no key" if token is None else "the token as key"
            say(f"its API is at {address.partition('?')[0]}v1, with {key}")
        if browse:
            webbrowser.open(address)
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            with suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGINT, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            asyncio.run(serve_on(make_server(app), listener))


def make_server(app: App) -> uvicorn.Server:
    """The HTTP server of an application."""
    import uvicorn

    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


async def serve_on(
    server: uvicorn.Server, listener: socket.socket, idle_seconds: float = _IDLE_SECONDS
) -> None:
    """Serves until the server is stopped; connections that send no request are closed."""
    closing = asyncio.create_task(_close_idle(server, idle_seconds))
    try:
        await server.serve(sockets=[listener])
    finally:
        closing.cancel()


async def _close_idle(server: uvicorn.Server, seconds: float) -> None:
    """Closes connections that send no request, for whose headers uvicorn would wait forever."""
    since: dict[tuple[Any, Any], float] = {}  # by connection and its last request
    while True:
        await asyncio.sleep(seconds / 10)
        now = time.monotonic()
        open_connections: Any = server.server_state.connections
        idle = [c for c in open_connections if c.cycle is None or c.cycle.response_complete]
        since = {(c, c.cycle): since.get((c, c.cycle), now) for c in idle}
        for (connection, _), start in since.items():
            if now - start > seconds:
                connection.transport.close()


def _embedded_models(read: Callable[[str], Explainer], say: Say) -> Models:
    """All embedded models that the installed libraries can run."""
    explainers: dict[str, Explainer] = {}
    # the text model first, since a sentence is easiest to understand
    for name in sorted(embedded(), key=lambda name: (name != "sentiment", name)):
        try:
            explainers[name] = read(name)
        except WherefromError as error:
            say(f"wherefrom: skipping {name}: {error}")
    return Models(explainers)


def _warm_up(model: ServedModel) -> None:
    """Explains an example, since the first run of a model is slow."""
    for text in model.examples[:1]:
        model.explainer(text)


def _listening(host: str, port: int) -> socket.socket:
    if not 0 <= port < 2**16:
        raise InputError(f"a port is a number from 0 to 65535, got {port}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InputError(f"cannot listen on {host}, port {port}: {error}. Try --port.") from error


def _address(host: str, port: int, token: str | None) -> str:
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")
