"""Runs the code cells of a notebook in one namespace, without a kernel.

    python -m tests.notebooks docs/notebooks/passages.ipynb

runs it and stores the outputs in it.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

Output = dict[str, Any]


def run(path: Path) -> list[list[Output]]:
    """The outputs of each code cell, as a notebook stores them."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [_outputs(source, namespace, number) for number, source in enumerate(sources, 1)]


def stored(path: Path) -> list[list[Output]]:
    """The outputs that the notebook holds, of each code cell."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]


def printed(outputs: list[Output]) -> str:
    """What a cell printed."""
    return "".join("".join(out["text"]) for out in outputs if out["output_type"] == "stream")


def _outputs(source: str, namespace: dict[str, Any], number: int) -> list[Output]:
    tree, value, text = ast.parse(source), None, io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(text):
        exec(compile(tree, f"cell {number}", "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)
    outputs: list[Output] = []
    if text.getvalue():
        lines = text.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data = {
                "text/plain": [f"<{type(value).__name__}>"],
                "text/html": value._repr_html_().splitlines(keepends=True),
            }
        outputs.append({
            "output_type": "execute_result", "execution_count": number, "data": data,
            "metadata": {},
        })  # fmt: skip
    return outputs


def _store(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    results = iter(enumerate(run(path), 1))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["execution_count"], cell["outputs"] = next(results)
    path.write_text(json.dumps(notebook, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _store(Path(sys.argv[1]))
