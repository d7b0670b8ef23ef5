"""An audit as text and as a page: for each method, what holds and what does not."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from typing import Any

from wherefrom.show.html import STYLE

_STATES = ((True, "holds"), (False, "fails"), (None, "open "))
_AXIOMS = (
    ("completeness", "adds up: gap"),
    ("sensitivity", "sensitive: least"),
    ("dummy", "dummy word: score"),
    ("symmetry", "symmetric: difference"),
    ("invariance", "invariant: change"),
    ("conservation", "LayerNorm: lost"),
)
_LEGEND = (
    "Shares are of the largest score where nothing else is named; the worst of all texts counts. "
    "Open: the method makes no such claim, or it could not be tested."
)


def text(audit: Any) -> str:
    """Three lines a method, then what was found out about the model."""
    blocks = [heading(audit)]
    for method in audit.methods:
        lines = [method]
        for state, name in _STATES:
            words = [each.words for each in audit.of(method) if each.holds is state]
            if words:
                lines.append(_filled(f"  {name}  ", "; ".join(words) + "."))
        blocks.append("\n".join(lines))
    notes = [_filled("", each) for each in (*audit.conservation, found_rewrites(audit), _LEGEND)]
    return "\n\n".join([*blocks, "\n".join(notes)])


def heading(audit: Any) -> str:
    """Which methods fail nothing."""
    sound = ", ".join(audit.sound()) or "none"
    return _filled(
        "",
        f"{audit.model}, {len(audit.methods)} methods on {len(audit.texts)} "
        f"text{'' if len(audit.texts) == 1 else 's'}. Nothing that was tested fails for: {sound}.",
    )


def found_rewrites(audit: Any) -> str:
    """How many rewrites of each kind there were; that there was none is said too."""
    parts = []
    for each in audit.rewrites.values():
        dropped = f", {each['dropped']} more dropped: outputs moved" if each["dropped"] else ""
        parts.append(f"{each['words']} ({each['found'] or 'no'} place{_s(each['found'])}{dropped})")
    return "Other weights for the same function: " + ", ".join(parts) + "."


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _filled(start: str, words: str) -> str:
    return textwrap.fill(
        words, 100, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False
    )


def render(audit: Any) -> str:
    """A self-contained page: a table of all methods and axioms, then the same in words."""
    columns = [(key, name) for key, name in _AXIOMS if any(f.axiom == key for f in audit.findings)]
    head = "".join(f"<th>{escape(name)}</th>" for _, name in columns)
    rows = ""
    for method in audit.methods:
        cells = "".join(_cell(audit, method, key) for key, _ in columns)
        rows += f"<tr><td>{escape(method)}</td>{cells}</tr>"
    words = "".join(
        f"<h2>{escape(method)}</h2><ul>{_items(audit.of(method))}</ul>" for method in audit.methods
    )
    notes = "".join(
        f"<p>{escape(each)}</p>" for each in (*audit.conservation, found_rewrites(audit))
    )
    texts = "".join(f"<li>{escape(each)}</li>" for each in audit.texts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>wherefrom: audit of {escape(audit.model)}</title><style>body{{margin:0}}"
        "@media (prefers-color-scheme:dark){body{background:#17171c}}"
        ".wherefrom .no{font-weight:600;color:rgb(var(--for))}.wherefrom ul{margin:.2rem 0}</style>"
        f'</head><body><div class="wherefrom"><style>{STYLE}</style>'
        f"<h1>Which explanations of {escape(audit.model)} keep their promises?</h1>"
        f"<p>{escape(heading(audit))}</p>"
        f"<table><tr><th>method</th>{head}</tr>{rows}</table>"
        f'<p class="dim">✓ holds, ✗ fails, – open. {escape(_LEGEND)}</p>'
        f"{words}<h2>The model</h2>{notes}<h2>The texts</h2><ul>{texts}</ul></div></body></html>\n"
    )


def _cell(audit: Any, method: str, axiom: str) -> str:
    found = [each for each in audit.of(method) if each.axiom == axiom]
    if not found:
        return "<td></td>"
    sign, kind = {True: ("✓", "yes"), False: ("✗", "no"), None: ("–", "dim")}[found[0].holds]
    value = "" if found[0].value is None else f" {found[0].value:.2g}"
    return f'<td class="{kind}" title="{escape(found[0].words, quote=True)}">{sign}{value}</td>'


def _items(findings: Sequence[Any]) -> str:
    sign = {True: "✓", False: "✗", None: "–"}
    return "".join(f"<li>{sign[each.holds]} {escape(each.words)}</li>" for each in findings)
