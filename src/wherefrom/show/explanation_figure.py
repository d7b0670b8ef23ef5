"""Explanations as figures: coloured texts, images and molecules, waterfalls, bars."""

from __future__ import annotations

import base64
import io
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.core.explanation import Explanation
from wherefrom.errors import InputError, printable
from wherefrom.show.line_kinds import lines_beyond_units
from wherefrom.show.plot_style import (
    AXIS,
    DIM,
    GRID,
    INK,
    TINTS,
    Drawing,
    colormap,
    import_matplotlib,
    shade,
    short_label,
)
from wherefrom.show.sentence import explained, for_legend, named_units, sides, unit_name
from wherefrom.show.svg import (
    Cell,
    cells,
    disc_radius,
    kind_of,
    label_places,
    outlines,
)
from wherefrom.show.text_marks import (
    heading,
    is_mixed,
    largest_score,
    marks,
    pictures,
    score_text,
    short_number,
    signed,
    text_part,
    tint,
    wrapped_label,
)

_TOTAL = "#444444"
_WIDTH = 6.5  # inches, of a text
_SIZES = (10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0)  # of fonts, in points
_LINE = 1.85  # height of a line, in font sizes
_PAD = 0.12  # of the colour around a token, in font sizes
_MOST_NUMBERS = 400  # more squares have no room for their scores
_NUMBER_SIZE, _READABLE, _SMALLEST = 7.0, 5.0, 2.5  # of numbers in an image, in points
_QUIET = 0.05  # up to this strength a unit has no number and no sign
Bar = tuple[str, float, float]  # name, start, value
Heat = NDArray[np.float64]  # strengths from −1 to 1


def drawings(explanation: Explanation) -> dict[str, Callable[..., Drawing]]:
    """The figures of one explanation."""
    return {
        "heatmap": partial(heatmaps, [explanation]),
        "waterfall": partial(_bars, explanation, waterfall_bars),
        "bar": partial(_bars, explanation, _by_size),
    }


def heatmaps(explanations: Sequence[Explanation]) -> Drawing:
    """The input in colour, in a row or panel for each explanation of it, with a key."""
    first = explanations[0]
    if kind_of(first):
        return _scenes(explanations)
    if is_mixed(first):
        return _texts_and_images(explanations)

    def on_figure(figure: Any) -> None:
        figure.set_layout_engine("none")
        _draw_texts(explanations, figure.add_axes((0, 0, 1, 1)), has_title=True)

    size = (_WIDTH, _Layout(explanations, _WIDTH * 72, _SIZES[0], True).height / 72)
    return Drawing(size, partial(_draw_texts, explanations, has_title=False), on_figure)


# Texts


@dataclass(frozen=True)
class _Token:
    """A piece of text that is coloured as one; `gap` is the text before it."""

    text: str
    gap: str = " "
    fill: Any = None
    is_underlined: bool = False
    color: str = INK


@dataclass(frozen=True)
class _Placed:
    """A token with its left end and its baseline, in points from the top left corner."""

    token: _Token
    x: float
    y: float
    width: float


class _Layout:
    """The tokens of all rows, broken into lines of a width, in points."""

    def __init__(
        self, explanations: Sequence[Explanation], width: float, size: float, has_title: bool
    ) -> None:
        self.size, self.width = size, width - 0.2 * size
        self.placed: list[_Placed] = []
        self.height = 0.6 * size
        self.fits = True
        margin = 0.2 * size
        first = explanations[0]
        if has_title:
            names = [first.method_label] if len(explanations) == 1 else []
            title = " · ".join([*heading(first).split("  "), *filter(None, [first.model]), *names])
            self._flow([_Token(printable(word), color=DIM) for word in title.split()], margin)
            self.height += 0.3 * size
        labels = [
            wrapped_label(e).split("\n") if len(explanations) > 1 else [] for e in explanations
        ]
        widest = max((self._measure(line) for lines in labels for line in lines), default=0.0)
        left = margin + (widest + 1.5 * size if widest else 0.0)
        for explanation, lines in zip(explanations, labels, strict=True):
            top = self.height
            for k, line in enumerate(lines):
                self._place(_Token(line), margin, top + (1 + k * 1.2) * 0.72 * _LINE * size)
            self._flow(list(_tokens(explanation)), left)
            self.height = max(self.height, top + (len(lines) + 0.2) * 1.2 * size)
        self.height += 0.4 * size
        self._flow(_key_tokens(explanations), margin)
        self.height += 0.4 * size

    def _measure(self, text: str) -> float:
        matplotlib = import_matplotlib()
        font = matplotlib.font_manager.FontProperties(size=self.size)
        to_path = matplotlib.textpath.text_to_path
        return float(to_path.get_text_width_height_descent(text, font, False)[0])

    def _place(self, token: _Token, x: float, y: float) -> None:
        self.placed.append(_Placed(token, x, y, self._measure(token.text)))

    def _flow(self, tokens: Sequence[_Token], left: float) -> None:
        """Adds lines; a line breaks before a word, or within one that is longer than a line."""
        size = self.size
        x, space = left, self._measure("n n") - self._measure("nn")
        y = self.height + 0.72 * _LINE * size
        for word in _words(tokens):
            widths = [self._measure(token.text) for token in word]
            x += len(word[0].gap) * space if x > left else 0.0
            breaks = word[0].gap.count("\n")
            if breaks or (x + sum(widths) > self.width and x > left):
                x, y = left, y + max(1, breaks) * _LINE * size
            for token, width in zip(word, widths, strict=True):
                if x + width > self.width and x > left:
                    x, y = left, y + _LINE * size
                self.placed.append(_Placed(token, x, y, width))
                x += width
                self.fits &= x <= self.width + 0.01
        self.height = y + 0.28 * _LINE * size


def _words(tokens: Sequence[_Token]) -> Iterator[list[_Token]]:
    """Tokens without a gap between them, which stay on one line if they can."""
    word: list[_Token] = []
    for token in tokens:
        if token.gap and word:
            yield word
            word = []
        word.append(token)
    if word:
        yield word


def _tokens(explanation: Explanation) -> Iterator[_Token]:
    for mark in marks(explanation):
        size = abs(mark.strength)
        yield _Token(
            printable(mark.text.replace("\n", "⏎").replace("\t", " ")) or "·",
            mark.gap,
            shade(mark.tint, 0.85 * size) if size >= 0.02 else None,
            mark.strength < -_QUIET,
            DIM if mark.special else INK,
        )


def _key(explanations: Sequence[Explanation]) -> list[tuple[str, str]]:
    """The colours in use, with their meanings."""
    first = for_legend(explanations)
    above, below = sides(first)
    entries = [("for", above), ("against", below)] if first.signed else []
    if not all(explanation.signed for explanation in explanations):
        entries.append(("strength", "strength without a sign" if first.signed else above))
    return entries


def _scale(explanations: Sequence[Explanation]) -> str:
    """The score that has the full colour."""
    if len(explanations) > 1:
        return "full colour: the largest score of a method"
    return f"full colour: a score of {signed(largest_score(explanations[0])).lstrip('+')}"


def _key_tokens(explanations: Sequence[Explanation]) -> list[_Token]:
    tokens = []
    for name, meaning in _key(explanations):
        tokens.append(_Token("    ", "  ", shade(name, 0.85), name == "against"))
        tokens += [_Token(printable(word), color=DIM) for word in meaning.split()]
    scale = _scale(explanations).split()
    return [
        *tokens,
        *(_Token(word, "   " if k == 0 else " ", color=DIM) for k, word in enumerate(scale)),
    ]


def _draw_texts(explanations: Sequence[Explanation], axes: Any, has_title: bool) -> None:
    """Draws coloured texts in the largest font that fits the axes."""
    box = axes.get_window_extent()
    scale = 72 / axes.figure.dpi
    width, height = box.width * scale, box.height * scale
    for size in _SIZES:
        layout = _Layout(explanations, width, size, has_title)
        if layout.fits and layout.height <= height + 0.01:
            break
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    matplotlib = import_matplotlib()
    pad = _PAD * layout.size
    for placed in layout.placed:
        token, x, y = placed.token, placed.x, placed.y
        if token.fill is not None:
            axes.add_patch(
                matplotlib.patches.Rectangle(
                    (x - pad / 2, y - 0.95 * layout.size), placed.width + pad, 1.3 * layout.size,
                    facecolor=token.fill, edgecolor="none", zorder=1,
                )
            )  # fmt: skip
        if token.is_underlined:
            axes.plot(
                [x, x + placed.width], [y + 0.26 * layout.size] * 2, ":", color=TINTS["against"],
                linewidth=0.14 * layout.size, zorder=2,
            )  # fmt: skip
        axes.text(x, y, token.text, fontsize=layout.size, color=token.color, zorder=3)


# Waterfalls and bars


def _bars(
    explanation: Explanation,
    rows: Callable[[Explanation, int], list[Bar]],
    units: int = 10,
) -> Drawing:
    """Bars for the strongest units, with their numbers in a column."""
    if units < 1:
        raise InputError(f"units must be 1 or more, got {units}.")
    bars = rows(explanation, units)
    return Drawing((_WIDTH, 0.27 * len(bars) + 1.1), partial(_draw_bars, bars, explanation))


def waterfall_bars(explanation: Explanation, units: int) -> list[Bar]:
    """Bars of the strongest units, other units, the model's lines, the residual and the output."""
    ledger = explanation.ledger
    if ledger is None:
        raise InputError(
            f"the scores of {explanation.method} do not add up to the output, which a waterfall "
            "requires.",
            'Use plot("bar").',
            command="",
        )
    named, rest = _strongest(explanation, units)
    lines = [*named, *([("other units", rest)] if rest else [])]
    lines += [(line.label, line.value) for line in lines_beyond_units(explanation)]
    total = sum(value for _, value in lines)
    lines.append(("residual", ledger.output - total))
    bars, start = [], 0.0
    for name, value in lines:
        bars.append((name, start, value))
        start += value
    return [*bars, ("output", 0.0, ledger.output)]


def _by_size(explanation: Explanation, units: int) -> list[Bar]:
    named, rest = _strongest(explanation, units)
    named += [("other units", rest)] if rest else []
    return [(name, 0.0, value) for name, value in named]


def _strongest(explanation: Explanation, units: int) -> tuple[list[tuple[str, float]], float]:
    """The strongest units with tokens joined to words, and the sum of all others."""
    if explanation.text is not None and any(unit.word is not None for unit in explanation.units):
        explanation = explanation.words()
    scores = explanation.scores.astype(float).tolist()
    order = sorted(range(len(scores)), key=lambda i: -abs(scores[i]))
    named = [(explanation.units[i].text.strip() or "·", scores[i]) for i in order[:units]]
    return named, float(sum(scores[i] for i in order[units:]))


def _draw_bars(bars: Sequence[Bar], explanation: Explanation, axes: Any) -> None:
    box = axes.get_window_extent()
    width, height = (side * 72 / axes.figure.dpi for side in (box.width, box.height))
    size = min(9.0, 0.7 * height / len(bars), width / 28)
    hues = set()
    for row, (name, start, value) in enumerate(bars):
        is_total = name == "output" and row == len(bars) - 1 and row > 0
        hue = "for" if not value else tint(value, explanation.signed)
        hues |= {hue} if value and not is_total else set()
        color = _TOTAL if is_total else TINTS[hue]
        hatch = "" if value >= 0 else "///"  # shows the sign without colour
        axes.barh(row, value, left=start, color=color, height=0.7, hatch=hatch,
                  edgecolor="white", linewidth=0.5)  # fmt: skip
        text = signed(value) if is_total else score_text(value, hue)
        # a column at the right, where no bar is
        axes.annotate(
            text, (1, row), xytext=(5.6 * size, 0), xycoords=axes.get_yaxis_transform(),
            textcoords="offset points", va="center", ha="right", fontsize=size,
            fontweight="bold" if is_total else "normal", annotation_clip=False,
        )  # fmt: skip
        if row + 1 < len(bars) and bars[row + 1][1] == start + value and start + value:
            axes.plot([start + value] * 2, [row - 0.35, row + 1.35], color=AXIS, linewidth=0.6)
    axes.set_yticks(range(len(bars)), [short_label(name) for name, _, _ in bars], fontsize=size)
    axes.tick_params(axis="x", labelsize=size)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.axvline(0, color=AXIS, linewidth=0.8)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.margins(x=0.03)
    label = explained(explanation).removeprefix("Explained: ")
    axes.set_xlabel(textwrap.fill(label, int(width / (0.55 * size))), fontsize=size)
    entries = [entry for entry in _key([explanation]) if entry[0] in hues]
    _legend(axes, entries, "lower left", size, bbox_to_anchor=(0, 1.0))


def _legend(
    owner: Any, entries: Sequence[tuple[str, str]], place: str, size: float, **options: Any
) -> None:
    """The key of the colours, on axes or on a figure."""
    patches = import_matplotlib().patches
    handles = [
        patches.Patch(
            facecolor=TINTS.get(name, "none"),
            hatch="///" if name == "against" else "",
            edgecolor="white",
            label=meaning,
        )
        for name, meaning in entries
    ]
    owner.legend(
        handles=handles, loc=place, ncols=max(1, len(handles)), frameon=False, fontsize=size,
        handlelength=1.2, handleheight=0.9, columnspacing=1.4, borderaxespad=0.2, **options,
    )  # fmt: skip


# Images, superpixels, molecules


def _scenes(explanations: Sequence[Explanation]) -> Drawing:
    """The input next to the heatmap of each explanation; on axes, the heatmap alone."""
    count = len(explanations) + 1
    columns = min(5, count)
    rows = -(-count // columns)
    width = 3.0 if kind_of(explanations[0]) == "molecule" else 2.1

    def on_axes(axes: Any) -> None:
        draw_scene(axes, explanations[0])
        key = [*_key(explanations), ("", _scale(explanations))]
        _legend(axes, key, "upper center", 8, bbox_to_anchor=(0.5, -0.02))
        _write_scores([axes], explanations)

    def on_figure(figure: Any) -> None:
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat:
            axes.axis("off")
        _draw_input(grid.flat[0], explanations[0])
        grid.flat[0].set_title("input", fontsize=8)
        for axes, explanation in zip(grid.flat[1:], explanations, strict=False):
            draw_scene(axes, explanation)
            axes.set_title(f"{wrapped_label(explanation)}\n{explanation.target}", fontsize=8)
        _legend(
            figure, [*_key(explanations), ("", _scale(explanations))], "outside lower center", 8
        )
        _write_scores(grid.flat[1:], explanations)

    size = (width * columns, 2.4 * rows + 0.4)
    return Drawing(size, on_axes if count == 2 else None, on_figure)


def _texts_and_images(explanations: Sequence[Explanation]) -> Drawing:
    """The images of each explanation, and their texts below."""
    shown = [picture for explanation in explanations for picture in pictures(explanation)]
    texts = [text_part(explanation) for explanation in explanations]
    columns = max(1, len(shown) // len(explanations))
    rows = len(explanations)
    height = _Layout(texts, _WIDTH * 72, _SIZES[0], True).height / 72

    def on_figure(figure: Any) -> None:
        upper, lower = figure.subfigures(2, 1, height_ratios=(2.4 * rows, height))
        panels = list(upper.subplots(rows, columns, squeeze=False).flat)
        for k, (axes, picture) in enumerate(zip(panels, shown, strict=True)):
            draw_scene(axes, picture)
            name = f"image {k % columns + 1}"
            axes.set_title(f"{name}\n{picture.method_label}" if rows > 1 else name, fontsize=8)
        _write_scores(panels, shown)
        _draw_texts(texts, lower.add_axes((0, 0, 1, 1)), has_title=True)

    return Drawing((_WIDTH, 2.4 * rows + height), None, on_figure)


def _draw_input(axes: Any, explanation: Explanation) -> None:
    """Draws the picture of an explanation without colours."""
    if kind_of(explanation) == "molecule":
        _draw_structure(axes, explanation)
    else:
        axes.imshow(_picture(explanation), cmap="gray", extent=_extent(explanation))


def draw_scene(axes: Any, explanation: Explanation) -> None:
    """Draws the picture of an explanation in its colours."""
    axes.axis("off")
    kind = kind_of(explanation)
    if kind == "molecule":
        _draw_discs(axes, explanation)
        _draw_structure(axes, explanation)
        return
    picture, extent = _picture(explanation), _extent(explanation)
    grey = picture if picture.ndim == 2 else picture[..., :3].mean(-1)
    axes.imshow(0.65 + 0.35 * grey, cmap="gray", vmin=0, vmax=1, extent=extent)
    heat = _patch_heat(explanation) if kind == "image" else _region_heat(explanation)
    axes.imshow(
        heat,
        cmap=colormap(explanation.signed),
        vmin=-1,
        vmax=1,
        alpha=np.clip(np.abs(heat) ** 0.7, 0, 0.95),
        extent=extent,
        interpolation="nearest",
    )


def _write_scores(panels: Sequence[Any], explanations: Sequence[Explanation]) -> None:
    """Writes scores in a size that fits, which is known when the figure is laid out."""
    writers = {"image": _number_cells, "molecule": _number_atoms}
    panels[0].figure.canvas.figure.draw_without_rendering()
    for axes, explanation in zip(panels, explanations, strict=False):
        write = writers.get(kind_of(explanation))
        if write is not None:
            write(axes, explanation, axes.get_window_extent().width * 72 / axes.figure.dpi)


def _picture(explanation: Explanation) -> Any:
    png = io.BytesIO(base64.b64decode((explanation.scene or {})["png"]))
    return import_matplotlib().image.imread(png, format="png")


def _extent(explanation: Explanation) -> tuple[float, float, float, float]:
    scene = explanation.scene or {}
    return 0, scene["width"], scene["height"], 0


def _number_cells(axes: Any, explanation: Explanation, width: float) -> None:
    """Writes the scores into the squares if there is room for them."""
    patches = [cell for cell in cells(explanation) if abs(cell.strength) >= _QUIET]
    if not patches or len(cells(explanation)) > _MOST_NUMBERS:
        return
    narrowest = min(cell.width for cell in patches) * width / (explanation.scene or {})["width"]
    size, texts = 0.0, [""]
    for digits in (2, 1):
        if size < _READABLE:
            texts = [short_number(cell.score, cell.tint, digits) for cell in patches]
            size = min(_NUMBER_SIZE, narrowest / (0.68 * max(map(len, texts))))
    if size < _SMALLEST:
        return
    for cell, text in zip(patches, texts, strict=True):
        axes.text(
            cell.left + cell.width / 2, cell.top + cell.height / 2, text, ha="center", va="center",
            fontsize=size, color=INK,
        )  # fmt: skip


def _draw_structure(axes: Any, explanation: Explanation) -> None:
    """Draws the bonds and letters of a molecule as vectors."""
    matplotlib = import_matplotlib()
    path = matplotlib.path.Path
    codes = {"M": [path.MOVETO], "L": [path.LINETO], "Q": [path.CURVE3] * 2}
    for steps, is_filled in outlines(explanation.scene or {}):
        corners = [point for _, points in steps for point in points]
        kinds = [code for step, _ in steps for code in codes.get(step, [])]
        shape = path(corners, kinds)
        axes.add_patch(
            matplotlib.patches.PathPatch(
                shape, facecolor="black" if is_filled else "none",
                edgecolor="none" if is_filled else "black", linewidth=1.0, zorder=2,
            )
        )  # fmt: skip
    axes.set_aspect("equal")
    left, right, bottom, top = _extent(explanation)
    axes.set(xlim=(left, right), ylim=(bottom, top))


def _draw_discs(axes: Any, explanation: Explanation) -> None:
    """Draws a disc for each atom."""
    patches, scene = import_matplotlib().patches, explanation.scene or {}
    points, scores = scene["points"], explanation.scores.tolist()
    radius, largest = disc_radius(points), max(map(abs, scores), default=0.0) or 1.0
    for point, score in zip(points, scores, strict=True):
        size, name = abs(score) / largest, tint(score, explanation.signed)
        is_dashed = name == "against" and size > _QUIET
        axes.add_patch(
            patches.Circle(
                point, radius, facecolor=shade(name, 0.9 * size**0.7), zorder=1,
                edgecolor=TINTS[name] if is_dashed else "none", linestyle=(0, (3, 2)),
                linewidth=0.6,
            )
        )  # fmt: skip


def _number_atoms(axes: Any, explanation: Explanation, width: float) -> None:
    """Writes the scores of the atoms that the sentence names, where nothing else is drawn."""
    scene, named = explanation.scene or {}, named_units(explanation)
    labels = {
        i: [short_number(score, tint(score, explanation.signed))]
        for i, score in enumerate(explanation.scores.tolist())
        if unit_name(explanation, i) in named
    }
    points = width / scene["width"]  # of a unit of the picture
    size = min(_NUMBER_SIZE / points, 0.9 * disc_radius(scene["points"]))
    for i, place in label_places(scene, labels, size).items():
        axes.text(*place, labels[i][0], fontsize=size * points, ha="center", va="center", zorder=3)


def _patch_heat(explanation: Explanation) -> Heat:
    """A matrix of the strengths of an image's cells."""
    scene, patches = explanation.scene or {}, cells(explanation)
    area = sum(cell.width * cell.height for cell in patches)
    if area != scene["width"] * scene["height"]:
        return _painted(patches, scene["width"], scene["height"])
    tops, lefts = (sorted({getattr(cell, side) for cell in patches}) for side in ("top", "left"))
    heat = np.zeros((len(tops), len(lefts)))
    for cell in patches:
        heat[tops.index(cell.top), lefts.index(cell.left)] = cell.strength
    return heat


def _painted(patches: Sequence[Cell], width: int, height: int) -> Heat:
    """A heatmap of cells with gaps or overlaps, summed per pixel."""
    heat = np.zeros((height, width))
    for cell in patches:
        down, right = int(cell.top), int(cell.left)
        area = cell.width * cell.height
        heat[down : down + int(cell.height), right : right + int(cell.width)] += cell.score / area
    strengths: Heat = heat / (np.abs(heat).max(initial=0.0) or 1.0)
    return strengths


def _region_heat(explanation: Explanation) -> Heat:
    """A heatmap of superpixels per pixel, from the horizontal runs of their paths."""
    scene, scores = explanation.scene or {}, explanation.scores.astype(np.float64)
    strengths = scores / (np.abs(scores).max(initial=0.0) or 1.0)
    heat = np.zeros((scene["height"], scene["width"]))
    for path, strength in zip(scene["paths"], strengths, strict=True):
        for start, row, length in re.findall(r"M(\d+) (\d+)h(\d+)", path):
            heat[int(row), int(start) : int(start) + int(length)] = strength
    return heat
