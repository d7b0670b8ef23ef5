"""Tokens of an answer, and spans of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
