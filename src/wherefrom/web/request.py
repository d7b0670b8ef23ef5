"""Parses the body of a request and checks it before any model runs."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from wherefrom.errors import InputError, MethodError, TooLong, nearest
from wherefrom.inputs.pictures import decoded, is_image
from wherefrom.methods import METHODS
from wherefrom.naming import TargetSpec
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
    truncate = data.get("truncate", False)
    if not isinstance(truncate, bool):
        raise InputError("truncate must be true or false.")
    content, digest = (
        _image_input(data, model, limits) if "image" in data else _text_input(data, model, limits)
    )
    return ParsedRequest(
        model=model,
        input=content,
        input_key=(model.name, digest, truncate),
        method=method_name(data.get("method", "lrp")),
        target=_class(data, "target"),
        against=_class(data, "against"),
        truncate=truncate,
        data=data,
    )


def method_name(name: Any) -> str:
    """The checked name of a method; classes of other libraries are not served."""
    if not isinstance(name, str) or name not in METHODS:
        raise MethodError(f'there is no method "{name}"; {nearest(str(name), METHODS)}')
    return name


def method_names(data: Mapping[str, Any], default: Iterable[str]) -> list[str]:
    """The distinct names in the field `methods`."""
    names = data.get("methods")
    if names is not None and not isinstance(names, list):
        raise InputError("methods must be a list of names.")
    names = names or list(default)
    return list(dict.fromkeys(method_name(name) for name in names))


def one_of(data: Mapping[str, Any], name: str, known: Iterable[str]) -> str:
    """The field `name`, one of the known strings."""
    value, names = data.get(name), list(known)
    if not isinstance(value, str) or value not in names:
        raise InputError(f"{name} must be one of: {', '.join(names)}.")
    return value


def integer(data: Mapping[str, Any], name: str, limit: int) -> int:
    """The field `name`, an integer from 0 to `limit` − 1; 0 by default."""
    value = data.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < limit:
        raise InputError(f"{name} must be an integer from 0 to {limit - 1}.")
    return value


def integers(data: Mapping[str, Any], name: str, limit: int) -> list[int]:
    """The field `name`, distinct integers from 0 to `limit` − 1; empty by default."""
    values = data.get(name, [])
    if not isinstance(values, list):
        raise InputError(f"{name} must be a list of integers.")
    return sorted({integer({name: value}, name, limit) for value in values})


def _image_input(data: Mapping[str, Any], model: ServedModel, limits: Limits) -> tuple[Any, str]:
    """The picture of a request with the digest of its bytes."""
    if model.input_kind != "image":
        raise InputError(f"{model.name} takes text, not images.")
    try:
        content = base64.b64decode(_text(data, "image"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError("the image is not valid base64.") from error
    return decoded(content, limits.image_pixels), hashlib.sha256(content).hexdigest()


def _text_input(data: Mapping[str, Any], model: ServedModel, limits: Limits) -> tuple[str, str]:
    """The text of a request with its digest."""
    text = _text(data, "text")
    if len(text) > limits.text_characters:
        raise TooLong(
            f"this text has {len(text):,} characters; the page accepts up to "
            f"{limits.text_characters:,}. Explain a part of it, or use the command line."
        )
    try:
        digest = hashlib.sha256(text.encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise InputError("the text contains half of a character (a lone surrogate).") from error
    # a model of images opens a text as a path: no request may name one, nor learn whether it exists
    if model.input_kind == "image":
        raise InputError(f"{model.name} takes images: drop one on the page.")
    if is_image(text):
        raise InputError("this looks like the name of an image file; the page opens no files.")
    return text, digest


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise InputError(f"the request needs {name}, as a string.")
    return value


def _class(data: Mapping[str, Any], name: str) -> TargetSpec:
    value = data.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, str))):
        raise InputError(f"{name} must be the number or the name of a class.")
    return value
