"""Where a Transformer's prediction comes from, in scores that add up."""

from __future__ import annotations

TYPE_CHECKING = False  # without importing typing, which takes longer than the rest of this module
if TYPE_CHECKING:
    from wherefrom.answers.answer import Answer
    from wherefrom.answers.prompt import Passage, Prompt
    from wherefrom.audits.audit import Audit, audit
    from wherefrom.core.explanation import Comparison, Explanation, Unit
    from wherefrom.core.runner import Batch, ModelRunner
    from wherefrom.core.target import Case, Target
    from wherefrom.errors import WherefromError
    from wherefrom.evaluation.evaluate import evaluate
    from wherefrom.evaluation.metrics import Metric
    from wherefrom.evaluation.results import Evaluation
    from wherefrom.explainer import Explainer
    from wherefrom.inputs.graph import Graph
    from wherefrom.inputs.reader import Reader, ReaderContext
    from wherefrom.inputs.readers import READERS, register_reader
    from wherefrom.inputs.table import read_table
    from wherefrom.loading import load
    from wherefrom.methods import METHODS, Method, Scores, method
    from wherefrom.runs.explain_rows import explain_frame
    from wherefrom.runs.run import run
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"  # the only place where it is written: pyproject.toml reads it from here

# Every public name and the module that it lives in; imported when it is first used, so that
# `import wherefrom` brings in neither torch nor transformers.
_HOMES = {
    "METHODS": "wherefrom.methods",
    "READERS": "wherefrom.inputs.readers",
    "Answer": "wherefrom.answers.answer",
    "Audit": "wherefrom.audits.audit",
    "Comparison": "wherefrom.core.explanation",
    "Evaluation": "wherefrom.evaluation.results",
    "Explainer": "wherefrom.explainer",
    "Explanation": "wherefrom.core.explanation",
    "Graph": "wherefrom.inputs.graph",
    "Batch": "wherefrom.core.runner",
    "Case": "wherefrom.core.target",
    "Method": "wherefrom.methods",
    "Metric": "wherefrom.evaluation.metrics",
    "Passage": "wherefrom.answers.prompt",
    "Prompt": "wherefrom.answers.prompt",
    "Reader": "wherefrom.inputs.reader",
    "ReaderContext": "wherefrom.inputs.reader",
    "Scores": "wherefrom.methods",
    "ModelRunner": "wherefrom.core.runner",
    "Target": "wherefrom.core.target",
    "Unit": "wherefrom.core.explanation",
    "WherefromError": "wherefrom.errors",
    "audit": "wherefrom.audits.audit",
    "evaluate": "wherefrom.evaluation.evaluate",
    "explain_frame": "wherefrom.runs.explain_rows",
    "load": "wherefrom.loading",
    "method": "wherefrom.methods",
    "read_table": "wherefrom.inputs.table",
    "register_reader": "wherefrom.inputs.readers",
    "run": "wherefrom.runs.run",
}
__all__ = [
    "METHODS",
    "READERS",
    "Answer",
    "Audit",
    "Batch",
    "Case",
    "Comparison",
    "Evaluation",
    "Explainer",
    "Explanation",
    "Graph",
    "Method",
    "Metric",
    "ModelRunner",
    "Passage",
    "Prompt",
    "Reader",
    "ReaderContext",
    "Scores",
    "Target",
    "Unit",
    "WherefromError",
    "audit",
    "evaluate",
    "explain_frame",
    "load",
    "method",
    "read_table",
    "register_reader",
    "run",
]


def __getattr__(name: str) -> Any:
    """Imports a public name from its home at the first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'wherefrom' has no attribute {name!r}")
    from importlib import (
        import_module,
    )  # not above: until `__main__` runs, Ctrl-C shows a traceback

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
