"""Heatmaps of images, superpixels and molecules as PNG files."""

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
from wherefrom.show.plot_style import import_matplotlib, saved_figure
from wherefrom.show.svg import Cell, cells, disc_radius, kind_of
from wherefrom.show.text_marks import wrapped_label

Heat = NDArray[np.float64]  # strengths from −1 to 1


def scene_plot(explanations: Sequence[Explanation], path: Path) -> Path:
    """The input, and beside it the heatmap of each explanation."""
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
    """The picture that the units of an explanation lie on, with its heatmap unless `bare`."""
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
        cmap="RdBu_r",
        vmin=-1,
        vmax=1,
        alpha=np.clip(np.abs(heat) ** 0.7, 0, 0.95),
        extent=extent,
        interpolation="bilinear" if kind == "image" else "nearest",
    )


def _draw_discs(axes: Any, explanation: Explanation) -> None:
    matplotlib = import_matplotlib()
    points = (explanation.scene or {})["points"]
    radius = disc_radius(points)
    for point, strength in zip(points, _strengths(explanation), strict=True):
        color = matplotlib.colormaps["RdBu_r"](0.5 + 0.38 * strength)
        alpha = min(1.0, abs(float(strength)) * 1.2)
        axes.add_patch(matplotlib.patches.Circle(point, radius, color=color, alpha=alpha))


def _patch_heat(explanation: Explanation) -> Heat:
    """The strengths of an image's cells as a matrix."""
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
    """Cells that leave something out or lie on each other, as they add up pixel by pixel."""
    heat = np.zeros((height, width))
    for cell in patches:
        down, right = int(cell.top), int(cell.left)
        area = cell.width * cell.height
        heat[down : down + int(cell.height), right : right + int(cell.width)] += cell.score / area
    strengths: Heat = heat / (np.abs(heat).max(initial=0.0) or 1.0)
    return strengths


def _region_heat(explanation: Explanation) -> Heat:
    """The strengths of superpixels, pixel by pixel, from the horizontal runs of their paths."""
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
