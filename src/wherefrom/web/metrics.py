"""Counters of the server in the text format of Prometheus."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping

from wherefrom import __version__
from wherefrom.web.security import HEALTH, METRICS, App, AsgiMessage, Receive, Send

_PATHS = (HEALTH, METRICS, "/v1/answers", "/v1/chat/completions", "/v1/explain", "/v1/models")
_ABOUT = {
    "wherefrom_info": ("gauge", "The version of the server."),
    "wherefrom_jobs_queued": ("gauge", "Jobs that wait for the worker."),
    "wherefrom_job_seconds": ("summary", "Running time of jobs, without their time in the queue."),
    "wherefrom_request_seconds": ("summary", "Time from a request to the end of its response."),
    "wherefrom_requests_total": ("counter", "Responses by path and status."),
    "wherefrom_tokens_total": ("counter", "Tokens of prompts and of answers in responses."),
}


class Metrics:
    """Counters by name and labels; threads may share them."""

    def __init__(self) -> None:
        self._values: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, value: float = 1, **labels: str | int) -> None:
        """Adds to a counter. Labels are written by this server, so that none needs escapes."""
        shown = ",".join(f'{label}="{text}"' for label, text in labels.items())
        with self._lock:
            self._values[name, f"{{{shown}}}" if shown else ""] += value  # type: ignore[assignment]

    def text(self, gauges: Mapping[str, float]) -> str:
        """All counters and these gauges."""
        with self._lock:
            values = {**self._values, **{(name, ""): value for name, value in gauges.items()}}
        values["wherefrom_info", f'{{version="{__version__}"}}'] = 1
        lines = []
        for name, (kind, about) in _ABOUT.items():
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
            for (own, labels), value in sorted(values.items()):
                if own.removesuffix("_sum").removesuffix("_count") == name:
                    lines.append(f"{own}{labels} {value}")
        return "\n".join(lines) + "\n"

    def measured(self, app: App) -> App:
        """An application whose responses are counted."""

        async def counting(scope: AsgiMessage, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            start, status = time.monotonic(), 499  # until a response starts

            async def send_counted(message: AsgiMessage) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            path = scope["path"] if scope["path"] in _PATHS else "other"
            try:
                await app(scope, receive, send_counted)
            finally:
                self.add("wherefrom_requests_total", path=path, status=status)
                self.add("wherefrom_request_seconds_sum", time.monotonic() - start, path=path)
                self.add("wherefrom_request_seconds_count", path=path)

        return counting
