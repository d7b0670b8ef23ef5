"""The routes: what is asked goes to the worker, what comes back is JSON."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from wherefrom.errors import FileError, ModelError, WherefromError
from wherefrom.methods import METHODS
from wherefrom.show.page import STYLE
from wherefrom.web.answers import Desk
from wherefrom.web.limits import Limits, TooLarge
from wherefrom.web.models import Shelf
from wherefrom.web.reports import Reports, policy
from wherefrom.web.request import Question, methods, question
from wherefrom.web.security import REPORT, App, Gate
from wherefrom.web.worker import Busy, Stopped, Worker

STATIC = Path(__file__).parent / "static"
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_LOG = logging.getLogger(__name__)
Answer = Callable[[Question, Mapping[str, Any]], dict[str, Any]]
Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


class Pages:
    """The page and its interface, over one shelf of models."""

    def __init__(self, shelf: Shelf, worker: Worker, limits: Limits, reports: Reports) -> None:
        self.shelf, self.worker, self.limits, self.reports = shelf, worker, limits, reports
        self.desk = Desk(limits)
        self.about = _about(shelf, limits)
        # read once: no request opens a file of the page
        self.static = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.is_file()}
        self.static["heat.css"] = STYLE.encode()

    def routes(self) -> list[Route]:
        """Every address there is."""
        desk = self.desk
        answers: dict[str, Answer] = {
            "predict": desk.predict,
            "explain": desk.explain,
            "erase": desk.erase,
            "curve": desk.curve,
            "layers": desk.layers,
            "attention": desk.attention,
        }
        gets = {
            "/": self.page,
            "/static/{name}": self.file,
            "/api/about": self.tell,
            "/reports/{name:path}": self.report,
        }
        posts: dict[str, Endpoint] = {"/api/compare": self.compare, "/api/page": self.save}
        posts |= {f"/api/{name}": self.answering(answer) for name, answer in answers.items()}
        return [
            *(Route(path, _telling(get)) for path, get in gets.items()),
            *(Route(path, _telling(post), methods=["POST"]) for path, post in posts.items()),
        ]

    async def page(self, request: Request) -> Response:
        """The one page."""
        return Response(self.static["index.html"], media_type=_KINDS[".html"])

    async def file(self, request: Request) -> Response:
        """A script or a style of the page."""
        name = request.path_params["name"]
        if name not in self.static:
            raise HTTPException(404, "there is no such file.")
        return Response(self.static[name], media_type=_KINDS[Path(name).suffix])

    async def tell(self, request: Request) -> Response:
        """Models, methods, examples and limits."""
        reports = await asyncio.to_thread(self.reports.found)
        return JSONResponse({**self.about, "reports": list(reports)})

    async def report(self, request: Request) -> Response:
        """A page that was written before, which may run nothing."""
        page = await asyncio.to_thread(self.reports.read, request.path_params["name"])
        if page is None:
            raise HTTPException(404, "there is no such report.")
        return Response(page, media_type=_KINDS[".html"], headers=_with(policy()))

    def answering(self, answer: Answer) -> Endpoint:
        """A route that answers one question with one object."""

        async def respond(request: Request) -> Response:
            body = await self._body(request)
            return JSONResponse(await self._do(request, lambda: answer(*self._asked(body))))

        return respond

    async def compare(self, request: Request) -> Response:
        """All methods, a line of JSON each as soon as it is ready."""
        body = await self._body(request)
        asked, data = await self._do(request, lambda: self._asked(body))
        chosen = methods(data, METHODS)
        # the first line is made before the answer starts, so that what is wrong has its status
        first = await self._do(request, lambda: self._line(asked, chosen[0]))

        async def lines() -> AsyncIterator[bytes]:
            yield _line(first)
            for name in chosen[1:]:
                try:
                    row = await self.worker.do(partial(self._line, asked, name), patient=True)
                except Exception as error:
                    row = {"method": name, "left_out": _told(error)[1]["error"]["message"]}
                yield _line(row)

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    def _line(self, asked: Question, method: str) -> dict[str, Any]:
        try:
            return {"method": method, **self.desk.explain(replace(asked, method=method), {})}
        except ModelError as error:  # this model has no use for the method
            return {"method": method, "left_out": str(error)}

    async def save(self, request: Request) -> Response:
        """The explanation as the file that the command line writes."""
        body = await self._body(request)

        def page() -> str:
            asked, data = self._asked(body)
            return self.desk.page(asked, methods(data, [asked.method]))

        headers = {**_with(REPORT), "content-disposition": 'attachment; filename="wherefrom.html"'}
        made = await self._do(request, page)
        return Response(made, media_type=_KINDS[".html"], headers=headers)

    def _asked(self, body: bytes) -> tuple[Question, Mapping[str, Any]]:
        try:
            data = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, "the request is no JSON.") from error
        return question(data, self.shelf, self.limits), data

    async def _body(self, request: Request) -> bytes:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise HTTPException(415, "send application/json.")
        stated = request.headers.get("content-length", "0")
        if stated.isdigit() and int(stated) > self.limits.body:
            raise TooLarge
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self.limits.body:
                raise TooLarge
        return bytes(body)

    async def _do(self, request: Request, work: Callable[[], Any]) -> Any:
        """The work's result; when whoever asked goes away, it is stopped."""
        working = asyncio.ensure_future(self.worker.do(work))
        leaving = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientDisconnect
            return working.result()
        finally:
            for task in (working, leaving):
                task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _about(shelf: Shelf, limits: Limits) -> dict[str, Any]:
    return {
        "models": [
            {
                "name": shown.name,
                "takes": shown.takes,
                "labels": shown.explainer.labels(),
                "prompt": shown.prompt,
                "examples": list(shown.examples),
            }
            for shown in shelf.models.values()
        ],
        "methods": [
            {
                "name": name,
                "sentence": (kind.__doc__ or "").strip().splitlines()[0],
                "paper": kind.paper,
            }
            for name, kind in METHODS.items()
        ],
        "limits": {"text": limits.text, "body": limits.body, "seconds": limits.seconds},
    }


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _with(policy: str) -> dict[str, str]:
    return {"content-security-policy": policy}


def _told(error: Exception) -> tuple[int, dict[str, Any]]:
    """The status and the words for what went wrong."""
    status, kind, message = 500, "internal", "something went wrong inside; the terminal says what."
    if isinstance(error, Busy):
        status, kind, message = 503, "busy", "busy: too many questions at once. Try again shortly."
    elif isinstance(error, Stopped):
        status, kind, message = 504, "time", f"{error}."
    elif isinstance(error, TooLarge):
        status, kind, message = 413, "size", "the request is too large for this page."
    elif isinstance(error, HTTPException):
        status, kind, message = error.status_code, "request", str(error.detail)
    elif isinstance(error, WherefromError) and not isinstance(error, FileError):
        status, kind, message = 422, type(error).__name__, str(error)
    else:
        _LOG.error("a question failed", exc_info=error)
    whole = message.encode("utf-8", "replace").decode()  # it may quote half of a character
    return status, {"error": {"kind": kind, "message": whole}}


def _telling(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with whatever goes wrong told in JSON."""

    async def respond(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:
            return await _tell(request, error)

    return respond


async def _tell(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):  # nobody will read it
        return Response(status_code=499)
    status, words = _told(error)
    return JSONResponse(words, status, {"retry-after": "1"} if status == 503 else {})


def make_app(
    shelf: Shelf,
    worker: Worker,
    *,
    limits: Limits | None = None,
    host: str = "127.0.0.1",
    token: str | None = None,
    reports: Path | None = None,
) -> App:
    """The whole server but its socket."""
    pages = Pages(shelf, worker, limits or Limits(), Reports(reports))
    app = Starlette(routes=pages.routes(), exception_handlers={HTTPException: _tell})
    return Gate(app, host, token)
