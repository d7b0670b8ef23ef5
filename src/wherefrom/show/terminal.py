"""Explanations as coloured text: red speaks for the target, blue against it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wherefrom.errors import printable
from wherefrom.explanation import Explanation
from wherefrom.show.mixed import is_mixed, text_part
from wherefrom.show.svg import cells, kind_of
from wherefrom.show.text_marks import heading, marks, signed, summary

_FOR, _AGAINST = (214, 39, 40), (31, 119, 220)


def render(explanation: Explanation, color: bool | None = None, width: int | None = None) -> str:
    """Prediction, heatmap and ledger of one explanation."""
    color = wants_color() if color is None else color
    console = make_console(color, width)
    source = printable(f"{explanation.label or explanation.method}  {explanation.model}")
    console.print(Text(printable(heading(explanation)), style="bold"), Text(source, style="dim"))
    console.print(heatmap(explanation, color))
    if explanation.ledger is not None:
        console.print(Text(printable(ledger_line(explanation)), style="dim"))
    _print_warnings(console, [explanation])
    return console_text(console)


def render_rows(
    explanations: Sequence[Explanation], color: bool | None = None, width: int | None = None
) -> str:
    """One input by many methods, a row each; every row is scaled by its strongest unit."""
    color = wants_color() if color is None else color
    console = make_console(color, width)
    first = explanations[0]
    model = Text(printable(first.model), style="dim")
    console.print(Text(printable(heading(first)), style="bold"), model)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
    table.add_column("method", no_wrap=True)
    table.add_column("heatmap", overflow="fold")
    table.add_column("sum", justify="right", no_wrap=True)
    for explanation in explanations:
        total = signed(explanation.ledger.total) if explanation.ledger else "–"
        # a Text: brackets in a plain string would be markup
        table.add_row(Text(printable(explanation.method)), heatmap(explanation, color), total)
    console.print(table)
    console.print(Text(f"output of the model: {signed(first.output)}", style="dim"))
    _print_warnings(console, explanations)
    return console_text(console)


def _print_warnings(console: Console, explanations: Sequence[Explanation]) -> None:
    for explanation in explanations:
        for warning in explanation.warnings:
            console.print(Text(f"warning: {warning}", style="yellow"))


def heatmap(explanation: Explanation, color: bool) -> Text:
    """The text with its units coloured; without colour, strong units carry their score.

    Negative units are underlined, so that the signs differ in black and white too.
    """
    if is_mixed(explanation):
        explanation = text_part(explanation)
    if kind_of(explanation) == "image":
        return _grid(explanation, color)
    line = Text()
    for mark in marks(explanation):
        line.append(printable(mark.gap))
        text = printable(mark.text.replace("\n", "⏎")) or "·"
        if color:
            line.append(text, style=_style(mark.strength, mark.special))
        else:
            line.append(text)
            if abs(mark.strength) >= 0.1:
                line.append(f"[{mark.score:+.2g}]")
    return line


def _grid(explanation: Explanation, color: bool) -> Text:
    """The cells of an image, two characters wide; without colour, + and − by strength."""
    patches = cells(explanation, limit=1024)
    rows = Text()
    for top in sorted({cell.top for cell in patches}):
        row = sorted((cell for cell in patches if cell.top == top), key=lambda cell: cell.left)
        rows.append("\n" if rows else "")
        for cell in row:
            sign = "+" if cell.strength > 0 else "-"
            size = abs(cell.strength)
            letters = sign * 2 if size >= 0.5 else sign + " " if size >= 0.1 else ". "
            rows.append(
                "  " if color else letters, style=_style(cell.strength, False) if color else ""
            )
    return rows


def ledger_line(explanation: Explanation) -> str:
    """The ledger as a sum."""
    assert explanation.ledger is not None
    parts = [f"{line.label} {signed(line.value)}" for line in summary(explanation.ledger)]
    residual = signed(explanation.ledger.residual)
    return f"{' · '.join(parts)} · residual {residual} = {signed(explanation.output)}"


def _style(strength: float, special: bool) -> str:
    size = abs(strength)
    if size < 0.05:
        return "dim" if special else ""
    tint = _FOR if strength > 0 else _AGAINST
    r, g, b = (round(255 + (c - 255) * size**0.8) for c in tint)
    ink = "#ffffff" if size > 0.55 else "#000000"
    return f"{ink} on #{r:02x}{g:02x}{b:02x}" + (" underline" if strength < 0 else "")


def wants_color() -> bool:
    """Whether the output is a terminal, or colour was asked for."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def make_console(color: bool, width: int | None) -> Console:
    """A console that keeps what is printed."""
    return Console(
        file=io.StringIO(),
        force_terminal=color,
        color_system="truecolor" if color else None,
        width=width or (None if sys.stdout.isatty() else 100),
        highlight=False,
        no_color=not color,
    )


def console_text(console: Console) -> str:
    """What was printed on such a console."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip("\n")
