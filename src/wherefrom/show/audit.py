"""An audit as text and as a page: which axioms hold and which fail for each method."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from wherefrom.errors import printable
from wherefrom.show.page import block, page, prose
from wherefrom.show.terminal import console_text, make_console, text_width, wants_color

_WIDEST = 100  # characters of a line
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
    """A table of methods and axioms, what fails or was not tested, and notes on the model."""
    console = make_console(wants_color(), min(_WIDEST, text_width()))
    console.print(Text(printable(heading(audit))), "", sep="\n")
    columns = _columns(audit)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("method", *(name.replace(": ", "\n") for _, name in columns)):
        table.add_column(Text(name), overflow="fold")
    details: list[Any] = []
    for method in audit.methods:
        cells = [_finding(audit, method, key) for key, _ in columns]
        texts = [Text(*_written(finding)) for finding in cells]
        table.add_row(Text(printable(method)), *texts)
        words = [f"{_SIGNS[f.holds][0]} {f.words}." for f in audit.of(method) if not f.holds]
        details += [Text(printable(method), style="bold")] if words else []
        details += [Padding(Text(printable(word)), (0, 0, 0, 2)) for word in words]
    notes = (*audit.conservation, rewrites_line(audit), f"✓ holds, ✗ fails, – open. {_LEGEND}")
    console.print(table)
    console.print()
    for detail in [*details, *([""] if details else [])]:
        console.print(detail)
    console.print(*(Text(printable(note), style="dim") for note in notes), sep="\n")
    return "\n".join(line.rstrip() for line in console_text(console).split("\n"))


def _columns(audit: Any) -> list[tuple[str, str]]:
    """The axioms that were tested, with the measured values."""
    return [(key, name) for key, name in _AXIOMS if any(f.axiom == key for f in audit.findings)]


def _finding(audit: Any, method: str, axiom: str) -> Any:
    return next((f for f in audit.of(method) if f.axiom == axiom), None)


def _written(finding: Any) -> tuple[str, str]:
    """The sign and value of a finding, and the style of its cell."""
    if finding is None:
        return "", ""
    sign, css_class = _SIGNS[finding.holds]
    style = {"yes": "", "no": "bold red", "dim": "dim"}[css_class]
    return f"{sign} {'' if finding.value is None else f'{finding.value:.2g}'}".rstrip(), style


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


def render(audit: Any, whole_page: bool = True) -> str:
    """A table of all methods and axioms, then the findings as sentences."""
    columns = _columns(audit)
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
    finding = _finding(audit, method, axiom)
    if finding is None:
        return "<td></td>"
    title = escape(finding.words, quote=True)
    return f'<td class="{_SIGNS[finding.holds][1]}" title="{title}">{_written(finding)[0]}</td>'


def _items(findings: Sequence[Any]) -> str:
    return "".join(f"<li>{_SIGNS[f.holds][0]} {prose(f.words)}</li>" for f in findings)
