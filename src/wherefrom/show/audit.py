"""An audit as text and as a page: for each method, which axioms hold and which fail."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from typing import Any

from wherefrom.show.page import page

_STATES = ((True, "holds"), (False, "fails"), (None, "open "))
_SIGNS = {True: ("✓", "yes"), False: ("✗", "no"), None: ("–", "dim")}
_STYLE = """
.wherefrom .no{font-weight:600;color:rgb(var(--for))}
.wherefrom td[title]{white-space:nowrap}
.wherefrom .signs{list-style:none;margin:.2rem 0;padding:0}
"""
_AXIOMS = (
    ("completeness", "adds up: gap"),
    ("sensitivity", "sensitive: least"),
    ("dummy", "dummy word: score"),
    ("symmetry", "symmetric: difference"),
    ("invariance", "invariant: change"),
    ("conservation", "LayerNorm: lost"),
)
_LEGEND = (
    "Shares are relative to the largest score unless another reference is named; the worst of all "
    "texts counts. Open: the method does not claim it, or it could not be tested."
)


def text(audit: Any) -> str:
    """Up to three lines for each method, then notes on the model."""
    blocks = [heading(audit)]
    for method in audit.methods:
        lines = [method]
        for state, name in _STATES:
            words = [each.words for each in audit.of(method) if each.holds is state]
            if words:
                lines.append(_filled(f"  {name}  ", "; ".join(words) + "."))
        blocks.append("\n".join(lines))
    notes = [_filled("", note) for note in (*audit.conservation, rewrite_counts(audit), _LEGEND)]
    return "\n\n".join([*blocks, "\n".join(notes)])


def heading(audit: Any) -> str:
    """The methods that pass every test."""
    sound = ", ".join(audit.sound()) or "none"
    return _filled(
        "",
        f"{audit.model}, {len(audit.methods)} methods on {len(audit.texts)} "
        f"text{_s(len(audit.texts))}. Methods that pass every test: {sound}.",
    )


def rewrite_counts(audit: Any) -> str:
    """How many rewrites of each kind were tested, also where there were none."""
    parts = []
    for kind in audit.rewrites.values():
        dropped = f", {kind['dropped']} dropped: they change outputs" if kind["dropped"] else ""
        parts.append(f"{kind['words']} ({kind['found'] or 'no'} place{_s(kind['found'])}{dropped})")
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
        f'<h2>{escape(method)}</h2><ul class="signs">{_items(audit.of(method))}</ul>'
        for method in audit.methods
    )
    notes = "".join(
        f"<p>{escape(note)}</p>" for note in (*audit.conservation, rewrite_counts(audit))
    )
    texts = "".join(f"<li>{escape(text)}</li>" for text in audit.texts)
    body = (
        f"<h1>Which axioms do explanations of {escape(audit.model)} satisfy?</h1>"
        f"<p>{escape(heading(audit))}</p>"
        f'<div class="wide"><table><tr><th>method</th>{head}</tr>{rows}</table></div>'
        f'<p class="dim">✓ holds, ✗ fails, – open. {escape(_LEGEND)}</p>'
        f"{words}<h2>The model</h2>{notes}<h2>The texts</h2><ul>{texts}</ul>"
    )
    return page(f"audit of {audit.model}", body, _STYLE)


def _cell(audit: Any, method: str, axiom: str) -> str:
    finding = next((each for each in audit.of(method) if each.axiom == axiom), None)
    if finding is None:
        return "<td></td>"
    sign, css_class = _SIGNS[finding.holds]
    value = "" if finding.value is None else f" {finding.value:.2g}"
    title = escape(finding.words, quote=True)
    return f'<td class="{css_class}" title="{title}">{sign}{value}</td>'


def _items(findings: Sequence[Any]) -> str:
    return "".join(f"<li>{_SIGNS[each.holds][0]} {escape(each.words)}</li>" for each in findings)
