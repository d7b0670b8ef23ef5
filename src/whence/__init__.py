"""Where a Transformer's prediction comes from, in scores that add up."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whence.errors import WhenceError
    from whence.explain import Explainer
    from whence.explanation import Explanation
    from whence.load import load
    from whence.methods import METHODS, Method, method

_HOMES = {
    "Explainer": "whence.explain",
    "Explanation": "whence.explanation",
    "METHODS": "whence.methods",
    "Method": "whence.methods",
    "WhenceError": "whence.errors",
    "load": "whence.load",
    "method": "whence.methods",
}
__all__ = ["METHODS", "Explainer", "Explanation", "Method", "WhenceError", "load", "method"]


def __getattr__(name: str) -> Any:
    """Brings torch and transformers in only when something of theirs is used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'whence' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
