"""The colours that a terminal can show, and those of scores on its background."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Literal

from rich.color import Color, ColorSystem

Depth = Literal["none", "16", "256", "truecolor"]
Background = Literal["light", "dark", "unknown"]

RGB = tuple[int, int, int]

_FOR, _AGAINST, _WHITE = (214, 39, 39), (31, 119, 220), (255, 255, 255)
# strong units are mixed from these; reds have as much green as blue, else some of 256 are purple
_GREY = {True: (110, 88, 88), False: (110, 90, 110)}
_BLUE_256 = (31, 80, 255)  # mixed with a page, _AGAINST has steps that are teal or cyan of 256
_PAGE = {"light": (255, 255, 255), "dark": (24, 24, 24)}
_WEAK, _MEDIUM = 0.25, 0.5  # where a colour of the letters becomes bold, and one of the background
QUIET = 0.05  # up to this strength a unit has no colour
_TRUECOLOR_TERMS = ("-direct", "kitty", "alacritty", "ghostty", "wezterm", "foot")
_TRUECOLOR_PROGRAMS = ("iTerm.app", "WezTerm", "vscode", "ghostty", "Hyper")


def terminal_depth() -> Depth:
    """How many colours the output can show.

    NO_COLOR means none. FORCE_COLOR asks for colours where there is no terminal too: 1 for what
    the terminal can, 2 for 256 colours, 3 for all, 0 for none. Else there are none in a pipe, and
    what COLORTERM and TERM say in a terminal.
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
    """Whether the terminal is light or dark, by WHEREFROM_BACKGROUND or COLORFGBG."""
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
    """How strengths from −1 to 1 look: what is weak fades into the background.

    Where the background is known, a colour is mixed with it. Where it is not, or where there are
    few colours, weak units have coloured letters, and only strong ones a background.
    """

    depth: Depth
    background: Background = "unknown"

    def style(self, strength: float) -> str:
        """The style of rich for a unit; units that speak against are underlined too."""
        size = abs(strength)
        if size < QUIET or self.depth == "none":
            return ""
        underline = " underline" if strength < 0 else ""
        page = _PAGE.get(self.background)
        if page is None or self.depth == "16":
            return self._stepped(size, strength > 0) + underline
        share = min(1.0, size) ** 0.8
        against = _BLUE_256 if self.depth == "256" else _AGAINST
        color = self._named(_mixed(page, _FOR if strength > 0 else against, share))
        # else the terminal's own letters, which fit its background
        ink = f"{self._named(_WHITE)} " if size > 0.55 else ""
        return f"{ink}on {color}{underline}"

    def _stepped(self, size: float, is_for: bool) -> str:
        if self.depth == "16":
            # dark blue is hardly seen on black, nor is dark red where it says something
            letters, ground = ("red", "red") if is_for else ("bright_blue", "blue")
            letters = "bright_red" if is_for and size >= _WEAK else letters
        else:
            tint = _FOR if is_for else _AGAINST
            letters = self._named(_mixed((128, 128, 128), tint, 0.85))
            ground = self._named(_mixed(_GREY[is_for], tint, min(1.0, size)))
        if size >= _MEDIUM:
            white = "bold bright_white" if self.depth == "16" else self._named(_WHITE)
            return f"{white} on {ground}"
        return f"bold {letters}" if size >= _WEAK else letters

    def _named(self, color: RGB) -> str:
        """A colour by the name that rich has for it; of 256, the nearest."""
        if self.depth == "256":
            # here, not by rich when it prints: it keeps the codes of a style for all consoles
            nearest = Color.from_rgb(*color).downgrade(ColorSystem.EIGHT_BIT)
            return f"color({nearest.number})"
        return "#{:02x}{:02x}{:02x}".format(*color)


def _mixed(a: RGB, b: RGB, share: float) -> RGB:
    red, green, blue = (round(x + (y - x) * share) for x, y in zip(a, b, strict=True))
    return red, green, blue
