"""Explanations as coloured text: red speaks for the target, blue against it."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wherefrom.core.explanation import RUNNERS_UP, Explanation
from wherefrom.errors import printable
from wherefrom.show.colors import Palette, terminal_background, terminal_depth
from wherefrom.show.mixed import is_mixed, text_part
from wherefrom.show.sentence import (
    are_shares,
    for_legend,
    is_unsigned,
    sentence,
    unit_name,
)
from wherefrom.show.svg import cells, kind_of
from wherefrom.show.text_marks import (
    LONGEST_LABEL,
    heading,
    label_name,
    marks,
    signed,
    summary,
    wrapped_label,
)

_SYSTEMS: dict[str, Literal["standard", "256", "truecolor"]] = {
    "16": "standard",
    "256": "256",
    "truecolor": "truecolor",
}
_SHOWN = 0.1  # a score is shown if it is at least this share of the largest
_LONGEST_NAME = 24
_PIPE_WIDTH = 100  # of lines that go to no terminal


def render(
    explanation: Explanation,
    color: bool | None = None,
    width: int | None = None,
    numbers: bool | None = None,
    legend: bool = True,
) -> str:
    """Prediction, heatmap and ledger of one explanation, and a line that says how to read it.

    `numbers` shows the scores with the colours; by default they are shown where there are no
    colours, and in a pipe.
    """
    color = wants_color() if color is None else color
    console = make_console(color, width)
    source = printable(f"{explanation.method_label}  {explanation.model}")
    console.print(Text(printable(heading(explanation)), style="bold"), Text(source, style="dim"))
    console.print(Text(printable(sentence(explanation))))
    if explanation.target.place is not None:
        console.print(Text(printable(explanation.target.place), style="dim"))
    console.print(heatmap(explanation, color, numbers))
    if explanation.ledger is not None:
        console.print(Text(printable(ledger_line(explanation)), style="dim"))
    _print_warnings(console, [explanation])
    if legend:
        console.print(_legend([explanation], color, numbers))
    return console_text(console)


def render_rows(
    explanations: Sequence[Explanation],
    color: bool | None = None,
    width: int | None = None,
    numbers: bool | None = None,
    legend: bool = True,
) -> str:
    """One input by many methods, a row each; every row is scaled by its strongest unit."""
    color = wants_color() if color is None else color
    console = make_console(color, width)
    first = explanations[0]
    model = Text(printable(first.model), style="dim")
    console.print(Text(printable(heading(first)), style="bold"), model)
    reasons = Text(printable(f"Reasons by {first.method_label}."), style="dim")
    console.print(Text(printable(sentence(first))), reasons)
    if first.target.place is not None:
        console.print(Text(printable(first.target.place), style="dim"))
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
    names = [wrapped_label(explanation) for explanation in explanations]
    width = max(len(line) for name in names for line in name.split("\n"))
    table.add_column("method", overflow="fold", width=min(width, LONGEST_LABEL))
    table.add_column("heatmap", overflow="fold")
    table.add_column("sum", justify="right", no_wrap=True)
    for name, explanation in zip(names, explanations, strict=True):
        total = signed(explanation.ledger.total) if explanation.ledger else "–"
        # a Text: brackets in a plain string would be markup
        table.add_row(Text(printable(name)), heatmap(explanation, color, numbers), total)
    console.print(table)
    console.print(Text(f"output of the model: {signed(first.output)}", style="dim"))
    _print_warnings(console, explanations)
    if legend:
        console.print(_legend(explanations, color, numbers))
    return console_text(console)


def _print_warnings(console: Console, explanations: Sequence[Explanation]) -> None:
    for explanation in explanations:
        for warning in explanation.warnings:
            console.print(Text(f"warning: {warning}", style="yellow"))


def heatmap(explanation: Explanation, color: bool, numbers: bool | None = None) -> Text:
    """The text with its units coloured; strong units carry their score if `numbers` are shown.

    Negative units are underlined, so that the signs differ in black and white too. Each text of a
    pair begins a line.
    """
    if is_mixed(explanation):
        explanation = text_part(explanation)
    if kind_of(explanation) == "image":
        return _grid(explanation, color)
    palette = _palette()
    line = Text()
    field = ""
    form = "[{:.2g}]" if is_unsigned(explanation) else "[{:+.2g}]"
    is_molecule = kind_of(explanation) == "molecule"  # whose atoms the sentence names by number
    for i, (unit, mark) in enumerate(zip(explanation.units, marks(explanation), strict=True)):
        begins = bool(field and unit.field and unit.field != field)
        field = unit.field or field
        line.append("\n" if begins else printable(mark.gap))
        text = unit_name(explanation, i) if is_molecule else mark.text.replace("\n", "⏎")
        text = printable(text) or "·"
        quiet = "dim" if mark.special else ""
        line.append(text, style=palette.style(mark.strength) or quiet if color else "")
        if _shows_numbers(color, numbers) and abs(mark.strength) >= _SHOWN:
            line.append(form.format(mark.score))
    return line


def _shows_numbers(color: bool, numbers: bool | None) -> bool:
    return not (color and sys.stdout.isatty()) if numbers is None else numbers or not color


def _legend(explanations: Sequence[Explanation], color: bool, numbers: bool | None) -> Text:
    """How to read the heatmaps of one input, in one line."""
    explanation = for_legend(explanations)
    unsigned = list(filter(is_unsigned, explanations))
    above, below = _meaning(explanation)
    palette = _palette()
    line = Text(style="dim")
    is_image = kind_of(explanation) == "image"
    silent = "this method does" if len(explanations) == 1 else "these methods do"
    if len(unsigned) == len(explanations):
        if color:
            line.append(" score ", style=f"not dim {palette.style(1.0)}")
            line.append(f" {silent} not say for or against  stronger colour: larger score")
        elif is_image:
            line.append(f"++ large score, + small; {silent} not say for or against")
        else:
            line.append(f"[0.5] the score: {silent} not say for or against; ")
            line.append("small scores are not shown")
        return line
    if color:
        line.append(f" {above[0]} ", style=f"not dim {palette.style(1.0)}")
        line.append(f" {above[1]}  ")
        line.append(f" {below[0]} ", style=f"not dim {palette.style(-1.0)}")
        line.append(f"{below[1]}  stronger colour: larger score")
        if _shows_numbers(color, numbers) and not is_image:
            line.append("  [+1] the score")
    elif is_image:
        line.append(f"++ strongly {' '.join(above)}, + weakly; --, - {''.join(below)}")
    else:
        neither = ", [0.5] neither: a size only" if unsigned else ""
        line.append(f"[+] {' '.join(above)}, [-] {''.join(below)}{neither}; ")
        line.append("small scores are not shown")
    return line


def _meaning(explanation: Explanation) -> tuple[tuple[str, str], tuple[str, str]]:
    """What positive and negative scores mean: a word to colour, and the words after it."""
    target = explanation.target
    if not are_shares(explanation):
        return ("ranked high", f"by {explanation.method}"), ("negative score", "")

    def short(label: str) -> str:
        whole = len(label) <= _LONGEST_NAME or label == RUNNERS_UP
        cut = label if whole else f"{label[: _LONGEST_NAME - 1]}…"
        return printable(label_name(target, cut))

    other = target.against_label
    return ("for", short(target.label)), ("against", f" (for {short(other)})" if other else "")


def _palette() -> Palette:
    depth = terminal_depth()
    return Palette("truecolor" if depth == "none" else depth, terminal_background())


def _grid(explanation: Explanation, color: bool) -> Text:
    """The cells of an image, two characters wide; without colour, + and − by strength."""
    patches = cells(explanation, limit=1024)
    palette = _palette()
    rows = Text()
    for top in sorted({cell.top for cell in patches}):
        row = sorted((cell for cell in patches if cell.top == top), key=lambda cell: cell.left)
        rows.append("\n" if rows else "")
        for cell in row:
            sign = "+" if cell.strength > 0 else "-"
            size = abs(cell.strength)
            letters = sign * 2 if size >= 0.5 else sign + " " if size >= 0.1 else ". "
            style = palette.style(cell.strength) if color else ""
            rows.append("  " if " on " in style else letters, style=style or ("dim" * color))
    return rows


def ledger_line(explanation: Explanation) -> str:
    """The ledger as a sum."""
    assert explanation.ledger is not None
    parts = [f"{line.label} {signed(line.value)}" for line in summary(explanation.ledger)]
    residual = signed(explanation.ledger.residual)
    return f"{' · '.join(parts)} · residual {residual} = {signed(explanation.output)}"


def wants_color() -> bool:
    """Whether the output shows colours: a terminal that can, or where they are asked for."""
    return terminal_depth() != "none"


def text_width() -> int:
    """The width of the terminal; in a pipe COLUMNS, where it is set."""
    fallback = (_PIPE_WIDTH, 24)
    if sys.stdout.isatty():
        return shutil.get_terminal_size(fallback).columns
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else _PIPE_WIDTH


def make_console(color: bool, width: int | None) -> Console:
    """A console that keeps what is printed."""
    return Console(
        file=io.StringIO(),
        force_terminal=color,
        color_system=_SYSTEMS[_palette().depth] if color else None,
        width=width or text_width(),
        highlight=False,
        no_color=not color,
    )


def console_text(console: Console) -> str:
    """What was printed on such a console."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip("\n")
