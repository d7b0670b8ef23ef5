"""Notebooks: run, with what their cells print and show stored in them, and as Markdown.

    python -m tools.notebooks docs/tutorials/*.ipynb

Cells run in this process, as a program would: no kernel and no server is needed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]


def read(path: Path) -> dict[str, Any]:
    """The content of a notebook."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def write(path: Path, notebook: dict[str, Any]) -> None:
    """Writes a notebook as Jupyter does."""
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def run(notebook: dict[str, Any], name: str) -> list[list[dict[str, Any]]]:
    """The outputs of each code cell, run in order."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [
        run_cell("".join(cell["source"]), names, f"{name}, cell {number}")
        for number, cell in enumerate(cells, 1)
    ]


def run_cell(source: str, names: dict[str, Any], place: str) -> list[dict[str, Any]]:
    """What one cell prints, and the value of its last line if that is an expression."""
    body = ast.parse(source, place).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), place, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), place, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        rich = hasattr(value, "_repr_html_")
        data = {"text/plain": (str if rich else repr)(value).splitlines(keepends=True)}
        if rich:
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
        shown = {"output_type": "execute_result", "execution_count": None, "metadata": {}}
        outputs.append({**shown, "data": data})
    return outputs


def markdown(notebook: dict[str, Any]) -> str:
    """Texts as they are, code in fences, stored outputs below."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _parts(cell))


def _parts(cell: dict[str, Any]) -> list[str]:
    """A cell as pieces of Markdown."""
    source = "".join(cell["source"]).strip()
    if cell["cell_type"] != "code":
        return [source]
    return [f"```python\n{source}\n```", *map(_output, cell["outputs"])]


def _output(stored: dict[str, Any]) -> str:
    """What a cell printed or showed, as a block that Markdown leaves alone."""
    data = stored.get("data", {})
    if "text/html" in data:
        # Markdown ends a block of HTML at an empty line
        shown = "\n".join(line for line in "".join(data["text/html"]).splitlines() if line.strip())
        return f'<div class="output">{shown}</div>'
    text = "".join(stored["text"] if "text" in stored else data["text/plain"])
    return f'<pre class="output"><code>{escape(text.rstrip())}</code></pre>'


@contextlib.contextmanager
def workplace() -> Iterator[None]:
    """An empty folder to run in, as far below the examples as the notebooks are."""
    back = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(HOME / "examples")
        place = Path(folder) / "docs" / "tutorials"
        place.mkdir(parents=True)
        os.chdir(place)
        try:
            yield
        finally:
            os.chdir(back)


def main() -> None:
    """Runs the notebooks that are named and writes them back."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path)
    for path in parser.parse_args().paths:
        notebook = read(path)
        with workplace():
            results = run(notebook, path.name)
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for cell, outputs in zip(cells, results, strict=True):
            cell["outputs"] = outputs
        write(path, notebook)


if __name__ == "__main__":
    main()
