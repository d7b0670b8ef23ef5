"""Where a Transformer's prediction comes from, in scores that add up."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wherefrom.audits.audit import audit
    from wherefrom.audits.report import Audit
    from wherefrom.errors import WherefromError
    from wherefrom.evaluation.evaluate import evaluate
    from wherefrom.evaluation.metrics import Metric
    from wherefrom.evaluation.results import Evaluation
    from wherefrom.explain import Explainer
    from wherefrom.explanation import Explanation
    from wherefrom.inputs.table import read_table
    from wherefrom.loading import load
    from wherefrom.methods import METHODS, Method, method

_HOMES = {
    "Audit": "wherefrom.audits.report",
    "Evaluation": "wherefrom.evaluation.results",
    "Explainer": "wherefrom.explain",
    "Explanation": "wherefrom.explanation",
    "METHODS": "wherefrom.methods",
    "Method": "wherefrom.methods",
    "Metric": "wherefrom.evaluation.metrics",
    "WherefromError": "wherefrom.errors",
    "audit": "wherefrom.audits.audit",
    "evaluate": "wherefrom.evaluation.evaluate",
    "load": "wherefrom.loading",
    "method": "wherefrom.methods",
    "read_table": "wherefrom.inputs.table",
}
__all__ = [
    "METHODS",
    "Audit",
    "Evaluation",
    "Explainer",
    "Explanation",
    "Method",
    "Metric",
    "WherefromError",
    "audit",
    "evaluate",
    "load",
    "method",
    "read_table",
]


def __getattr__(name: str) -> Any:
    """Brings torch and transformers in only when something of theirs is used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'wherefrom' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
