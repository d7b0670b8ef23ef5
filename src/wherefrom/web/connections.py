"""The connections of a server: idle ones give way, so that those with a token always get in."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from wherefrom.web.security import App, refusal, was_let_in


@dataclass
class Connections:
    """The open connections, the oldest first.

    A connection is *strange* until the gate lets a request of it in. Of strange ones there are at
    most `most`, and at most `most_of_peer` from one address: the oldest is closed for a new one.
    """

    most: int = 128
    most_of_peer: int = 32
    head_seconds: float = 10.0  # from the opening, or the last response, to the end of the headers
    protocols: dict[HttpProtocol, None] = field(default_factory=dict)

    def add(self, protocol: HttpProtocol) -> None:
        """Registers a new connection, and closes an old one if there are too many."""
        self.protocols[protocol] = None
        strange = [other for other in self.protocols if not other.let_in]
        of_peer = [other for other in strange if other.peer == protocol.peer]
        if len(of_peer) > self.most_of_peer:
            of_peer[0].close()
        elif len(strange) > self.most:
            strange[0].close()

    def remove(self, protocol: HttpProtocol) -> None:
        """Forgets a connection that is closed."""
        self.protocols.pop(protocol, None)


class HttpProtocol(H11Protocol):
    """Closes a connection that takes long to send its headers, and refuses bad HTTP in JSON."""

    def __init__(self, *arguments: Any, open_connections: Connections, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.open_connections = open_connections
        self.let_in = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def peer(self) -> str | None:
        """The address at the other end."""
        return self.client[0] if self.client else None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.open_connections.add(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open_connections.remove(self)
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.let_in = self.let_in or was_let_in(self.scope)  # type: ignore[arg-type]
        self._watch()

    def send_400_response(self, msg: str) -> None:
        headers, body = refusal("request", "this is not valid HTTP.")
        event = h11.Response(status_code=400, headers=[*headers, (b"connection", b"close")])
        with suppress(h11.LocalProtocolError):  # a response is under way
            for part in (event, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(part) or b"")
        self.close()

    def close(self) -> None:
        """Closes the connection once what was written is sent."""
        self._stop_timer()
        self.open_connections.remove(self)
        self.transport.close()

    def _watch(self) -> None:
        """Starts the clock while headers are awaited; data that trickles in does not stop it."""
        awaited = self.cycle is None or self.cycle.response_complete
        if not awaited or self.transport.is_closing():
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.open_connections.head_seconds, self.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def make_server(app: App, connections: Connections | None = None) -> uvicorn.Server:
    """The HTTP server of an application."""
    protocol: Callable[..., Any] = partial(
        HttpProtocol, open_connections=connections or Connections()
    )
    config = uvicorn.Config(
        app,
        http=protocol,  # type: ignore[arg-type]
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


def run_server(app: App, listener: socket.socket) -> None:
    """Serves an application until it is interrupted."""
    with suppress(KeyboardInterrupt):
        make_server(app).run(sockets=[listener])
