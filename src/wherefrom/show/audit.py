"""An audit as text and as a page: which axioms hold and which fail for each method."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from typing import Any

from wherefrom.show.page import block, page, prose
from wherefrom.show.terminal import text_width

_WIDEST = 100  # characters of a line
_STATES = ((True, "holds"), (False, "fails"), (None, "open "))
_SIGNS = {True: ("✓", "yes"), False: ("✗", "no"), None: ("–", "dim")}
_STYLE = """
.wherefrom .no{font-weight:600;color:rgb(var(--for))}
.wherefrom td[title]{white-space:nowrap}
.wherefrom .signs{list-style:none;margin:.2rem 0;padding:0}
"""
_AXIOMS = (
    ("completeness", "completeness: gap"),
    ("sensitivity", "sensitivity: smallest score"),
    ("dummy", "dummy: score"),
    ("symmetry", "symmetry: difference"),
    ("invariance", "invariance: change"),
    ("conservation", "conservation: loss"),
)
_LEGEND = (
    "Gaps are relative to the expected sum, all other values to the largest score; the worst input "
    "counts. Open: the method makes no such claim, or the test could not be run."
)


def text(audit: Any) -> str:
    """Three lines per method, then notes on the model."""
    blocks = [_filled("", heading(audit))]
    for method in audit.methods:
        lines = [method]
        for state, name in _STATES:
            findings = [finding.words for finding in audit.of(method) if finding.holds is state]
            if findings:
                lines.append(_filled(f"  {name}  ", "; ".join(findings) + "."))
        blocks.append("\n".join(lines))
    notes = [_filled("", note) for note in (*audit.conservation, rewrites_line(audit), _LEGEND)]
    return "\n\n".join([*blocks, "\n".join(notes)])


def heading(audit: Any) -> str:
    """What was audited, and which methods pass all tests."""
    sound = ", ".join(audit.sound()) or "none"
    methods, inputs = len(audit.methods), len(audit.inputs)
    return (
        f"{audit.model}: {methods} method{_s(methods)} on {inputs} input{_s(inputs)}. "
        f"Methods that fail no test: {sound}."
    )


def rewrites_line(audit: Any) -> str:
    """How often each kind of rewrite was applied, zero included."""
    parts = []
    for rewrite in audit.rewrites.values():
        count = rewrite["places"]
        dropped = f", {rewrite['dropped']} dropped: outputs changed" if rewrite["dropped"] else ""
        parts.append(f"{rewrite['name']} ({count or 'no'} place{_s(count)}{dropped})")
    return "Rewrites that keep the function: " + ", ".join(parts) + "."


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _filled(start: str, text: str) -> str:
    return textwrap.fill(
        text,
        min(_WIDEST, text_width()),
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_on_hyphens=False,
    )


def render(audit: Any, whole_page: bool = True) -> str:
    """A table of all methods and axioms, then the findings as sentences."""
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
        f"<p>{escape(note)}</p>" for note in (*audit.conservation, rewrites_line(audit))
    )
    inputs = "".join(f"<li>{escape(name)}</li>" for name in audit.inputs)
    body = (
        f"<h1>{escape(heading(audit))}</h1>"
        f'<p class="dim">✓ holds, ✗ fails, – open. {escape(_LEGEND)}</p>'
        f'<div class="wide"><table><tr><th>method</th>{head}</tr>{rows}</table></div>'
        f"{words}<h2>Model</h2>{notes}<h2>Inputs</h2><ul>{inputs}</ul>"
    )
    return page(f"audit of {audit.model}", body, _STYLE) if whole_page else block(body, _STYLE)


def _cell(audit: Any, method: str, axiom: str) -> str:
    finding = next((f for f in audit.of(method) if f.axiom == axiom), None)
    if finding is None:
        return "<td></td>"
    sign, css_class = _SIGNS[finding.holds]
    value = "" if finding.value is None else f" {finding.value:.2g}"
    title = escape(finding.words, quote=True)
    return f'<td class="{css_class}" title="{title}">{sign}{value}</td>'


def _items(findings: Sequence[Any]) -> str:
    return "".join(f"<li>{_SIGNS[f.holds][0]} {prose(f.words)}</li>" for f in findings)
