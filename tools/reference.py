"""The reference of the documentation site: an extension of Griffe, run by `make docs`.

Doctests in docstrings become code blocks; Markdown would take `>>>` for quotes.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)
_SHADOWED = "wherefrom.methods.method"  # a function, and the module that holds `Method`


def fenced(text: str) -> str:
    """A docstring with its doctests as code blocks."""
    return _DOCTEST.sub(lambda block: f"\n```pycon\n{block[0]}\n```", text)


class Reference(griffe.Extension):
    """Prepares what the pages of the reference show."""

    def __init__(self) -> None:
        super().__init__()
        self._method: griffe.Function | None = None

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        if func.path == _SHADOWED:
            self._method = func

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Shows `wherefrom.method` under its public name: its module has the same path."""
        if self._method is not None:
            pkg.set_member("method", self._method)
