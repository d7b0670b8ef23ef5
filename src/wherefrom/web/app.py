"""The routes of the server: Gate → parse_request → Worker.run → Answers → JSON.

The worker runs one job at a time; parsing is part of the job, since it may need the model.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from wherefrom.answers.answer import Answer
from wherefrom.errors import FileError, InputError, ModelError, TooLong, WherefromError
from wherefrom.inputs.records import FILES, LABEL, PAIRS, TEXT
from wherefrom.methods import METHODS, Method, default_methods
from wherefrom.methods.secant import Auto
from wherefrom.show import answer as answer_view
from wherefrom.show.line_kinds import LINE_KINDS
from wherefrom.show.page import STYLE
from wherefrom.web.answers import Answers
from wherefrom.web.api import Api
from wherefrom.web.generation import OnUpdate, Question, explained
from wherefrom.web.metrics import Metrics
from wherefrom.web.models import PASSAGES, QUESTION, Models, NoSuchModel
from wherefrom.web.request import (
    API_DESCRIPTION,
    DESCRIPTION,
    ROUTES,
    AnswerBody,
    Body,
    ChatBody,
    Data,
    ExplainBody,
    GivenAnswerBody,
    Limits,
    MethodsBody,
    NotJson,
    ParsedRequest,
    PromptBody,
    TableBody,
    TooLarge,
    checked,
    describe,
    describe_api,
    json_object,
    parse_request,
    with_text,
)
from wherefrom.web.security import (
    HEALTH,
    METRICS,
    REPORT_POLICY,
    App,
    Gate,
    Reports,
    api_error,
    is_api,
    report_policy,
    retry_after,
)
from wherefrom.web.worker import QueueFull, Stopped, Worker

STATIC = Path(__file__).parent / "static"
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_LOG = logging.getLogger(__name__)
B = TypeVar("B", bound=Body)
P = TypeVar("P", bound=PromptBody)
R = TypeVar("R")
Compute = Callable[[ParsedRequest[Body]], Data]
Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


class Server:
    """The page and its JSON API."""

    def __init__(self, models: Models, worker: Worker, limits: Limits, reports: Reports) -> None:
        self.models, self.worker, self.limits, self.reports = models, worker, limits, reports
        self.answers, self.metrics = Answers(limits), Metrics()
        self.api = Api(models, self.answers, limits, self.metrics)
        self._about = _about(models, limits)
        # read at startup, so that no request opens a file
        self.static = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.is_file()}
        self.static["heatmap.css"] = STYLE.encode()
        self.static["answer.css"] = answer_view.STYLE.encode()
        self.static["answer_view.js"] = answer_view.script().encode()
        page = self.static["answer.html"].replace(b"<!-- view -->", answer_view.VIEW.encode())
        self.static["answer.html"] = page

    def routes(self) -> list[Route]:
        """All routes of the server."""
        get: dict[str, Endpoint] = {
            "/": self.page,
            "/answer": self.answer_page,
            "/static/{name}": self.static_file,
            "/api/about": self.about,
            DESCRIPTION: self.openapi,
            "/reports/{name:path}": self.report,
        }
        streamed = {
            "compare": self.compare,
            "table": self.table,
            "html": self.html,
            "answer": self.answer,
        }
        post = {f"/api/{name}": streamed.get(name) or self.json_route(name) for name in ROUTES}
        return [
            *(Route(path, _with_json_errors(route)) for path, route in get.items()),
            *(
                Route(path, _with_json_errors(route), methods=["POST"])
                for path, route in post.items()
            ),
        ]

    def api_routes(self) -> list[Route]:
        """The routes for programs."""
        get: dict[str, Endpoint] = {
            HEALTH: self.health,
            METRICS: self.metrics_text,
            "/v1/models": self.api_models,
            "/v1/models/{name}": self.api_models,
            API_DESCRIPTION: self.api_description,
        }
        post: dict[str, Endpoint] = {
            "/v1/chat/completions": self.chat,
            "/v1/answers": self.given_answer,
            "/v1/explain": self.api_explain,
        }
        return [
            *(Route(path, _with_json_errors(route)) for path, route in get.items()),
            *(
                Route(path, _with_json_errors(route, self.worker), methods=["POST"])
                for path, route in post.items()
            ),
        ]

    async def health(self, request: Request) -> Response:
        """Whether the server takes requests; it does not wait for the worker."""
        queued = {"queued": self.worker.queued}
        if self.worker.hangs:
            return JSONResponse({"status": "a job hangs", **queued}, 503)
        return JSONResponse({"status": "ok", **queued})

    async def metrics_text(self, request: Request) -> Response:
        """The counters of the server."""
        worker = self.worker
        text = self.metrics.text(
            {
                "wherefrom_jobs_queued": worker.queued,
                "wherefrom_job_seconds_sum": worker.job_seconds,
                "wherefrom_job_seconds_count": worker.jobs,
            }
        )
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def api_models(self, request: Request) -> Response:
        """The served models, or one of them."""
        name = request.path_params.get("name")
        return JSONResponse(self.api.models() if name is None else self.api.model(name))

    async def api_description(self, request: Request) -> Response:
        """The description of the API for programs in OpenAPI."""
        return JSONResponse(describe_api())

    async def chat(self, request: Request) -> Response:
        """A chat completion, or the events of one."""
        body = await self._checked(request, ChatBody)
        if not body.stream:
            job = partial(self.api.chat, body, lambda row: None)
            return JSONResponse(await self._run(request, job))

        def job_sending(on_update: OnUpdate) -> None:
            self.api.chat(body, on_update)

        rows = self._sent(job_sending, wait_for_room=False)
        # awaited before the response starts, so that an error still sets the status
        first = await _unless_disconnected(request, anext(rows))

        async def events() -> AsyncIterator[bytes]:
            async with aclosing(rows):
                yield _event(first)
                try:
                    async for row in rows:
                        yield _event(row)
                except Exception as error:
                    yield _event(_api_error(error)[1])
                yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def given_answer(self, request: Request) -> Response:
        """The passages for each sentence of an answer that came from elsewhere."""
        body = await self._checked(request, GivenAnswerBody)
        return JSONResponse(await self._run(request, partial(self.api.answer, body)))

    async def _checked(self, request: Request, kind: type[P]) -> P:
        """The body of a request to the API, checked without waiting for the worker."""
        body = checked(kind, json_object(await self._body(request)))
        self.models[body.model]  # raises if there is none
        return body

    async def api_explain(self, request: Request) -> Response:
        """The explanation of a prediction."""
        return JSONResponse(await self._answered(request, ExplainBody, self.api.explain))

    async def page(self, request: Request) -> Response:
        """The main page."""
        return Response(self.static["index.html"], media_type=_MEDIA_TYPES[".html"])

    async def answer_page(self, request: Request) -> Response:
        """The page for answers of language models."""
        return Response(self.static["answer.html"], media_type=_MEDIA_TYPES[".html"])

    async def static_file(self, request: Request) -> Response:
        """A script, style sheet or icon of the page."""
        name = request.path_params["name"]
        if name not in self.static:
            raise HTTPException(404, "there is no such file.")
        return Response(self.static[name], media_type=_MEDIA_TYPES[Path(name).suffix])

    async def about(self, request: Request) -> Response:
        """The models, methods, limits and reports of this server."""
        reports = await asyncio.to_thread(self.reports.by_name)
        return JSONResponse({**self._about, "reports": list(reports)})

    async def openapi(self, request: Request) -> Response:
        """The description of the API in OpenAPI."""
        return JSONResponse(describe(self.models, self.limits))

    async def report(self, request: Request) -> Response:
        """A report from the folder, in a sandbox."""
        content = await asyncio.to_thread(self.reports.read, request.path_params["name"])
        if content is None:
            raise HTTPException(404, "there is no such report.")
        headers = {"content-security-policy": report_policy()}
        return Response(content, media_type=_MEDIA_TYPES[".html"], headers=headers)

    def json_route(self, name: str) -> Endpoint:
        """A route that answers with one JSON object: a method of `Answers`."""
        answer: Compute = getattr(self.answers, name)

        async def respond(request: Request) -> Response:
            return JSONResponse(await self._answered(request, ROUTES[name][0], answer))

        return respond

    async def compare(self, request: Request) -> Response:
        """One line of JSON for each method, sent as soon as it is ready."""
        parsed = await self._answered(request, MethodsBody, _identity)
        methods = list(dict.fromkeys(parsed.body.methods or default_methods()))
        # computed before the response starts, so that an error still sets the status
        first = await self._run(request, lambda: self._comparison(parsed, methods[0]))

        async def lines() -> AsyncIterator[bytes]:
            yield _json_line(first)
            for method in methods[1:]:
                job = partial(self._comparison, parsed, method)
                yield await self._line({"method": method}, job)

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def table(self, request: Request) -> Response:
        """One line of JSON for each text, sent as soon as it is ready."""
        parsed = await self._answered(request, TableBody, _identity)
        texts = parsed.body.texts
        if len(texts) > self.limits.table_texts:
            raise InputError(
                f"a table may have up to {self.limits.table_texts:,} texts, got "
                f"{len(texts):,}. For more, use the command line: wherefrom corpus."
            )
        pairs = parsed.body.text_pairs
        seconds: Sequence[str | None] = [None] * len(texts) if pairs is None else pairs
        if len(seconds) != len(texts):
            raise InputError(
                f"there are {len(texts):,} texts, but {len(seconds):,} text_pairs: the lengths "
                "must be equal."
            )

        def predicted(text: str, second: str | None) -> Data:
            return self.answers.row(with_text(parsed, text, second, self.limits))

        async def lines() -> AsyncIterator[bytes]:
            for number, pair in enumerate(zip(texts, seconds, strict=True)):
                yield await self._line({"row": number}, partial(predicted, *pair))

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def answer(self, request: Request) -> Response:
        """Lines of JSON: the answer as it is generated, then its explanation."""
        # computed before the response starts, so that an error still sets the status
        question = await self._answered(
            request, AnswerBody, lambda parsed: Question.of(parsed, self.limits)
        )

        async def lines() -> AsyncIterator[bytes]:
            result: list[Answer] = []
            try:
                async for row in self._sent(
                    lambda on_text: result.append(question.answered(on_text))
                ):
                    yield _json_line(row)
                yield _json_line({"text": result[0].text})
                data: list[Data] = []
                async for row in self._sent(
                    lambda on_text: data.append(explained(result[0], on_text))
                ):
                    yield _json_line(row)
                yield _json_line(data[0])
            except Exception as error:
                yield _json_line({"error": _message(error)})

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def _sent(
        self, job: Callable[[OnUpdate], None], wait_for_room: bool = True
    ) -> AsyncGenerator[Data]:
        """The rows that a job sends while it runs; an error of the job is raised at the end."""
        rows: asyncio.Queue[Data | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def on_text(row: Data) -> None:
            loop.call_soon_threadsafe(rows.put_nowait, row)

        task = asyncio.ensure_future(self.worker.run(partial(job, on_text), wait_for_room))
        task.add_done_callback(lambda _: rows.put_nowait(None))
        try:
            while (row := await rows.get()) is not None:
                yield row
            task.result()
        finally:
            task.cancel()  # stops the job if the page was closed

    async def html(self, request: Request) -> Response:
        """The explanation as an HTML file, as the command line writes it."""

        def render(parsed: ParsedRequest[MethodsBody]) -> str:
            methods = parsed.body.methods or [parsed.method]
            return self.answers.html(parsed, list(dict.fromkeys(methods)))

        page = await self._answered(request, MethodsBody, render)
        headers = {
            "content-security-policy": REPORT_POLICY,
            "content-disposition": 'attachment; filename="wherefrom.html"',
        }
        return Response(page, media_type=_MEDIA_TYPES[".html"], headers=headers)

    def _comparison(self, parsed: ParsedRequest[Body], method: str) -> Data:
        """The explanation by one method, or the error if the method does not apply to the model."""
        try:
            return {"method": method, **self.answers.explain(replace(parsed, method=method))}
        except ModelError as error:
            return {"method": method, "error": error.for_page()}

    async def _line(self, key: Data, job: Callable[[], Data]) -> bytes:
        """A line of JSON: the result of a job, or its error."""
        try:
            return _json_line({**key, **await self.worker.run(job, wait_for_room=True)})
        except Exception as error:
            return _json_line({**key, "error": _message(error)})

    async def _answered(
        self, request: Request, kind: type[B], compute: Callable[[ParsedRequest[B]], R]
    ) -> R:
        """Parses the request and computes its answer, in one job."""
        content = await self._body(request)

        def job() -> R:
            return compute(parse_request(content, kind, self.models, self.limits))

        result: R = await self._run(request, job)
        return result

    async def _body(self, request: Request) -> bytes:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise HTTPException(415, "the content type must be application/json.")
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.limits.body_bytes:
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.upload_seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self.limits.body_bytes:
                        raise self._too_large()
        except TimeoutError:
            raise HTTPException(408, "the body of the request took too long to arrive.") from None
        return bytes(body)

    def _too_large(self) -> TooLarge:
        return TooLarge(f"a request may have up to {self.limits.body_bytes:,} bytes")

    async def _run(self, request: Request, job: Callable[[], Any]) -> Any:
        """The result of a job; the job stops when the client disconnects."""
        return await _unless_disconnected(request, self.worker.run(job))


async def _unless_disconnected(request: Request, awaited: Awaitable[R]) -> R:
    """What is awaited, which is cancelled when the client disconnects."""
    result = asyncio.ensure_future(awaited)
    disconnect = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((result, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise ClientDisconnect
        return result.result()
    finally:
        for task in (result, disconnect):
            task.cancel()
        await asyncio.wait((result, disconnect))  # wait until cancellation has taken effect


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _about(models: Models, limits: Limits) -> Data:
    return {
        "models": [
            {
                "name": model.name,
                "input_kind": model.input_kind,
                "input_label": model.input_label,
                "takes_pairs": model.takes_pairs,
                "labels": model.explainer.labels(),
                "examples": list(model.examples),
                "answers": model.answers,
            }
            for model in models
        ],
        "default_method": _about_method(Auto),
        "methods": [_about_method(kind) for kind in METHODS.values()],
        "line_kinds": {kind: about._asdict() for kind, about in LINE_KINDS.items()},
        "columns": {
            "text": [name for name in TEXT if name not in FILES],
            "label": LABEL,
            "pairs": PAIRS,
        },
        "limits": {
            "text_characters": limits.text_characters,
            "answer_tokens": limits.answer_tokens,
            "table_texts": limits.table_texts,
        },
        "example": {"question": QUESTION, "passages": list(PASSAGES)},
    }


def _about_method(kind: type[Method]) -> Data:
    summary = (kind.__doc__ or "").strip().splitlines()[0]
    return {"name": kind.name, "summary": summary, "paper": kind.paper}


def _event(row: Data) -> bytes:
    """A server-sent event."""
    return b"data: " + _json_line(row) + b"\n"


def _json_line(row: Data) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _describe(error: Exception) -> tuple[int, Data]:
    """The status and the JSON body for an error."""
    status, kind = 500, "internal"
    message = "an error occurred in the server; its terminal shows the details."
    if isinstance(error, QueueFull):
        status, kind, message = 503, "busy", "the server is busy: try again shortly."
    elif isinstance(error, Stopped):
        status, kind, message = 504, "time", f"{error}."
    elif isinstance(error, TooLarge):
        status, kind, message = 413, "size", f"{error}."
    elif isinstance(error, NotJson):
        status, kind, message = 400, "request", "the request body is not valid JSON."
    elif isinstance(error, HTTPException):
        status, kind, message = error.status_code, "request", str(error.detail)
    elif isinstance(error, WherefromError) and not isinstance(error, FileError):
        status, kind, message = 422, type(error).__name__, error.for_page()
    else:
        _LOG.error("a request failed", exc_info=error)
    printable = message.encode(
        "utf-8", "replace"
    ).decode()  # the message may quote a lone surrogate
    return status, {"error": {"kind": kind, "message": printable}}


def _api_error(error: Exception) -> tuple[int, Data]:
    """The status and the JSON body for an error of the API."""
    status, content = _describe(error)
    kind, message = content["error"]["kind"], content["error"]["message"]
    if isinstance(error, NoSuchModel):
        return 404, api_error(404, "model_not_found", message)
    kind = "context_length_exceeded" if isinstance(error, TooLong) else kind
    status = 400 if status == 422 else status
    return status, api_error(status, kind, message)


def _identity(value: R) -> R:
    return value


def _message(error: Exception) -> str:
    message: str = _describe(error)[1]["error"]["message"]
    return message


def _with_json_errors(endpoint: Endpoint, worker: Worker | None = None) -> Endpoint:
    """An endpoint that returns every error as JSON; with a worker, its queue says when to retry."""

    async def respond(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:
            return await _error_response(request, error, 1 if worker is None else worker.wait)

    return respond


async def _error_response(request: Request, error: Exception, retry_seconds: float = 1) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)
    api = is_api(request.url.path)
    status, content = (_api_error if api else _describe)(error)
    headers = dict(getattr(error, "headers", None) or {})  # such as the allowed HTTP methods
    if status == 503:
        headers["retry-after"] = retry_after(retry_seconds)
    if status == 504 and api:
        headers["x-should-retry"] = "false"  # OpenAI's clients would repeat what takes too long
    return JSONResponse(content, status, headers)


def make_app(
    models: Models,
    worker: Worker,
    *,
    limits: Limits | None = None,
    host: str = "127.0.0.1",
    token: str | None = None,
    reports: Path | None = None,
    api: bool = False,
    keys: Sequence[str] = (),
) -> App:
    """The server as an ASGI application; the API for programs has these keys, or the token."""
    limits = limits or Limits()
    server = Server(models, worker, limits, Reports(reports))
    routes = server.routes() + (server.api_routes() if api else [])
    app = Starlette(routes=routes, exception_handlers={HTTPException: _error_response})
    if not api:
        return Gate(app, host, token)
    keys = tuple(keys) or (() if token is None else (token,))
    gate = Gate(app, host, token, keys, limits.key_requests, lambda: worker.wait)
    return server.metrics.measured(gate)
