"""The terminal: colours by what it can do, on its background; numbers, a legend, halves."""

import base64
import io
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from rich.color import Color
from rich.style import Style

from tests.show.test_svg import explained
from wherefrom.core.explanation import RUNNERS_UP, Explanation, TargetInfo, Unit
from wherefrom.show.terminal import (
    Palette,
    heatmap,
    render,
    render_rows,
    terminal_background,
    terminal_depth,
)

VARIABLES = (
    "NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM", "TERM_PROGRAM", "WT_SESSION", "COLORFGBG",
    "WHEREFROM_BACKGROUND", "COLUMNS",
)  # fmt: skip


@pytest.fixture
def environment(monkeypatch):
    """Sets these variables and no others, and whether stdout is a terminal."""

    def set_to(tty=True, **variables):
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        out = io.StringIO()
        out.isatty = lambda: tty
        monkeypatch.setattr(sys, "stdout", out)

    return set_to


@pytest.fixture
def explanation():
    """One word strongly for, one weakly, one against."""
    words = "great film dull".split()
    text = " ".join(words)
    return Explanation(
        units=tuple(Unit(w, text.index(w), text.index(w) + len(w), word=i)
                    for i, w in enumerate(words)),
        scores=np.float32([2.0, 0.3, -1.0]),
        target=TargetInfo(1, "POSITIVE"),
        output=1.3,
        probability=0.9,
        method="lrp",
        text=text,
        model="tiny",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("tty", "variables", "depth"),
    [
        (True, {"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "truecolor"),
        (True, {"TERM": "xterm", "COLORTERM": "24bit"}, "truecolor"),
        (True, {"TERM": "xterm-kitty"}, "truecolor"),
        (True, {"TERM": "xterm-direct"}, "truecolor"),
        (True, {"TERM": "xterm", "TERM_PROGRAM": "vscode"}, "truecolor"),
        (True, {"WT_SESSION": "1"}, "truecolor"),
        (True, {"TERM": "screen-256color"}, "256"),
        (True, {"TERM": "xterm"}, "16"),
        (True, {"TERM": "linux"}, "16"),
        (True, {"TERM": "dumb"}, "none"),
        (True, {"TERM": "dumb", "COLORTERM": "truecolor"}, "none"),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, "none"),
        (True, {"TERM": "xterm", "NO_COLOR": ""}, "16"),
        (False, {"TERM": "xterm-256color"}, "none"),
        (False, {"TERM": "xterm-256color", "FORCE_COLOR": "1"}, "256"),
        (False, {"TERM": "dumb", "FORCE_COLOR": "1"}, "16"),
        (False, {"FORCE_COLOR": "2"}, "256"),
        (False, {"FORCE_COLOR": "3"}, "truecolor"),
        (True, {"TERM": "xterm", "FORCE_COLOR": "0"}, "none"),
        (True, {"TERM": "xterm", "FORCE_COLOR": "3", "NO_COLOR": "1"}, "none"),
    ],
)
def test_the_number_of_colours_is_that_of_the_terminal(
    environment, explanation, tty, variables, depth
):
    environment(tty, **variables)
    assert terminal_depth() == depth
    shown = render(explanation)
    assert ("\x1b[" in shown) == (depth != "none")
    assert ("48;2;" in shown) == (depth == "truecolor")
    assert ("48;5;" in shown) == (depth == "256")
    if depth == "16":
        assert re.search(r"\x1b\[[\d;]*;41m", shown)


@pytest.mark.parametrize(
    ("variables", "background"),
    [
        ({}, "unknown"),
        ({"COLORFGBG": "15;0"}, "dark"),
        ({"COLORFGBG": "0;15"}, "light"),
        ({"COLORFGBG": "0;default;7"}, "light"),
        ({"COLORFGBG": "nonsense"}, "unknown"),
        ({"COLORFGBG": "0;15", "WHEREFROM_BACKGROUND": "dark"}, "dark"),
        ({"WHEREFROM_BACKGROUND": "LIGHT"}, "light"),
        ({"WHEREFROM_BACKGROUND": "pink"}, "unknown"),
    ],
)
def test_the_background_is_what_the_variables_say(environment, variables, background):
    environment(**variables)
    assert terminal_background() == background


def brightness(color: Color) -> float:
    """Of a colour of the background, from 0 to 1."""
    red, green, blue = color.get_truecolor()
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("background", "of_page"), [("dark", 0.094), ("light", 1.0)])
def test_weak_scores_fade_into_the_background(background, of_page, sign):
    palette = Palette("truecolor", background)
    grounds = [Style.parse(palette.style(sign * s)).bgcolor for s in (0.06, 0.2, 0.5, 1.0)]
    distances = [abs(brightness(ground) - of_page) for ground in grounds]
    assert distances == sorted(distances)
    assert distances[0] < 0.1
    assert distances[-1] > 0.1
    assert palette.style(0.04) == ""


@pytest.mark.parametrize("depth", ["truecolor", "256", "16"])
@pytest.mark.parametrize("sign", [1, -1])
def test_on_an_unknown_background_weak_scores_colour_only_their_letters(depth, sign):
    palette = Palette(depth, "unknown")
    weak, medium, strong = (Style.parse(palette.style(sign * s)) for s in (0.1, 0.3, 0.9))
    assert weak.bgcolor is None
    assert medium.bgcolor is None
    assert medium.bold
    assert strong.bgcolor is not None
    assert bool(weak.underline) == bool(strong.underline) == (sign < 0)


@pytest.mark.parametrize("background", ["unknown", "dark"])
def test_red_of_256_colours_is_never_purple(background):
    palette = Palette("256", background)
    grounds = [Style.parse(palette.style(k / 1000)).bgcolor for k in range(500, 1001)]
    for red, green, blue in (ground.get_truecolor() for ground in grounds):
        assert red > green == blue


@pytest.mark.parametrize("background", ["light", "dark"])
def test_blue_of_256_colours_is_neither_teal_nor_purple(background):
    palette = Palette("256", background)
    grounds = [Style.parse(palette.style(-k / 1000)).bgcolor for k in range(100, 1001)]
    for red, green, blue in (ground.get_truecolor() for ground in grounds):
        assert blue > green >= red


def test_of_16_colours_dark_red_is_for_weak_scores_only():
    palette = Palette("16")
    colors = [Style.parse(palette.style(s)).color.name for s in (0.1, 0.3, 0.9)]
    assert colors == ["red", "bright_red", "bright_white"]


def test_numbers_come_with_colours_on_request_and_always_in_a_pipe(environment, explanation):
    plain = re.compile(r"\x1b\[[\d;]*m")
    environment(tty=True, TERM="xterm")
    assert "[+2]" not in render(explanation)
    asked = plain.sub("", render(explanation, numbers=True))
    assert "great[+2] film[+0.3] dull[-1]" in asked
    environment(tty=False, FORCE_COLOR="3")
    assert "great[+2]" in plain.sub("", render(explanation))
    environment(tty=False)
    assert "great[+2]" in render(explanation)
    assert "great[+2]" in render_rows([explanation])


def test_the_last_line_says_how_to_read_it(environment, explanation):
    environment(tty=False)
    legend = render(explanation).splitlines()[-1]
    assert legend == "[+] for POSITIVE, [-] against; small scores are not shown"
    assert render_rows([explanation]).splitlines()[-1] == legend
    assert legend not in render(explanation, legend=False)
    contrast = replace(explanation, target=TargetInfo(1, "P" * 40, 0, "NEGATIVE"))
    last = render(contrast).splitlines()[-1]
    assert f"for {'P' * 23}…, [-] against (for NEGATIVE)" in last
    environment(tty=True, TERM="xterm")
    last = re.sub(r"\x1b\[[\d;]*m", "", render(explanation)).splitlines()[-1]
    assert last == " for  POSITIVE   against   stronger colour: larger score"


def test_each_text_of_a_pair_has_a_line(environment, explanation):
    environment(tty=False)
    units = [replace(u, field=f) for u, f in zip(explanation.units, "aab", strict=True)]
    shown = render(replace(explanation, units=tuple(units)))
    assert "great[+2] film[+0.3]\ndull[-1]" in shown


def test_scores_without_a_sign_are_not_said_to_count_for_or_against(environment, explanation):
    environment(tty=False)
    sizes = replace(explanation, method="attention_rollout", scores=np.float32([0.5, 0.1, 0.2]))
    lines = render(sizes).splitlines()
    assert lines[-2] == "great[0.5] film[0.1] dull[0.2]"
    assert lines[-1] == ("[0.5] the strength: this method has no sign; small scores are not shown")
    together = render_rows([sizes, explanation]).splitlines()[-1]
    assert together == (
        "[+] for POSITIVE, [-] against, [0.5] a strength without a sign; small scores are not shown"
    )
    ranked = replace(explanation, method="random")
    assert render(ranked).splitlines()[-1].startswith("[+] ranked high by random, [-] negative")
    environment(tty=True, TERM="xterm")
    last = re.sub(r"\x1b\[[\d;]*m", "", render(sizes)).splitlines()[-1]
    assert last == " strength  this method has no sign  stronger colour: larger score"


def test_the_legend_quotes_tokens(environment, explanation):
    environment(tty=False)
    target = TargetInfo(7, " banana", 8, " a", position=2)
    last = render(replace(explanation, target=target)).splitlines()[-1]
    assert last.startswith("[+] for “ banana”, [-] against (for “ a”);")
    several = replace(target, against_label=RUNNERS_UP)
    last = render(replace(explanation, target=several)).splitlines()[-1]
    assert "[-] against (for the runner-up of each token);" in last


def test_atoms_are_named_as_the_sentence_names_them(environment, explanation):
    environment(tty=False)
    units = tuple(Unit(letter) for letter in "CCO")
    molecule = replace(explanation, units=units, text=None, scene={"kind": "molecule"})
    shown = render(molecule)
    assert "C1 counts most for POSITIVE, O3 against it" in shown
    assert "C1[+2] C2[+0.3] O3[-1]" in shown


@pytest.mark.parametrize(
    ("columns", "widest"), [({}, 100), ({"COLUMNS": "60"}, 60), ({"COLUMNS": "0"}, 100)]
)
def test_in_a_pipe_lines_are_as_long_as_the_variable_says(
    columns, widest, environment, explanation
):
    environment(tty=False, **columns)
    long = replace(explanation, model="word " * 60)
    assert widest - 10 < max(map(len, render(long).splitlines())) <= widest


def test_an_image_is_drawn_in_half_blocks_in_the_colours_of_its_scores(environment):
    environment(TERM="xterm-256color", COLORTERM="truecolor")
    one = explained(side=4, size=8, label="cat")
    greys = [(x * 7 + y * 5) % 256 for y in range(32) for x in range(32)]
    small = {"width": 32, "height": 32, "grey": base64.b64encode(bytes(greys)).decode()}
    shown = heatmap(replace(one, scene={**one.scene, "thumbnail": small}), color=True)
    assert shown.plain.split("\n") == ["▀" * 32] * 16
    styles = [Style.parse(str(span.style)) for span in shown.spans]
    assert len(styles) == 32 * 16
    scale = np.abs(one.scores).max()
    for y, x in np.ndindex(32, 32):
        style = styles[y // 2 * 32 + x]
        score = float(one.scores[y // 8 * 4 + x // 8])
        ground = 255 * 0.65 + 0.35 * greys[y * 32 + x]
        opacity = 0.95 * (abs(score) / scale) ** 0.7
        tint = (214, 39, 39) if score > 0 else (31, 119, 220)
        expected = [ground + opacity * (channel - ground) for channel in tint]
        color = style.bgcolor if y % 2 else style.color
        np.testing.assert_allclose(color.triplet, expected, atol=0.51)
    assert set(heatmap(one, color=False).plain) <= set("+-. \n")  # without colour, signs
