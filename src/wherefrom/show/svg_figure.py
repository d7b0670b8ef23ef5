"""Heatmaps of what is no text as pictures."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.explanation import Explanation
from wherefrom.show.plot_style import drawing, saved
from wherefrom.show.svg import cells, kind_of


def scene_plot(explanations: Sequence[Explanation], path: Path) -> Path:
    """What was given, and beside it the heatmap of each explanation."""
    plt = drawing()
    count = len(explanations) + 1
    columns = min(5, count)
    rows = -(-count // columns)
    wide = 3.0 if kind_of(explanations[0]) == "molecule" else 2.1
    figure, grid = plt.subplots(
        rows, columns, figsize=(wide * columns, 2.4 * rows), squeeze=False, layout="constrained"
    )
    for axes in grid.flat:
        axes.axis("off")
    _background(plt, grid.flat[0], explanations[0], plain=True)
    grid.flat[0].set_title("as given", fontsize=9)
    for axes, each in zip(grid.flat[1:], explanations, strict=False):
        _background(plt, axes, each, plain=False)
        axes.set_title(f"{each.method}\n{each.target}", fontsize=8)
    return saved(figure, path)


def _background(plt: Any, axes: Any, explanation: Explanation, plain: bool) -> None:
    scene, kind = explanation.scene or {}, kind_of(explanation)
    picture = plt.imread(io.BytesIO(base64.b64decode(scene["png"])), format="png")
    extent = (0, scene["width"], scene["height"], 0)
    if kind == "molecule":
        if not plain:
            _discs(plt, axes, explanation)
        axes.imshow(picture, extent=extent, zorder=2)
        return
    if plain:
        axes.imshow(picture, cmap="gray", extent=extent)
        return
    grey = picture if picture.ndim == 2 else picture[..., :3].mean(-1)
    axes.imshow(0.65 + 0.35 * grey, cmap="gray", vmin=0, vmax=1, extent=extent)
    heat = _patches(explanation) if kind == "image" else _regions(explanation)
    axes.imshow(
        heat,
        cmap="RdBu_r",
        vmin=-1,
        vmax=1,
        alpha=np.clip(np.abs(heat) ** 0.7, 0, 0.95),
        extent=extent,
        interpolation="bilinear" if kind == "image" else "nearest",
    )


def _discs(plt: Any, axes: Any, explanation: Explanation) -> None:
    scene = explanation.scene or {}
    points = np.array(scene["points"])
    strength = explanation.scores / (np.abs(explanation.scores).max() or 1.0)
    gaps = np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.fill_diagonal(gaps, np.inf)
    radius = 0.52 * min(float(gaps.min()), 60.0)
    for (x, y), size in zip(points, strength, strict=True):
        colour = plt.colormaps["RdBu_r"](0.5 + 0.38 * size)
        disc = plt.Circle((x, y), radius, color=colour, alpha=min(1.0, abs(float(size)) * 1.2))
        axes.add_patch(disc)


def _patches(explanation: Explanation) -> NDArray[np.float64]:
    """The strengths of the cells of an image as a matrix."""
    found = cells(explanation)
    tops, lefts = (sorted({getattr(c, side) for c in found}) for side in ("top", "left"))
    heat = np.zeros((len(tops), len(lefts)))
    for cell in found:
        heat[tops.index(cell.top), lefts.index(cell.left)] = cell.strength
    return heat


def _regions(explanation: Explanation) -> NDArray[np.float64]:
    """The strengths of superpixels, pixel by pixel, from the runs of their outlines."""
    scene = explanation.scene or {}
    heat = np.zeros((scene["height"], scene["width"]))
    strength = explanation.scores / (np.abs(explanation.scores).max() or 1.0)
    for path, size in zip(scene["paths"], strength, strict=True):
        for start, row, length in re.findall(r"M(\d+) (\d+)h(\d+)", path):
            heat[int(row), int(start) : int(start) + int(length)] = size
    return heat
