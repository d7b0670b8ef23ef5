"""Two texts as one input."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TextPair:
    """Two texts that a model reads as one input: premise and hypothesis, question and context.

    `fields` are the names of the halves, which their units carry.
    """

    first: str
    second: str
    fields: tuple[str, str] = ("first", "second")

    @property
    def text(self) -> str:
        """Both halves, a line each: what the spans of the units refer to."""
        return f"{self.first}\n{self.second}"
