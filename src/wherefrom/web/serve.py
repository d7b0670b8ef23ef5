"""Runs the page: loads the models, opens the socket, says where to look."""

from __future__ import annotations

import secrets
import socket
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from wherefrom.errors import FileError, InputError, MissingExtra, WherefromError
from wherefrom.explain import Explainer
from wherefrom.loading import load
from wherefrom.models.embedded import embedded
from wherefrom.web.limits import Limits
from wherefrom.web.models import Shelf, Shown, opened
from wherefrom.web.security import is_loopback
from wherefrom.web.worker import Worker

Say = Callable[[str], None]


def serve(
    models: Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    reports: Path | None = None,
    browse: bool = False,
    say: Say = print,
) -> None:
    """Serves the page until it is interrupted.

    Without models it shows the embedded ones. A host that others can reach needs a token; one is
    made up if none is given.
    """
    for library in ("starlette", "uvicorn"):
        if find_spec(library) is None:
            raise MissingExtra(library, "web", "the web page")
    import uvicorn

    from wherefrom.web.app import make_app

    if reports is not None and not reports.is_dir():
        raise FileError(f"{reports} is no folder of reports.")
    if token is not None and not (token.isascii() and token.isalnum() and len(token) >= 16):
        raise InputError("a token has at least 16 letters and digits.")
    if token is None and not is_loopback(host):
        token = secrets.token_hex(16)
    with _listening(host, port) as listener:
        shelf = opened(models, load) if models else _embedded(say)
        limits = Limits()
        worker = Worker(limits.seconds, limits.waiting)
        for shown in shelf.models.values():
            worker.submit(partial(_warm, shown))
        app = make_app(shelf, worker, limits=limits, host=host, token=token, reports=reports)
        address = _address(host, listener.getsockname()[1], token)
        say(f"wherefrom looks at {', '.join(shelf.models)}: open {address} (end with Ctrl-C)")
        if browse:
            webbrowser.open(address)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=128,
            timeout_graceful_shutdown=2,
        )
        with suppress(KeyboardInterrupt):  # the way to end it
            uvicorn.Server(config).run(sockets=[listener])


def _embedded(say: Say) -> Shelf:
    """All embedded models that can be explained with what is installed."""
    found: dict[str, Explainer] = {}
    # a sentence is what a newcomer takes in at a glance, so that comes first
    for name in sorted(embedded(), key=lambda name: (name != "sentiment", name)):
        try:
            found[name] = load(name)
        except WherefromError as error:
            say(f"wherefrom: {name} is left out: {error}")
    return Shelf(found)


def _warm(shown: Shown) -> None:
    """The first run of a model is slow: it is made before a person waits for it."""
    for text in shown.examples[:1]:
        shown.explainer(text)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot listen on {host}, port {port}: {error}. Try --port.") from error


def _address(host: str, port: int, token: str | None) -> str:
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")
