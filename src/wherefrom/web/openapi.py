"""The description of the API in OpenAPI, from the table of fields that requests are checked by."""

from __future__ import annotations

from typing import Any

from wherefrom import __version__
from wherefrom.web.fields import COMMON, FIELDS, ROUTE_FIELDS
from wherefrom.web.limits import Limits
from wherefrom.web.models import Models

Data = dict[str, Any]
PATH = "/api/openapi.json"
_SUMMARIES = {
    "predict": "The classes with their probabilities, and the units of the input.",
    "explain": "The explanation by one method.",
    "erase": "The prediction with some units erased.",
    "curve": "The activation or pruning curve of a method.",
    "layers": "The relevance of each unit after each block.",
    "attention": "One attention map.",
    "heads": "All attention maps of a short input, a byte for each weight.",
    "compare": "One line of JSON for each method.",
    "table": "One line of JSON with the prediction for each text.",
    "html": "The explanation as an HTML file.",
    "answer": "Lines of JSON: an answer as it is generated, then where it comes from.",
}
_JSON = "application/json"
_MEDIA_TYPES = {
    "answer": "application/x-ndjson",
    "compare": "application/x-ndjson",
    "table": "application/x-ndjson",
    "html": "text/html; charset=utf-8",
}
_ERRORS = {
    400: "The body is not JSON.",
    401: "The token is missing.",
    403: "The request comes from another site.",
    404: "There is no such file.",
    405: "The method of HTTP is another.",
    408: "The body took too long to arrive.",
    413: "The body is too large.",
    415: "The content type is not application/json.",
    421: "The server has another host name.",
    422: "The request cannot be answered: the message says why.",
    503: "Too many requests are waiting.",
    504: "The job took too long.",
}


def describe(models: Models, limits: Limits) -> Data:
    """The API of a server with these models and limits."""
    paths: Data = {
        "/api/about": {"get": _operation("The models, methods, limits and reports.", _JSON)},
        PATH: {"get": _operation("This description.", _JSON)},
    }
    for route, summary in _SUMMARIES.items():
        content = {_JSON: {"schema": _body(route, models, limits)}}
        paths[f"/api/{route}"] = {
            "post": {
                **_operation(summary, _MEDIA_TYPES.get(route, _JSON)),
                "requestBody": {"required": True, "content": content},
            }
        }
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


_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["kind", "message"],
            "properties": {"kind": {"type": "string"}, "message": {"type": "string"}},
        }
    },
}


def _operation(summary: str, media_type: str) -> Data:
    error = {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    success: Data = {"schema": {"type": "object"}} if media_type == _JSON else {}
    responses: Data = {"200": {"description": "The answer.", "content": {media_type: success}}}
    for status, text in _ERRORS.items():
        responses[str(status)] = {"description": text, "content": error}
    return {"summary": summary, "responses": responses}


def _body(route: str, models: Models, limits: Limits) -> Data:
    """The schema of a request body: that of its fields, with what this server serves."""
    required = ["model", *(["curve"] if route == "curve" else [])]
    properties: Data = {
        name: {**FIELDS[name].schema, "description": FIELDS[name].meaning}
        for name in (*COMMON, *ROUTE_FIELDS[route])
    }
    properties["model"]["enum"] = models.names
    for name in ("text", "text_pair"):
        properties[name]["maxLength"] = limits.text_characters
    properties["text"]["examples"] = [text for model in models for text in model.examples[:1]]
    properties["image"]["contentEncoding"] = "base64"
    for name in {"texts", "text_pairs"} & set(properties):
        properties[name]["maxItems"] = limits.table_texts
    if "max_new_tokens" in properties:
        properties["max_new_tokens"]["maximum"] = limits.answer_tokens
    return {"type": "object", "required": required, "properties": properties}
