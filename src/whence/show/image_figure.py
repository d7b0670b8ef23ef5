"""Heatmaps of images as pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from whence.explanation import Explanation
from whence.show.image import cells
from whence.show.looks import drawing, saved


def image_plot(explanations: Sequence[Explanation], path: Path, smooth: bool = True) -> Path:
    """The image, and beside it the heatmap of each explanation."""
    plt = drawing()
    count = len(explanations) + 1
    columns = min(5, count)
    rows = -(-count // columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(2.1 * columns, 2.4 * rows), squeeze=False, layout="constrained"
    )
    scene = explanations[0].scene or {}
    picture = plt.imread(io.BytesIO(base64.b64decode(scene["png"])), format="png")
    grey = picture if picture.ndim == 2 else picture[..., :3].mean(-1)
    extent = (0, scene["width"], scene["height"], 0)
    for axes in grid.flat:
        axes.axis("off")
    grid.flat[0].imshow(picture, cmap="gray", extent=extent)
    grid.flat[0].set_title("image", fontsize=9)
    for axes, each in zip(grid.flat[1:], explanations, strict=False):
        axes.imshow(0.5 + 0.5 * grey, cmap="gray", vmin=0, vmax=1, extent=extent)
        heat, opacity = _spread(each)
        axes.imshow(
            heat,
            cmap="RdBu_r",
            vmin=-1,
            vmax=1,
            alpha=opacity,
            extent=extent,
            interpolation="bilinear" if smooth else "nearest",
        )
        axes.set_title(f"{each.method}\n{each.target}", fontsize=8)
    return saved(figure, path)


def _spread(explanation: Explanation) -> tuple[Any, Any]:
    """The strengths of the cells as a matrix, and how opaque each is."""
    found = cells(explanation)
    tops, lefts = (sorted({getattr(c, side) for c in found}) for side in ("top", "left"))
    heat = np.zeros((len(tops), len(lefts)))
    for cell in found:
        heat[tops.index(cell.top), lefts.index(cell.left)] = cell.strength
    return heat, np.clip(np.abs(heat) * 1.2, 0, 0.9)
