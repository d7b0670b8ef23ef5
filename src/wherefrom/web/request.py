"""Parses the body of a request and checks it before any model runs."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from wherefrom.core.output_names import TargetSpec
from wherefrom.errors import InputError, MethodError, TooLong, nearest
from wherefrom.inputs.pictures import decoded, is_image
from wherefrom.inputs.records import TextPair
from wherefrom.methods import METHODS
from wherefrom.web.fields import FIELDS, matches
from wherefrom.web.limits import Limits
from wherefrom.web.models import Models, ServedModel


class NotJson(Exception):
    """The body of a request cannot be parsed."""


class TooLarge(Exception):
    """The body of a request has more bytes than the server reads."""


@dataclass(frozen=True)
class ParsedRequest:
    """One input of one model, and what to explain about it.

    `input_key` identifies the model and the input as the model reads it: the key of all caches.
    `data` is the whole body, for the fields that only one route reads.
    """

    model: ServedModel
    input: Any
    input_key: tuple[str, str, bool]
    method: str
    target: TargetSpec
    against: TargetSpec
    truncate: bool
    data: Mapping[str, Any]


def parse_request(body: bytes, models: Models, limits: Limits) -> ParsedRequest:
    """The checked content of a request body."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NotJson from error
    if not isinstance(data, Mapping):
        raise InputError("the request must be a JSON object.")
    model = models[_text(data, "model")]
    if model.refused is not None:
        raise InputError(model.refused)
    truncate = FIELDS["truncate"].read(data)
    content, digest = (
        _image_input(data, model, limits) if "image" in data else _text_input(data, model, limits)
    )
    return ParsedRequest(
        model=model,
        input=content,
        input_key=(model.name, digest, truncate),
        method=method_name(data.get("method", FIELDS["method"].schema["default"])),
        target=FIELDS["target"].read(data),
        against=FIELDS["against"].read(data),
        truncate=truncate,
        data=data,
    )


def with_text(
    request: ParsedRequest, text: str, text_pair: str | None, limits: Limits
) -> ParsedRequest:
    """The same request about another text, or another pair of texts."""
    data = {**request.data, "text": text, "text_pair": text_pair}
    content, digest = _text_input(data, request.model, limits)
    key = (request.model.name, digest, request.truncate)
    return replace(request, input=content, input_key=key)


def method_name(name: Any) -> str:
    """The checked name of a method; classes of other libraries are not served."""
    if not isinstance(name, str) or name not in METHODS:
        raise MethodError(f'there is no method "{name}"; {nearest(str(name), METHODS)}')
    return name


def method_names(data: Mapping[str, Any], default: Iterable[str]) -> list[str]:
    """The distinct names in the field `methods`."""
    names = data.get("methods")
    if isinstance(names, list):
        names = [method_name(name) for name in names]
    return list(dict.fromkeys(FIELDS["methods"].check(names) or default))


def integer(data: Mapping[str, Any], name: str, limit: int) -> int:
    """The field `name`, an integer from 0 to `limit` − 1."""
    return _below(FIELDS[name].read(data), name, limit)


def integers(data: Mapping[str, Any], name: str, limit: int) -> list[int]:
    """The field `name`, distinct integers from 0 to `limit` − 1."""
    return sorted({_below(value, name, limit) for value in FIELDS[name].read(data)})


def _below(value: int, name: str, limit: int) -> int:
    if value >= limit:
        raise InputError(f"{name} must be an integer from 0 to {limit - 1}, got {value}.")
    return value


def _image_input(data: Mapping[str, Any], model: ServedModel, limits: Limits) -> tuple[Any, str]:
    """The picture of a request with the digest of its bytes."""
    if model.input_kind != "image":
        raise InputError(f"{model.name} takes text, not images.")
    try:
        content = base64.b64decode(_text(data, "image"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError("the image is not valid base64.") from error
    return decoded(content, limits.image_pixels), hashlib.sha256(content).hexdigest()


def _text_input(
    data: Mapping[str, Any], model: ServedModel, limits: Limits
) -> tuple[str | TextPair, str]:
    """The text of a request, or its pair of texts, with the digest."""
    text, second = _text(data, "text"), FIELDS["text_pair"].read(data)
    texts = [text] if second is None else [text, second]
    length = sum(map(len, texts))
    if length > limits.text_characters:
        raise TooLong(
            f"this text has {length:,} characters; the page accepts up to "
            f"{limits.text_characters:,}. Explain a part of it, or use the command line."
        )
    try:
        # as JSON, in which no pair is written as a text is
        written = json.dumps(text if second is None else texts, ensure_ascii=False)
        digest = hashlib.sha256(written.encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise InputError("the text contains half of a character (a lone surrogate).") from error
    # a model of images opens a text as a path: no request may name one, nor learn whether it exists
    if model.input_kind == "image":
        raise InputError(f"{model.name} takes images: drop one on the page.")
    if any(map(is_image, texts)):
        raise InputError("this looks like the name of an image file; the page opens no files.")
    if second is None:
        return text, digest
    if not model.takes_pairs:
        raise InputError(f"{model.name} reads one text, and this request has two.")
    return TextPair(text, second), digest


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not matches(value, FIELDS[name].schema):
        raise InputError(f"the request needs {name}, as a string.")
    return str(value)
