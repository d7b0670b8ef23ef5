"""Tokens of an answer, and spans of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wherefrom.answers.tokens import words_of
from wherefrom.errors import TargetError, nearest


@dataclass(frozen=True)
class AnswerToken:
    """A token of the answer, and the one it is compared with: by default the runner-up."""

    id: int
    text: str
    probability: float
    output: float  # what is explained: the contrast, logit or log-probability
    other_id: int
    other: str
    other_probability: float


@dataclass(frozen=True)
class Span:
    """Some tokens of the answer that follow each other: `first` to `last` − 1."""

    text: str
    first: int
    last: int


def span_of_characters(pieces: Sequence[str], start: int, end: int) -> Span:
    """The tokens, of which these are the texts, that hold the characters from start to end − 1."""
    at, holding = 0, []
    for place, piece in enumerate(pieces):
        if at < end and at + len(piece) > start:
            holding.append(place)
        at += len(piece)
    first = holding[0]
    while first > 0 and not pieces[first - 1]:
        first -= 1  # a character of several tokens
    return Span("".join(pieces)[start:end], first, holding[-1] + 1)


def span_of(part: int | slice | str | Span, pieces: Sequence[str]) -> Span:
    """A part of the answer with these tokens, by index, as a slice, or by its text."""
    if isinstance(part, Span):
        return part
    if isinstance(part, str):
        return _span_of_text(part, pieces)
    numbers = (part.start, part.stop, part.step) if isinstance(part, slice) else (part,)
    if not all(number is None or isinstance(number, (int, np.integer)) for number in numbers):
        raise TargetError(
            "a part of the answer is a token's index, a slice of tokens, a text, or a span of "
            f"words or sentences, got {part!r}."
        )
    count = len(pieces)
    if isinstance(part, slice):
        first, last, step = part.indices(count)
        if step != 1 or last <= first:
            raise TargetError(f"{part} is no span of the answer, which has {count} tokens.")
    else:
        if not -count <= part < count:
            raise TargetError(f"there is no token {part}: the answer has {count} tokens.")
        first = part % count
        last = first + 1
    return Span("".join(pieces[first:last]), first, last)


def _span_of_text(part: str, pieces: Sequence[str]) -> Span:
    if not part.strip():
        raise TargetError("an empty text is no part of the answer.")
    text = "".join(pieces)
    start = text.find(part)
    if start < 0:
        names = [text[a:b] for a, b in words_of(text)]
        raise TargetError(
            f"{part!r} is no part of the answer; {nearest(part, dict.fromkeys(names))}"
        )
    return span_of_characters(pieces, start, start + len(part))
