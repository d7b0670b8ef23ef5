"""The reference of the documentation site: an extension of Griffe, run by `make docs`.

Doctests in docstrings become code blocks; Markdown would take `>>>` for quotes.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


def fenced(text: str) -> str:
    """A docstring with its doctests as code blocks."""
    return _DOCTEST.sub(lambda block: f"\n```pycon\n{block[0]}\n```", text)


class Reference(griffe.Extension):
    """Prepares what the pages of the reference show."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
