"""Explanations as plots: waterfalls, bars, and heatmaps of images and molecules."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.core.explanation import Explanation
from wherefrom.errors import InputError
from wherefrom.show.line_kinds import lines_beyond_units
from wherefrom.show.plot_style import (
    AXIS,
    GRID,
    import_matplotlib,
    save,
    saved_figure,
    styled_figure,
)
from wherefrom.show.sentence import explained, sentence
from wherefrom.show.svg import Cell, cells, disc_radius, kind_of
from wherefrom.show.text_marks import score_text, signed, tint, wrapped_label

_COLORS = {"for": "#d62728", "against": "#1f77dc", "strength": "#00825a"}
_TOTAL = "#444444"
Bar = tuple[str, float, float]  # name, start, value
Heat = NDArray[np.float64]  # strengths from −1 to 1


def plot(explanation: Explanation, kind: str, path: Path | None, units: int) -> Any:
    """The figure, or the path that it was written to."""
    if units < 1:
        raise InputError(f"units must be 1 or more, got {units}.")
    if kind not in ("waterfall", "bar"):
        raise InputError(f'kind must be "waterfall" or "bar", got {kind!r}.')
    bars = (waterfall_bars if kind == "waterfall" else _by_size)(explanation, units)
    with styled_figure(figsize=(7.5, 0.34 * len(bars) + 1.3)) as figure:
        axes = figure.subplots()
        _draw(axes, bars, explanation)
        if path is None:
            return figure
        save(figure, path)
    return path


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


def _draw(axes: Any, bars: list[Bar], explanation: Explanation) -> None:
    for row, (name, start, value) in enumerate(bars):
        is_total = name == "output" and row == len(bars) - 1 and row > 0
        hue = "for" if not value else tint(value, explanation.signed)
        color = _TOTAL if is_total else _COLORS[hue]
        hatch = "" if value >= 0 else "///"  # shows the sign without colour
        axes.barh(row, value, left=start, color=color, height=0.7, hatch=hatch,
                  edgecolor="white", linewidth=0.5)  # fmt: skip
        side = "left" if value >= 0 else "right"
        text = signed(value) if is_total else score_text(value, hue)
        axes.annotate(text, (start + value, row), xytext=(3 if value >= 0 else -3, 0),
                      textcoords="offset points", va="center", ha=side, fontsize=8)  # fmt: skip
        if row + 1 < len(bars) and bars[row + 1][1] == start + value and start + value:
            axes.plot([start + value] * 2, [row - 0.35, row + 1.35], color=AXIS, linewidth=0.6)
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars], fontsize=9)
    axes.invert_yaxis()
    axes.axvline(0, color=AXIS, linewidth=0.8)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.margins(x=0.14)
    axes.set_title(sentence(explanation), fontsize=9, loc="left", wrap=True)
    axes.set_xlabel(explained(explanation).removeprefix("Explained: "), fontsize=8)


def scene_plot(explanations: Sequence[Explanation], path: Path) -> Path:
    """The input next to the heatmap of each explanation."""
    count = len(explanations) + 1
    columns = min(5, count)
    rows = -(-count // columns)
    width = 3.0 if kind_of(explanations[0]) == "molecule" else 2.1
    size = (width * columns, 2.4 * rows)
    with saved_figure(path, figsize=size, layout="constrained") as figure:
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat:
            axes.axis("off")
        draw_scene(grid.flat[0], explanations[0], bare=True)
        grid.flat[0].set_title("input", fontsize=9)
        for axes, explanation in zip(grid.flat[1:], explanations, strict=False):
            draw_scene(axes, explanation, bare=False)
            axes.set_title(f"{wrapped_label(explanation)}\n{explanation.target}", fontsize=8)
    return path


def draw_scene(axes: Any, explanation: Explanation, bare: bool) -> None:
    """Draws the picture of an explanation, with its heatmap unless `bare`."""
    scene, kind = explanation.scene or {}, kind_of(explanation)
    png = io.BytesIO(base64.b64decode(scene["png"]))
    picture = import_matplotlib().image.imread(png, format="png")
    extent = (0, scene["width"], scene["height"], 0)
    if kind == "molecule":
        if not bare:
            _draw_discs(axes, explanation)
        axes.imshow(picture, extent=extent, zorder=2)
        return
    if bare:
        axes.imshow(picture, cmap="gray", extent=extent)
        return
    grey = picture if picture.ndim == 2 else picture[..., :3].mean(-1)
    axes.imshow(0.65 + 0.35 * grey, cmap="gray", vmin=0, vmax=1, extent=extent)
    heat = _patch_heat(explanation) if kind == "image" else _region_heat(explanation)
    axes.imshow(
        heat,
        cmap=colormap(explanation),
        vmin=-1,
        vmax=1,
        alpha=np.clip(np.abs(heat) ** 0.7, 0, 0.95),
        extent=extent,
        interpolation="bilinear" if kind == "image" else "nearest",
    )


def colormap(explanation: Explanation) -> str:
    """A colormap over −1 to 1; unsigned scores have a different hue."""
    return "RdBu_r" if explanation.signed else "PRGn"


def _draw_discs(axes: Any, explanation: Explanation) -> None:
    matplotlib = import_matplotlib()
    points = (explanation.scene or {})["points"]
    radius = disc_radius(points)
    for point, strength in zip(points, _strengths(explanation), strict=True):
        color = matplotlib.colormaps[colormap(explanation)](0.5 + 0.38 * strength)
        alpha = min(1.0, abs(float(strength)) * 1.2)
        axes.add_patch(matplotlib.patches.Circle(point, radius, color=color, alpha=alpha))


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
    scene = explanation.scene or {}
    heat = np.zeros((scene["height"], scene["width"]))
    for path, strength in zip(scene["paths"], _strengths(explanation), strict=True):
        for start, row, length in re.findall(r"M(\d+) (\d+)h(\d+)", path):
            heat[int(row), int(start) : int(start) + int(length)] = strength
    return heat


def _strengths(explanation: Explanation) -> Heat:
    scores = explanation.scores.astype(np.float64)
    strengths: Heat = scores / (np.abs(scores).max(initial=0.0) or 1.0)
    return strengths
