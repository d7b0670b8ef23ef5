"""What a request asks, checked before anything is run."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from wherefrom.errors import InputError, MethodError, TooLong, nearest
from wherefrom.inputs.pictures import decoded, is_image
from wherefrom.methods import METHODS
from wherefrom.naming import TargetSpec
from wherefrom.web.limits import Limits
from wherefrom.web.models import Shelf, Shown


@dataclass(frozen=True)
class Question:
    """One input of one model, and what is asked about it.

    `key` is the same for the same input, so that work is not done twice.
    """

    shown: Shown
    given: Any
    key: tuple[str, str, bool]
    method: str
    target: TargetSpec
    against: TargetSpec
    truncate: bool


def question(data: Any, shelf: Shelf, limits: Limits) -> Question:
    """The question in the body of a request."""
    if not isinstance(data, Mapping):
        raise InputError("a question is a JSON object.")
    shown = shelf[_text(data, "model")]
    truncate = data.get("truncate", False)
    if not isinstance(truncate, bool):
        raise InputError("truncate is true or false.")
    given, digest = _given(data, shown, limits)
    return Question(
        shown,
        given,
        (shown.name, digest, truncate),
        named(data.get("method", "lrp")),
        _asked(data, "target"),
        _asked(data, "against"),
        truncate,
    )


def named(method: Any) -> str:
    """The name of a method of this library."""
    if not isinstance(method, str) or method not in METHODS:
        raise MethodError(f'there is no method "{method}"; {nearest(str(method), METHODS)}')
    return method


def methods(data: Mapping[str, Any], otherwise: Iterable[str]) -> list[str]:
    """The methods that are asked for, each once."""
    listed = data.get("methods") or list(otherwise)
    if not isinstance(listed, list):
        raise InputError("methods is a list of names.")
    return list(dict.fromkeys(named(name) for name in listed))


def _given(data: Mapping[str, Any], shown: Shown, limits: Limits) -> tuple[Any, str]:
    if "image" in data:
        if shown.takes != "image":
            raise InputError(f"{shown.name} reads text, not images.")
        try:
            packed = base64.b64decode(_text(data, "image"), validate=True)
        except (binascii.Error, ValueError) as error:
            raise InputError("the image is no base64.") from error
        return decoded(packed, limits.pixels), hashlib.sha256(packed).hexdigest()
    text = _text(data, "text")
    if len(text) > limits.text:
        raise TooLong(
            f"this text has {len(text):,} characters; this page takes {limits.text:,}. "
            "Explain a part of it, or use the command line."
        )
    try:
        digest = hashlib.sha256(text.encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise InputError("the text holds half of a character (a lone surrogate).") from error
    # where images are read a text is a path, and no request may name one, nor learn of it
    if shown.takes == "image":
        raise InputError(f"{shown.name} sees images: drop one on the page.")
    if is_image(text):
        raise InputError("this ends like the name of an image, and the page opens no files.")
    return text, digest


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise InputError(f"a question needs {name}, as text.")
    return value


def _asked(data: Mapping[str, Any], name: str) -> TargetSpec:
    value = data.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, str))):
        raise InputError(f"{name} is a class by number or by name.")
    return value


def number(data: Mapping[str, Any], name: str, most: int) -> int:
    """A whole number below `most`."""
    value = data.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < most:
        raise InputError(f"{name} is a whole number from 0 to {most - 1}.")
    return value


def numbers(data: Mapping[str, Any], name: str, most: int) -> list[int]:
    """Distinct whole numbers below `most`."""
    values = data.get(name, [])
    if not isinstance(values, list):
        raise InputError(f"{name} is a list of whole numbers.")
    return sorted({number({name: value}, name, most) for value in values})
