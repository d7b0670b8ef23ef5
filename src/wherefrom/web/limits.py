"""How much a request may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Of one server; what is beyond them is refused with a message that says so."""

    body: int = 8 << 20  # bytes of a request
    text: int = 20_000  # characters
    pixels: int = 16 << 20  # of an image, unpacked
    seconds: float = 60.0  # of one piece of work, once it runs
    waiting: int = 16  # pieces of work in line
    kept: int = 128  # explanations remembered


class TooLarge(Exception):
    """A request of more bytes than are read."""
