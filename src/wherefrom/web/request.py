"""Pydantic models of the requests, which check them and from which the API is described."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    WithJsonSchema,
)

from wherefrom import __version__
from wherefrom.errors import InputError, MethodError, TooLong, WherefromError, nearest
from wherefrom.inputs.pictures import decoded, is_image
from wherefrom.inputs.records import TextPair
from wherefrom.methods import METHODS
from wherefrom.web.models import Models, ServedModel

DESCRIPTION = "/api/openapi.json"
Data = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """How large a request may be, and how much a server keeps in memory.

    The error message of a refused request states the limit.
    """

    body_bytes: int = 8 << 20
    text_characters: int = 20_000
    units: int = 1024  # tokens, patches or atoms: work and memory grow with their square
    table_texts: int = 1000  # rows of one table
    view_positions: int = 128  # tokens of an input whose heads are all shown at once
    answer_tokens: int = 128  # that a model generates for one request
    image_pixels: int = 16 << 20  # once decoded
    job_seconds: float = 60.0  # running time of one job, its time in the queue not counted
    upload_seconds: float = 30.0  # for the body of a request to arrive
    queued_jobs: int = 16
    cached_explanations: int = 128
    cached_predictions: int = 8
    cached_attention: int = 1  # all maps of one input: they can be large


class NotJson(Exception):
    """The body of a request cannot be parsed."""


class TooLarge(Exception):
    """The body of a request has more bytes than the server reads."""


def method_name(name: str) -> str:
    """Checks the name of a method; classes of other libraries are not served."""
    if name not in METHODS:
        shown = name.encode("utf-8", "replace").decode()  # pydantic takes no half of a character
        raise MethodError(f'there is no method "{shown}"; {nearest(shown, METHODS)}')
    return name


MethodName = Annotated[
    str,
    AfterValidator(method_name),
    WithJsonSchema({"type": "string", "enum": list(METHODS)}),
]


class Body(BaseModel):
    """The classes with their probabilities, and the units of the input."""

    model_config = ConfigDict(strict=True)

    model: str = Field(description="The name of a served model.")
    text: str = Field("", description="A text or a SMILES, for such a model.")
    text_pair: str | None = Field(
        None, description="The second text of a pair: a hypothesis, a context."
    )
    image: str | None = Field(None, description="An image file in base64.")
    truncate: bool = Field(False, description="Whether a text that is too long is cut.")
    target: int | str | None = Field(
        None, description="The class to explain; the most likely by default."
    )
    against: int | str | None = Field(None, description="A class whose output is subtracted.")
    method: MethodName = Field("lrp", description="The name of a method.")


class EraseBody(Body):
    """The prediction with some units erased."""

    removed: list[NonNegativeInt] = Field([], description="The numbers of the units to erase.")


class CurveBody(Body):
    """The activation or pruning curve of a method."""

    curve: Literal["activation", "pruning"] = Field(description="The curve to draw.")


class AttentionBody(Body):
    """One attention map."""

    layer: PositiveInt = Field(1, description="The number of a layer, from 1 on.")
    head: NonNegativeInt = Field(
        0, description="The number of a head from 1 on; 0 is the mean of all."
    )


class MethodsBody(Body):
    """The explanations by several methods."""

    methods: list[MethodName] | None = Field(None, description="The names of methods.")


class TableBody(Body):
    """One line of JSON with the prediction for each text."""

    texts: list[str] = Field([], description="Texts, each a row of the table.")
    text_pairs: list[str] | None = Field(
        None, description="The second text of each row, in a table of pairs."
    )


class AnswerBody(Body):
    """Lines of JSON: an answer as it is generated, then where it comes from."""

    passages: list[str] = Field([], description="Texts that the answer may come from.")
    answer: str | None = Field(
        None, description="The answer to explain; the model's own by default."
    )
    max_new_tokens: PositiveInt = Field(48, description="The longest answer that is generated.")


_LINES = "application/x-ndjson"
_JSON = "application/json"
_HTML = "text/html; charset=utf-8"
ROUTES: dict[str, tuple[type[Body], str, str]] = {
    "predict": (Body, Body.__doc__ or "", _JSON),
    "explain": (Body, "The explanation by one method.", _JSON),
    "erase": (EraseBody, EraseBody.__doc__ or "", _JSON),
    "curve": (CurveBody, CurveBody.__doc__ or "", _JSON),
    "layers": (Body, "The relevance of each unit after each block.", _JSON),
    "attention": (AttentionBody, AttentionBody.__doc__ or "", _JSON),
    "heads": (Body, "All attention maps of a short input, a byte for each weight.", _JSON),
    "compare": (MethodsBody, "One line of JSON for each method.", _LINES),
    "table": (TableBody, TableBody.__doc__ or "", _LINES),
    "html": (MethodsBody, "The explanation as an HTML file.", _HTML),
    "answer": (AnswerBody, AnswerBody.__doc__ or "", _LINES),
}
"""The body, the summary and the media type of each route that takes a request."""

B = TypeVar("B", bound=Body, covariant=True)


@dataclass(frozen=True)
class ParsedRequest(Generic[B]):
    """One input of one model, and what to explain about it.

    `input_key` identifies the model and the input as the model reads it: the key of all caches.
    """

    model: ServedModel
    input: Any
    input_key: tuple[str, str, bool]
    method: str
    body: B


def parse_request(
    content: bytes, kind: type[B], models: Models, limits: Limits
) -> ParsedRequest[B]:
    """The checked content of a request."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise NotJson from error
    if not isinstance(data, Mapping):
        raise InputError("the request must be a JSON object.")
    body = checked(kind, data)
    model = models[body.model]
    if model.refused is not None:
        raise InputError(model.refused)
    read = _text_input if body.image is None else _image_input
    source, digest = read(body, model, limits)
    return ParsedRequest(model, source, (model.name, digest, body.truncate), body.method, body)


def checked(kind: type[B], data: Mapping[str, Any]) -> B:
    """The body of a request, or an error that names the first wrong field."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        problems = error.errors()
        name = problems[0]["loc"][0]
        own = problems[0].get("ctx", {}).get("error")
        if isinstance(own, WherefromError):
            raise own from error
        reasons = dict.fromkeys(p["msg"] for p in problems if p["loc"][0] == name)
        text = " or ".join(reason[:1].lower() + reason[1:] for reason in reasons)
        raise InputError(f"{name}: {text}.") from error


def with_text(
    request: ParsedRequest[B], text: str, text_pair: str | None, limits: Limits
) -> ParsedRequest[B]:
    """The same request about another text, or another pair of texts."""
    body = request.body.model_copy(update={"text": text, "text_pair": text_pair})
    content, digest = _text_input(body, request.model, limits)
    key = (request.model.name, digest, body.truncate)
    return replace(request, input=content, input_key=key, body=body)


def below(value: int, name: str, limit: int) -> int:
    """The field `name`, if it is smaller than `limit`."""
    if value >= limit:
        raise InputError(f"{name} must be an integer from 0 to {limit - 1}, got {value}.")
    return value


def _image_input(body: Body, model: ServedModel, limits: Limits) -> tuple[Any, str]:
    """The picture of a request with the digest of its bytes."""
    if model.input_kind != "image":
        raise InputError(f"{model.name} takes text, not images.")
    try:
        content = base64.b64decode(body.image or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError("the image is not valid base64.") from error
    return decoded(content, limits.image_pixels), hashlib.sha256(content).hexdigest()


def _text_input(body: Body, model: ServedModel, limits: Limits) -> tuple[str | TextPair, str]:
    """The text of a request, or its pair of texts, with the digest."""
    texts = [body.text] if body.text_pair is None else [body.text, body.text_pair]
    length = sum(map(len, texts))
    if length > limits.text_characters:
        raise TooLong(
            f"this text has {length:,} characters; the page accepts up to "
            f"{limits.text_characters:,}. Explain a part of it, or use the command line."
        )
    try:
        # JSON distinguishes a pair from a single text
        digest = hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise InputError("the text contains half of a character (a lone surrogate).") from error
    # an image reader opens a text as a path: no request may open a file or learn that it exists
    if model.input_kind == "image":
        raise InputError(f"{model.name} takes images: drop one on the page.")
    if any(map(is_image, texts)):
        raise InputError("this looks like the name of an image file; the page opens no files.")
    if body.text_pair is not None and not model.takes_pairs:
        raise InputError(f"{model.name} reads one text, and this request has two.")
    if body.text_pair is None:
        return body.text, digest
    return TextPair(body.text, body.text_pair), digest


_ERRORS = {
    400: "The body is not JSON.",
    401: "The token is missing.",
    403: "The request comes from another site.",
    404: "There is no such file.",
    405: "The route has another HTTP method.",
    408: "The body took too long to arrive.",
    413: "The body is too large.",
    415: "The content type is not application/json.",
    421: "The server has another host name.",
    422: "The request cannot be answered: the message says why.",
    503: "Too many requests are waiting.",
    504: "The job took too long.",
}
_TEXT = {"type": "string"}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["kind", "message"],
            "properties": {"kind": _TEXT, "message": _TEXT},
        }
    },
}


def describe(models: Models, limits: Limits) -> Data:
    """The API of a server with these models and limits, in OpenAPI."""
    paths: Data = {
        "/api/about": {"get": _operation("The models, methods, limits and reports.", _JSON)},
        DESCRIPTION: {"get": _operation("This description.", _JSON)},
    }
    for route, (kind, summary, media_type) in ROUTES.items():
        content = {_JSON: {"schema": _schema(kind, models, limits)}}
        request = {"requestBody": {"required": True, "content": content}}
        paths[f"/api/{route}"] = {"post": {**_operation(summary, media_type), **request}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "wherefrom",
            "version": __version__,
            "description": "The API behind the page of `wherefrom serve`. It may change.",
        },
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}},
    }


def _operation(summary: str, media_type: str) -> Data:
    error = {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    success: Data = {"schema": {"type": "object"}} if media_type == _JSON else {}
    responses: Data = {"200": {"description": "The answer.", "content": {media_type: success}}}
    for status, text in _ERRORS.items():
        responses[str(status)] = {"description": text, "content": error}
    return {"summary": summary, "responses": responses}


def _schema(kind: type[Body], models: Models, limits: Limits) -> Data:
    """The schema of a body, with what this server serves."""
    schema = kind.model_json_schema()
    examples = [text for model in models for text in model.examples[:1]]
    served: dict[str, Data] = {
        "model": {"enum": models.names},
        "text": {"maxLength": limits.text_characters, "examples": examples},
        "text_pair": {"maxLength": limits.text_characters},
        "image": {"contentEncoding": "base64"},
        "texts": {"maxItems": limits.table_texts},
        "text_pairs": {"maxItems": limits.table_texts},
        "max_new_tokens": {"maximum": limits.answer_tokens},
    }
    for name, field in schema["properties"].items():
        field.update(served.get(name, {}))
    return schema
