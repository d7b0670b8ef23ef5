"""The files that one explanation runs through, from a profile, for docs/design.md.

python -m tools.walk            # prints the list
python -m tools.walk --write    # writes it into docs/design.md
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import wherefrom

HOME = Path(wherefrom.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "design.md"
BEGIN, END = "<!-- walk -->", "<!-- end of walk -->"
TEXT = "has a lot of the virtues of eastwood at his best."


class Walk:
    """Counts the calls of each file of the package, and how deep they are nested."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.depth = 0
        self._open = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """A profile function for `sys.setprofile`."""
        path = Path(frame.f_code.co_filename)
        if HOME not in path.parents:
            return
        name = path.relative_to(HOME).as_posix()
        if name.startswith("models/"):  # the model's own code is no part of the explanation
            return
        if event == "call":
            self._open += 1
            self.calls[name] = self.calls.get(name, 0) + 1
            self.depth = max(self.depth, self._open)
        elif event == "return":
            self._open -= 1


def walked() -> Walk:
    """The walk of one explanation of a text, the second of its explainer."""
    explainer = wherefrom.load("sentiment")
    explainer(TEXT)  # imports and caches
    walk = Walk()
    sys.setprofile(walk)
    try:
        explainer(TEXT)
    finally:
        sys.setprofile(None)
    return walk


def section(walk: Walk) -> str:
    """The list for the page: each file with the first line of its docstring."""
    lines = [
        f"One call of `explainer(text)` runs code of {len(walk.calls)} files, at most {walk.depth} "
        "calls deep, the model's own aside.",
        "",
        "| file | what it does |",
        "|---|---|",
    ]
    for name in sorted(walk.calls):
        docstring = ast.get_docstring(ast.parse((HOME / name).read_text(encoding="utf-8"))) or ""
        lines.append(f"| `{name}` | {docstring.splitlines()[0] if docstring else ''} |")
    return "\n".join([BEGIN, *lines, END])


def replaced(page: str, new: str) -> str:
    """The page with its section replaced."""
    before, _, rest = page.partition(BEGIN)
    return before + new + rest.partition(END)[2]


if __name__ == "__main__":
    text = section(walked())
    if "--write" in sys.argv[1:]:
        PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    else:
        print(text)
