"""Where a Transformer's prediction comes from, in scores that add up."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whence.errors import WhenceError
    from whence.evaluation.audit import audit
    from whence.evaluation.findings import Audit
    from whence.evaluation.run import evaluate
    from whence.explain import Explainer
    from whence.explanation import Explanation
    from whence.inputs.table import read_table
    from whence.loading import load
    from whence.methods import METHODS, Method, method

_HOMES = {
    "Audit": "whence.evaluation.findings",
    "Explainer": "whence.explain",
    "Explanation": "whence.explanation",
    "METHODS": "whence.methods",
    "Method": "whence.methods",
    "WhenceError": "whence.errors",
    "audit": "whence.evaluation.audit",
    "evaluate": "whence.evaluation.run",
    "load": "whence.loading",
    "method": "whence.methods",
    "read_table": "whence.inputs.table",
}
__all__ = [
    "METHODS",
    "Audit",
    "Explainer",
    "Explanation",
    "Method",
    "WhenceError",
    "audit",
    "evaluate",
    "load",
    "method",
    "read_table",
]


def __getattr__(name: str) -> Any:
    """Brings torch and transformers in only when something of theirs is used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'whence' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
