"""Pydantic models that validate requests and describe the API."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from wherefrom import __version__
from wherefrom.errors import InputError, MethodError, TooLong, WherefromError, nearest
from wherefrom.inputs.pictures import decoded, is_image
from wherefrom.inputs.records import TextPair
from wherefrom.methods import METHODS
from wherefrom.methods.secant import Auto
from wherefrom.web.models import Models, ServedModel

DESCRIPTION = "/api/openapi.json"
API_DESCRIPTION = "/v1/openapi.json"
Data = dict[str, Any]


class Limits(BaseModel):
    """The limits of requests and of the server's memory.

    The error message of a refused request states the limit.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    body_bytes: PositiveInt = 8 << 20
    text_characters: PositiveInt = 20_000
    units: PositiveInt = 1024  # tokens, patches or atoms: cost grows with their square
    table_texts: PositiveInt = 1000  # rows of one table
    view_positions: PositiveInt = 128  # longest input for the view of all heads, in tokens
    answer_tokens: PositiveInt = 128  # generated for one request
    image_pixels: PositiveInt = 16 << 20  # once decoded
    job_seconds: NonNegativeFloat = 60.0  # running time of one job, without its time in the queue
    upload_seconds: NonNegativeFloat = 30.0  # for the body of a request to arrive
    queued_jobs: PositiveInt = 16
    key_requests: PositiveInt = 8  # at once with one key of the API
    cached_explanations: PositiveInt = 128
    cached_predictions: PositiveInt = 8
    cached_attention: PositiveInt = 1  # all maps of one input: they can be large


class NotJson(Exception):
    """The body of a request cannot be parsed."""


class TooLarge(Exception):
    """The body of a request has more bytes than the server reads."""


def method_name(name: str) -> str:
    """Checks the name of a method; methods of Captum and other libraries are not served."""
    if name not in (Auto.name, *METHODS):
        shown = name.encode("utf-8", "replace").decode()  # pydantic rejects lone surrogates
        raise MethodError(f'there is no method "{shown}"; {nearest(shown, METHODS)}')
    return name


MethodName = Annotated[
    str,
    AfterValidator(method_name),
    WithJsonSchema({"type": "string", "enum": [Auto.name, *METHODS]}),
]


class Body(BaseModel):
    """The classes with their probabilities, and the units of the input."""

    model_config = ConfigDict(strict=True)

    model: str = Field(description="The name of a served model.")
    text: str = Field("", description="A text, or a SMILES for models of molecules.")
    text_pair: str | None = Field(
        None, description="The second text of a pair: a hypothesis, a context."
    )
    image: str | None = Field(None, description="An image file in base64.")
    truncate: bool = Field(False, description="Whether a text that is too long is cut.")
    target: int | str | None = Field(
        None, description="The class to explain; the most likely by default."
    )
    against: int | str | None = Field(None, description="A class whose output is subtracted.")
    method: MethodName = Field("auto", description="The name of a method.")


class EraseBody(Body):
    """The prediction with some units erased."""

    removed: list[NonNegativeInt] = Field([], description="The indices of the units to erase.")


class CurveBody(Body):
    """The activation or pruning curve of a method."""

    curve: Literal["activation", "pruning"] = Field(description="The curve to draw.")


class AttentionBody(Body):
    """One attention map."""

    layer: PositiveInt = Field(1, description="The number of a layer, from 1 on.")
    head: NonNegativeInt = Field(
        0, description="The number of a head, from 1 on; 0 is the mean of all heads."
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
    """Lines of JSON: an answer as it is generated, then its explanation."""

    passages: list[str] = Field([], description="Texts that the answer may come from.")
    answer: str | None = Field(None, description="The answer to explain; generated by default.")
    max_new_tokens: PositiveInt = Field(48, description="The maximum number of generated tokens.")


class ApiBody(BaseModel):
    """A part of a request to the API: a field that it does not know is refused, unless empty."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {name: value for name, value in data.items() if value not in (None, [], {})}


def _joined_texts(content: Any) -> Any:
    """The text of a message's content, which may be a list of texts."""
    if not isinstance(content, list):
        return content
    texts = [block.get("text") if isinstance(block, Mapping) else None for block in content]
    if not all(isinstance(text, str) for text in texts):
        raise InputError("content: the API reads texts only, in blocks of the type text.")
    return "".join(map(str, texts))


class Message(ApiBody):
    """A chat message."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_joined_texts)] = Field(
        description="A text, or a list of texts."
    )
    sentences: list[Any] = Field([], description="Those of an earlier answer; they are not read.")


class Document(ApiBody):
    """A passage that the answer may come from; a text alone is a document, too."""

    text: str
    title: str = ""
    id: str = Field("", description="Repeated where the document is cited.")

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, data: Any) -> Any:
        return {"text": data} if isinstance(data, str) else data


class PromptBody(ApiBody):
    """A prompt for a language model: its messages, with documents if they are apart."""

    model: str = Field(description="The name of a served model.")
    messages: list[Message] = Field(description="Chat messages; the last one asks.")
    documents: list[Document] = Field([], description="Passages that the answer may come from.")
    method: MethodName = Field("auto", description="The name of a method.")
    of: Literal["contrast", "logit", "logprob"] = Field(
        "contrast", description="The explained quantity of each token of the answer."
    )


class StreamOptions(ApiBody):
    """What a stream contains."""

    include_usage: bool = Field(False, description="Whether the last chunk counts the tokens.")


class ChatBody(PromptBody):
    """Generates an answer, with the passages of each sentence, as OpenAI's chat completions."""

    max_completion_tokens: PositiveInt | None = Field(None, description="The longest answer.")
    max_tokens: PositiveInt | None = Field(None, description="An older name of the same.")
    temperature: float = Field(0.0, ge=0, le=2, description="0, the default, decodes greedily.")
    top_p: float = Field(1.0, gt=0, le=1, description="Sample from the most likely tokens.")
    seed: int | None = Field(None, description="Makes sampling reproducible.")
    stream: bool = Field(False, description="Whether the answer is sent as it is generated.")
    stream_options: StreamOptions = StreamOptions(include_usage=False)
    # they have one value here
    n: int = Field(1, ge=1, le=1)
    logprobs: Literal[False] = False
    store: Literal[False] = False
    frequency_penalty: float = Field(0.0, ge=0, le=0)
    presence_penalty: float = Field(0.0, ge=0, le=0)
    # labels of the caller, which do not change the answer
    user: str = ""
    metadata: dict[str, str] = {}


class GivenAnswerBody(PromptBody):
    """Explains an answer that came from elsewhere: the passages of each sentence."""

    answer: str | list[NonNegativeInt] = Field(description="A text or token ids of this model.")


class ExplainBody(Body):
    """Explains a prediction: the scores of the units of an input, and the ledger."""

    model_config = ConfigDict(extra="forbid")


_LINES = "application/x-ndjson"
_JSON = "application/json"
_HTML = "text/html; charset=utf-8"
ROUTES: dict[str, tuple[type[Body], str, str]] = {
    "predict": (Body, Body.__doc__ or "", _JSON),
    "explain": (Body, "The explanation by one method.", _JSON),
    "check": (Body, "The scores of a method beside Shapley values.", _JSON),
    "erase": (EraseBody, EraseBody.__doc__ or "", _JSON),
    "curve": (CurveBody, CurveBody.__doc__ or "", _JSON),
    "layers": (Body, "The relevance of each unit after each block.", _JSON),
    "attention": (AttentionBody, AttentionBody.__doc__ or "", _JSON),
    "heads": (Body, "All attention maps of a short input, one byte per weight.", _JSON),
    "compare": (MethodsBody, "One line of JSON for each method.", _LINES),
    "table": (TableBody, TableBody.__doc__ or "", _LINES),
    "html": (MethodsBody, "The explanation as an HTML file.", _HTML),
    "answer": (AnswerBody, AnswerBody.__doc__ or "", _LINES),
}
"""The body, the summary and the media type of each route that takes a request."""

B = TypeVar("B", bound=Body, covariant=True)
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class ParsedRequest(Generic[B]):
    """A validated request about one input of one model.

    `input_key` identifies the model and its input: the key of all caches.
    """

    model: ServedModel
    input: Any
    input_key: tuple[str, str, bool]
    method: str
    body: B


def parse_request(
    content: bytes, kind: type[B], models: Models, limits: Limits
) -> ParsedRequest[B]:
    """Parses and validates the content of a request."""
    body = checked(kind, json_object(content))
    model = models[body.model]
    if model.refused is not None:
        raise InputError(model.refused)
    read = _text_input if body.image is None else _image_input
    source, digest = read(body, model, limits)
    return ParsedRequest(model, source, (model.name, digest, body.truncate), body.method, body)


def json_object(content: bytes) -> Mapping[str, Any]:
    """Parses the content of a request."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise NotJson from error
    if not isinstance(data, Mapping):
        raise InputError("the request must be a JSON object.")
    return data


def checked(kind: type[M], data: Mapping[str, Any]) -> M:
    """Validates the body of a request; an error names the first wrong field."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        problems = error.errors()
        cause = problems[0].get("ctx", {}).get("error")
        if isinstance(cause, WherefromError):
            raise cause from error
        names = [_field(problem["loc"]) for problem in problems]
        if problems[0]["type"] == "extra_forbidden":
            raise InputError(f"{names[0]}: there is no such field.") from error
        alternatives = zip(names, problems, strict=True)
        reasons = dict.fromkeys(p["msg"] for n, p in alternatives if n.startswith(names[0]))
        text = " or ".join(reason[:1].lower() + reason[1:] for reason in reasons)
        raise InputError(f"{names[0]}: {text}.") from error


_NAME = re.compile(r"\w+")


def _field(location: tuple[int | str, ...]) -> str:
    """The path of a field, without the alternatives of its type that were tried."""
    path = (str(step) for step in location)
    return ".".join(step for step in path if _NAME.fullmatch(step) and step not in ("str", "int"))


def with_text(
    request: ParsedRequest[B], text: str, text_pair: str | None, limits: Limits
) -> ParsedRequest[B]:
    """The same request with a different text or pair of texts."""
    body = request.body.model_copy(update={"text": text, "text_pair": text_pair})
    content, digest = _text_input(body, request.model, limits)
    key = (request.model.name, digest, body.truncate)
    return replace(request, input=content, input_key=key, body=body)


def below(value: int, name: str, limit: int) -> int:
    """The value of the field `name`, if it is smaller than `limit`."""
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
    check_characters(texts)
    # JSON distinguishes a pair from a single text
    digest = hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode()).hexdigest()
    # image readers open texts as paths, but requests must not open files or probe for them
    if model.input_kind == "image":
        raise InputError(f"{model.name} takes images: drop one on the page.")
    if any(map(is_image, texts)):
        raise InputError("this looks like the name of an image file; the page opens no files.")
    if body.text_pair is not None and not model.takes_pairs:
        raise InputError(f"{model.name} reads a single text, but this request has two.")
    if body.text_pair is None:
        return body.text, digest
    return TextPair(body.text, body.text_pair), digest


def check_characters(texts: Sequence[str]) -> None:
    """Raises if a text has no encoding; JSON can escape such characters."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise InputError("the text contains a lone surrogate (half of a character).") from error


_ERRORS = {
    400: "The body is not JSON.",
    401: "The token is missing.",
    403: "The request comes from another site.",
    404: "There is no such file.",
    405: "The route does not allow this HTTP method.",
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
    """The OpenAPI description of a server with these models and limits."""
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


def describe_api() -> Data:
    """The OpenAPI description of the API for programs."""
    bodies: dict[str, type[BaseModel]] = {
        "/v1/chat/completions": ChatBody,
        "/v1/answers": GivenAnswerBody,
        "/v1/explain": ExplainBody,
    }
    schemas: Data = {}
    paths: Data = {"/v1/models": {"get": {"summary": "The served models."}}}
    for path, kind in bodies.items():
        schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        summary = schema.pop("description")
        content = {_JSON: {"schema": schema}}
        responses = {"200": {"description": summary}, "4XX": {"description": "An error."}}
        request = {"requestBody": {"required": True, "content": content}}
        paths[path] = {"post": {"summary": summary, **request, "responses": responses}}
    key = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "wherefrom", "version": "1"},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": key}},
        "security": [{"key": []}, {}],
    }


def _operation(summary: str, media_type: str) -> Data:
    error = {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    success: Data = {"schema": {"type": "object"}} if media_type == _JSON else {}
    responses: Data = {"200": {"description": "The answer.", "content": {media_type: success}}}
    for status, text in _ERRORS.items():
        responses[str(status)] = {"description": text, "content": error}
    return {"summary": summary, "responses": responses}


def _schema(kind: type[Body], models: Models, limits: Limits) -> Data:
    """The schema of a body, with the models and limits of this server."""
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
