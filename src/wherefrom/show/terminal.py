"""Explanations as coloured text: red counts for the target, blue against it, green is unsigned."""

from __future__ import annotations

import base64
import io
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from rich.color import Color, ColorSystem
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wherefrom.core.explanation import RUNNERS_UP, Explanation
from wherefrom.errors import printable
from wherefrom.show.line_kinds import named_ledger, summary
from wherefrom.show.sentence import for_legend, has_direction, sentence, unit_name
from wherefrom.show.svg import cells, kind_of
from wherefrom.show.text_marks import (
    LONGEST_LABEL,
    error_note,
    heading,
    is_mixed,
    label_name,
    marks,
    signed,
    text_part,
    wrapped_label,
)

Depth = Literal["none", "16", "256", "truecolor"]
Background = Literal["light", "dark", "unknown"]

RGB = tuple[int, int, int]

_WHITE = (255, 255, 255)
_TINTS = {"for": (214, 39, 39), "against": (31, 119, 220), "strength": (0, 130, 90)}
# strong units are mixed from these greys, chosen so that no colour of 256 turns purple
_GREYS = {"for": (110, 88, 88), "against": (110, 90, 110), "strength": (88, 110, 88)}
_BLUE_256 = (31, 80, 255)  # the other blue has steps that turn teal with 256 colours
# weak text, text, background: dark blue and dark red are hard to see on black
_ANSI_16 = {
    "for": ("red", "bright_red", "red"),
    "against": ("bright_blue", "bright_blue", "blue"),
    "strength": ("green", "bright_green", "green"),
}
_PAGE = {"light": (255, 255, 255), "dark": (24, 24, 24)}
_WEAK, _MEDIUM = 0.25, 0.5  # strengths from which units have bold text, and a background
QUIET = 0.05  # up to this strength a unit has no colour
_TRUECOLOR_TERMS = ("-direct", "kitty", "alacritty", "ghostty", "wezterm", "foot")
_TRUECOLOR_PROGRAMS = ("iTerm.app", "WezTerm", "vscode", "ghostty", "Hyper")
_SYSTEMS: dict[str, Literal["standard", "256", "truecolor"]] = {
    "16": "standard",
    "256": "256",
    "truecolor": "truecolor",
}
_SHOWN = 0.1  # a score is shown if it is at least this share of the largest
_WIDE = 28  # a smaller image is enlarged, to at most this many characters
_LONGEST_NAME = 24
_PIPE_WIDTH = 100  # line width without a terminal


def render(
    explanation: Explanation,
    color: bool | None = None,
    width: int | None = None,
    numbers: bool | None = None,
    legend: bool = True,
) -> str:
    """Prediction, heatmap, ledger and legend of one explanation.

    `numbers` shows the scores next to the units; by default only without colours and in a pipe.
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
    if explanation.errors is not None:
        console.print(Text(error_note(explanation), style="dim"))
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
    """One input by several methods, one per row; each row is scaled by its strongest unit."""
    color = wants_color() if color is None else color
    console = make_console(color, width)
    first = explanations[0]
    model = Text(printable(first.model), style="dim")
    console.print(Text(printable(heading(first)), style="bold"), model)
    reasons = Text(printable(f"Scores by {first.method_label}."), style="dim")
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
        # a Text, since brackets in a plain string would be markup
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

    Negative units are underlined, so that signs are visible without colour. Each text of a pair
    begins a line.
    """
    if is_mixed(explanation):
        explanation = text_part(explanation)
    if kind_of(explanation) == "image":
        return _grid(explanation, color)
    palette = _palette()
    line = Text()
    field = ""
    form = "[{:+.2g}]" if explanation.signed else "[{:.2g}]"
    is_molecule = kind_of(explanation) == "molecule"  # the sentence numbers its atoms
    for i, (unit, mark) in enumerate(zip(explanation.units, marks(explanation), strict=True)):
        begins = bool(field and unit.field and unit.field != field)
        field = unit.field or field
        line.append("\n" if begins else printable(mark.gap))
        text = unit_name(explanation, i) if is_molecule else mark.text.replace("\n", "⏎")
        text = printable(text) or "·"
        quiet = "dim" if mark.special else ""
        line.append(text, style=palette.style(mark.strength, mark.tint) or quiet if color else "")
        if _shows_numbers(color, numbers) and abs(mark.strength) >= _SHOWN:
            error = f"±{mark.error:.1g}]" if mark.error else "]"
            line.append(form.format(mark.score)[:-1] + error)
    return line


def _shows_numbers(color: bool, numbers: bool | None) -> bool:
    return not (color and sys.stdout.isatty()) if numbers is None else numbers or not color


def _legend(explanations: Sequence[Explanation], color: bool, numbers: bool | None) -> Text:
    """A one-line legend for the heatmaps of one input."""
    explanation = for_legend(explanations)
    unsigned = [e for e in explanations if not e.signed]
    palette, line = _palette(), Text(style="dim")
    is_image = kind_of(explanation) == "image"
    small = "small scores are not shown"
    subject = "this method has" if len(explanations) == 1 else "these methods have"
    if len(unsigned) == len(explanations):
        if color:
            line.append(" strength ", style=f"not dim {palette.style(1.0, 'strength')}")
            line.append(f" {subject} no sign  stronger colour: larger score")
        elif is_image:
            line.append(f"++ large score, + small; {subject} no sign")
        else:
            line.append(f"[0.5] the strength: {subject} no sign; {small}")
        return line
    above, below = _meaning(explanation)
    if color:
        line.append(f" {above[0]} ", style=f"not dim {palette.style(1.0)}")
        line.append(f" {above[1]}  ")
        line.append(f" {below[0]} ", style=f"not dim {palette.style(-1.0)}")
        line.append(f"{below[1]}  ")
        if unsigned:
            line.append(" strength ", style=f"not dim {palette.style(1.0, 'strength')}")
            line.append(" without a sign  ")
        line.append("stronger colour: larger score")
        if _shows_numbers(color, numbers) and not is_image:
            line.append("  [+1] the score")
    elif is_image:
        line.append(f"++ strongly {' '.join(above)}, + weakly; --, - {''.join(below)}")
    else:
        strength = ", [0.5] a strength without a sign" if unsigned else ""
        line.append(f"[+] {' '.join(above)}, [-] {''.join(below)}{strength}; {small}")
    return line


def _meaning(explanation: Explanation) -> tuple[tuple[str, str], tuple[str, str]]:
    """The meanings of positive and negative scores: a word to colour, and the text after it."""
    target = explanation.target
    if not has_direction(explanation):
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


def _half_blocks(explanation: Explanation, palette: Palette) -> Text:
    """The image in grey with its cells coloured: each character shows two pixels, one per half."""
    scene = explanation.scene or {}
    small = scene["thumbnail"]
    width, height = small["width"], small["height"]
    greys = np.frombuffer(base64.b64decode(small["grey"]), np.uint8).reshape(height, width)
    pixels = (0.65 + 0.35 * greys[..., None] / 255) * np.full(3, 255.0)
    heat = np.zeros((height, width, 4))  # a colour and its opacity
    for cell in cells(explanation, limit=1024):
        top, bottom = (
            round(y * height / scene["height"]) for y in (cell.top, cell.top + cell.height)
        )
        left, right = (
            round(x * width / scene["width"]) for x in (cell.left, cell.left + cell.width)
        )
        heat[top:bottom, left:right] = (*_TINTS[cell.tint], 0.95 * abs(cell.strength) ** 0.7)
    pixels += heat[..., 3:] * (heat[..., :3] - pixels)
    times = max(1, _WIDE // max(width, height))
    pixels = np.repeat(np.repeat(pixels, times, 0), times, 1)
    pixels = np.concatenate([pixels, pixels[-1:]])[: len(pixels) + len(pixels) % 2]
    rows = Text()
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        rows.append("\n" if rows else "")
        for above, below in zip(upper.round().astype(int), lower.round().astype(int), strict=True):
            rows.append("▀", style=f"{palette.name(tuple(above))} on {palette.name(tuple(below))}")
    return rows


def _grid(explanation: Explanation, color: bool) -> Text:
    """The cells of an image, two characters wide; without colour, + and − show the strength."""
    palette = _palette()
    if color and palette.depth != "16" and "thumbnail" in (explanation.scene or {}):
        return _half_blocks(explanation, palette)
    patches = cells(explanation, limit=1024)
    rows = Text()
    for top in sorted({cell.top for cell in patches}):
        row = sorted((cell for cell in patches if cell.top == top), key=lambda cell: cell.left)
        rows.append("\n" if rows else "")
        for cell in row:
            sign = "+" if cell.strength > 0 else "-"
            size = abs(cell.strength)
            letters = sign * 2 if size >= 0.5 else sign + " " if size >= 0.1 else ". "
            style = palette.style(cell.strength, cell.tint) if color else ""
            rows.append("  " if " on " in style else letters, style=style or ("dim" * color))
    return rows


def ledger_line(explanation: Explanation) -> str:
    """The ledger as a sum."""
    assert explanation.ledger is not None
    parts = [f"{line.label} {signed(line.value)}" for line in summary(named_ledger(explanation))]
    residual = signed(explanation.ledger.residual)
    return f"{' · '.join(parts)} · residual {residual} = {signed(explanation.output)}"


def wants_color() -> bool:
    """Whether the output is coloured: the terminal supports it, or the environment forces it."""
    return terminal_depth() != "none"


def text_width() -> int:
    """The width of the terminal; in a pipe, COLUMNS or a default."""
    fallback = (_PIPE_WIDTH, 24)
    if sys.stdout.isatty():
        return shutil.get_terminal_size(fallback).columns
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else _PIPE_WIDTH


def make_console(color: bool, width: int | None) -> Console:
    """A console that records its output."""
    return Console(
        file=io.StringIO(),
        force_terminal=color,
        color_system=_SYSTEMS[_palette().depth] if color else None,
        width=width or text_width(),
        highlight=False,
        no_color=not color,
    )


def console_text(console: Console) -> str:
    """The recorded output of a console."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip("\n")


# Colours of terminals


def terminal_depth() -> Depth:
    """The colour depth of the output.

    NO_COLOR turns colours off. FORCE_COLOR forces them even without a terminal: 1 for what TERM
    supports, 2 for 256 colours, 3 for truecolor, 0 for none. By default a pipe has no colours, and
    COLORTERM and TERM decide in a terminal.
    """
    forced = os.environ.get("FORCE_COLOR", "")
    if os.environ.get("NO_COLOR") or forced.lower() in ("0", "false"):
        return "none"
    by_number: dict[str, Depth] = {"2": "256", "3": "truecolor"}
    if forced in by_number:
        return by_number[forced]
    depth = _depth_of_terminal()
    if forced:
        return "16" if depth == "none" else depth
    return depth if sys.stdout.isatty() else "none"


def _depth_of_terminal() -> Depth:
    term = os.environ.get("TERM", "").lower()
    if term in ("dumb", "unknown"):
        return "none"
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "truecolor"
    if os.environ.get("WT_SESSION") or os.environ.get("TERM_PROGRAM") in _TRUECOLOR_PROGRAMS:
        return "truecolor"
    if any(name in term for name in _TRUECOLOR_TERMS):
        return "truecolor"
    return "256" if "256color" in term else "16"


def terminal_background() -> Background:
    """Whether the terminal is light or dark, from WHEREFROM_BACKGROUND or COLORFGBG."""
    by_name: dict[str, Background] = {"light": "light", "dark": "dark"}
    named = by_name.get(os.environ.get("WHEREFROM_BACKGROUND", "").lower())
    if named is not None:
        return named
    number = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    if not number.isdecimal() or int(number) > 15:
        return "unknown"
    return "light" if int(number) in (7, 15) else "dark"


@dataclass(frozen=True)
class Palette:
    """Styles for strengths from −1 to 1: weak units fade into the background.

    On a known background, colours are mixed with it. On an unknown one, or with few colours, weak
    units have coloured text, and only strong units a coloured background.
    """

    depth: Depth
    background: Background = "unknown"

    def style(self, strength: float, tint: str | None = None) -> str:
        """The rich style of a unit; units that count against the target are also underlined."""
        size = abs(strength)
        if size < QUIET or self.depth == "none":
            return ""
        tint = tint or ("for" if strength > 0 else "against")
        underline = " underline" if tint == "against" else ""
        page = _PAGE.get(self.background)
        if page is None or self.depth == "16":
            return self._stepped(size, tint) + underline
        blue = tint == "against" and self.depth == "256"
        full = _BLUE_256 if blue else _TINTS[tint]
        color = self.name(_mixed(page, full, min(1.0, size) ** 0.8))
        # else the default text colour, which fits the background
        ink = f"{self.name(_WHITE)} " if size > 0.55 else ""
        return f"{ink}on {color}{underline}"

    def _stepped(self, size: float, tint: str) -> str:
        if self.depth == "16":
            weak, strong, ground = _ANSI_16[tint]
            letters = strong if size >= _WEAK else weak
        else:
            letters = self.name(_mixed((128, 128, 128), _TINTS[tint], 0.85))
            ground = self.name(_mixed(_GREYS[tint], _TINTS[tint], min(1.0, size)))
        if size >= _MEDIUM:
            white = "bold bright_white" if self.depth == "16" else self.name(_WHITE)
            return f"{white} on {ground}"
        return f"bold {letters}" if size >= _WEAK else letters

    def name(self, color: RGB) -> str:
        """The name of a colour in rich; with 256 colours, of the nearest one."""
        if self.depth == "256":
            # converted here, since rich caches the codes of a style for all consoles
            nearest = Color.from_rgb(*color).downgrade(ColorSystem.EIGHT_BIT)
            return f"color({nearest.number})"
        return "#{:02x}{:02x}{:02x}".format(*color)


def _mixed(a: RGB, b: RGB, share: float) -> RGB:
    red, green, blue = (round(x + (y - x) * share) for x, y in zip(a, b, strict=True))
    return red, green, blue
