"""Plots of an evaluation, as in the papers: curves, scatter, boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wherefrom.show.plot_style import COLORS, boxes, drawing, look, saved
from wherefrom.show.study_figures import plot_studies


def plot_evaluation(result: Any, folder: Path) -> list[Path]:
    """All plots that the metrics of an evaluation allow."""
    made = []
    labels = {
        "activation": ("share of units put back", "probability of the class explained"),
        "pruning": ("share of units taken away", "squared change of the logits"),
    }
    for metric, curves in result.curves.items():
        across, up = labels.get(metric, ("share of units", result.title(metric)))
        made.append(curves_plot(curves, across, up, folder / f"{metric}.png"))
    made.append(conservation_plot(result, folder / "conservation.png"))
    if "flip" in result.metrics:
        values = {method: result.values[method]["flip"] for method in result.methods}
        made.append(
            boxes_plot(values, "share removed before the decision flips", folder / "flip.png")
        )
    if len(result.methods) > 1:
        made.append(matrix_plot(result.agreement, folder / "agreement.png"))
    return made + plot_studies(result, folder)


def curves_plot(curves: Mapping[str, Sequence[float]], across: str, up: str, path: Path) -> Path:
    """A mean curve for each method over shares from 0 to 1 (Ali et al. 2022, figure 4).

    The legend lists them from the largest area to the smallest, as the curves lie.
    """
    plt = drawing()
    figure, axes = plt.subplots(figsize=(7.5, max(4.5, 0.24 * len(curves))))
    lines = {
        name: axes.plot(
            np.linspace(0, 1, len(curve)),
            curve,
            clip_on=False,
            zorder=3 - place / 100,
            **look(place),
        )[0]
        for place, (name, curve) in enumerate(curves.items())
    }
    axes.set(xlabel=across, ylabel=up, xlim=(0, 1))
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    order = sorted(curves, key=lambda name: -float(np.mean(curves[name])))
    axes.legend(
        [lines[name] for name in order], order, bbox_to_anchor=(1.02, 1), loc="upper left",
        frameon=False, fontsize=8, handlelength=3.4, title="by area", title_fontsize=8,
        alignment="left", borderaxespad=0,
    )  # fmt: skip
    return saved(figure, path)


def conservation_plot(result: Any, path: Path) -> Path:
    """What the scores add up to, against the output (Ali et al. 2022, figure 3)."""
    sums, fits = result.sums, result.conservation
    plt = drawing()
    names = list(sums)
    columns = min(4 if len(names) < 13 else 5, len(names))
    rows = -(-len(names) // columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(2.4 * columns + 0.3, 2.35 * rows + 0.3), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axes in grid.flat[len(names) :]:
        axes.axis("off")
    for axes, name in zip(grid.flat, names, strict=False):
        totals, outputs = np.array(sums[name]).T
        low, high = outputs.min(), outputs.max()
        axes.scatter(outputs, totals, s=7, color=COLORS[0], alpha=0.45, linewidths=0)
        axes.plot([low, high], [low, high], color=COLORS[1], linewidth=1.1)
        found = fits[name]
        told = "" if found.slope is None else f"slope {found.slope:.2f}, R² {found.r2:.2f}"
        told = told.replace("-0.00", "0.00").replace("-", "−")
        axes.set_title(f"{name}\n{told}", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.locator_params(nbins=5)
    figure.supxlabel("the model's output", fontsize=9)
    figure.supylabel("what the explanation adds up to", fontsize=9)
    return saved(figure, path)


def boxes_plot(values: Mapping[str, Sequence[float]], up: str, path: Path) -> Path:
    """A box for each method, the smallest mean first; the mean is a diamond."""
    plt = drawing()
    names = sorted(values, key=lambda name: float(np.mean(values[name])))
    figure, axes = plt.subplots(figsize=(7.5, 0.34 * len(names) + 1.2))
    boxes(axes, [values[name] for name in names], names)
    axes.set(xlabel=f"{up} (line: median, diamond: mean)", xlim=(-0.02, 1.02))
    return saved(figure, path)


def matrix_plot(matrix: Mapping[str, Mapping[str, float]], path: Path) -> Path:
    """Rank correlations between methods."""
    plt = drawing()
    names = list(matrix)
    values = np.array([[matrix[a][b] for b in names] for a in names])
    size = 0.42 * len(names) + 2.2
    figure, axes = plt.subplots(figsize=(size + 0.6, size))
    image = axes.imshow(values, cmap="PuOr_r", vmin=-1, vmax=1)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            ink = "white" if abs(value) > 0.7 else "black"
            text = f"{value:.1f}".replace("-0.0", "0.0").replace("-", "−")
            axes.text(j, i, text, ha="center", va="center", fontsize=6.5, color=ink)
    figure.colorbar(image, ax=axes, shrink=0.7, label="mean rank correlation")
    return saved(figure, path)


def histogram_plot(values: Mapping[str, Sequence[float]], across: str, path: Path) -> Path:
    """A normalised histogram for each group with its median (Ali et al. 2022, figure 7)."""
    plt = drawing()
    pooled = np.concatenate([np.asarray(each, dtype=float) for each in values.values()])
    low, high = np.quantile(pooled, [0.005, 0.995])
    edges = np.linspace(low, high, 41) if high > low else np.linspace(low - 1, high + 1, 3)
    figure, axes = plt.subplots(figsize=(7.5, 3.8))
    for place, (name, each) in enumerate(values.items()):
        color, line = (look(place)[part] for part in ("color", "linestyle"))
        shares = np.ones(len(each)) / len(each)
        inside = np.clip(each, edges[0], edges[-1])
        axes.hist(
            inside, edges, weights=shares, histtype="stepfilled", alpha=0.3, color=color,
            label=f"{name}, {len(each)} occurrences",
        )  # fmt: skip
        axes.hist(inside, edges, weights=shares, histtype="step", color=color)
        middle = float(np.median(each))
        axes.axvline(middle, color=color, linestyle=line, label=f"median {middle:+.4f}")
    axes.axvline(0, color="#999999", linewidth=0.8)
    axes.set(xlabel=across, ylabel="share of occurrences")
    axes.legend(frameon=False, fontsize=8)
    return saved(figure, path)
