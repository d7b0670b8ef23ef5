"""Plots of an evaluation, as in the papers: curves, scatter, boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from whence.errors import MissingExtra

# Okabe and Ito's colours, told apart by colour-blind people; lines and marks differ as well.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", "-.", ":")
_MARKS = "os^vDPX<>*hp"


def _pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot", "plotting") from error
    pyplot.rcParams.update(
        {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 110}
    )
    return pyplot


def _look(place: int) -> dict[str, Any]:
    return {
        "color": _COLORS[place % len(_COLORS)],
        "linestyle": _LINES[(place // len(_COLORS)) % len(_LINES)],
        "marker": _MARKS[place % len(_MARKS)],
        "markersize": 4,
    }


def _saved(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight")
    _pyplot().close(figure)
    return path


def plot_evaluation(result: Any, folder: Path) -> list[Path]:
    """All plots that the metrics of an evaluation allow."""
    made = []
    labels = {
        "activation": ("share of units put back", "probability of the class explained"),
        "pruning": ("share of units taken away", "squared change of the logits"),
    }
    for metric, curves in result.curves.items():
        across, up = labels.get(metric, ("share of units", metric))
        made.append(curves_plot(curves, across, up, folder / f"{metric}.png"))
    made.append(conservation_plot(result.sums, folder / "conservation.png"))
    if "flip" in result.metrics:
        values = {method: result.values[method]["flip"] for method in result.methods}
        made.append(
            boxes_plot(values, "share removed before the decision flips", folder / "flip.png")
        )
    if len(result.methods) > 1:
        made.append(matrix_plot(result.agreement, folder / "agreement.png"))
    return made


def curves_plot(curves: Mapping[str, Sequence[float]], across: str, up: str, path: Path) -> Path:
    """A mean curve for each method over shares from 0 to 1 (Ali et al. 2022, figure 4)."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(7.5, 4.5))
    for place, (name, curve) in enumerate(curves.items()):
        axes.plot(np.linspace(0, 1, len(curve)), curve, label=name, **_look(place))
    axes.set(xlabel=across, ylabel=up, xlim=(0, 1))
    axes.legend(bbox_to_anchor=(1.01, 1), loc="upper left", frameon=False, fontsize=8)
    return _saved(figure, path)


def conservation_plot(sums: Mapping[str, Sequence[Sequence[float]]], path: Path) -> Path:
    """What the scores add up to, against the output (Ali et al. 2022, figure 3)."""
    plt = _pyplot()
    names = list(sums)
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(2.6 * columns, 2.5 * rows), squeeze=False, layout="constrained"
    )
    for axes in grid.flat[len(names) :]:
        axes.axis("off")
    for axes, name in zip(grid.flat, names, strict=False):
        totals, outputs = np.array(sums[name]).T
        low, high = outputs.min(), outputs.max()
        axes.plot([low, high], [low, high], color="#999999", linewidth=1)
        axes.scatter(outputs, totals, s=8, color=_COLORS[0], alpha=0.6, linewidths=0)
        spread = np.square(outputs - outputs.mean()).sum()
        fit = 1 - np.square(totals - outputs).sum() / spread if spread else float("nan")
        axes.set_title(f"{name}\nR² to the diagonal {fit:.2f}" if fit > -99 else name, fontsize=8)
        axes.tick_params(labelsize=7)
    figure.supxlabel("the model's output", fontsize=9)
    figure.supylabel("what the explanation adds up to", fontsize=9)
    return _saved(figure, path)


def boxes_plot(values: Mapping[str, Sequence[float]], up: str, path: Path) -> Path:
    """A box for each method, the smallest median first."""
    plt = _pyplot()
    names = sorted(values, key=lambda name: float(np.median(values[name])))
    figure, axes = plt.subplots(figsize=(7.5, 0.34 * len(names) + 1.2))
    axes.boxplot(
        [values[name] for name in names],
        orientation="horizontal",
        tick_labels=names,
        medianprops={"color": _COLORS[1]},
        flierprops={"markersize": 2},
    )
    axes.invert_yaxis()
    axes.set(xlabel=up, xlim=(0, 1.02))
    return _saved(figure, path)


def matrix_plot(matrix: Mapping[str, Mapping[str, float]], path: Path) -> Path:
    """Rank correlations between methods."""
    plt = _pyplot()
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
            axes.text(j, i, f"{value:.1f}", ha="center", va="center", fontsize=6, color=ink)
    figure.colorbar(image, ax=axes, shrink=0.7, label="mean rank correlation")
    return _saved(figure, path)


def histogram_plot(values: Mapping[str, Sequence[float]], across: str, path: Path) -> Path:
    """A normalised histogram for each group with its median (Ali et al. 2022, figure 7)."""
    plt = _pyplot()
    pooled = np.concatenate([np.asarray(each, dtype=float) for each in values.values()])
    low, high = np.quantile(pooled, [0.005, 0.995])
    edges = np.linspace(low, high, 41) if high > low else np.linspace(low - 1, high + 1, 3)
    figure, axes = plt.subplots(figsize=(7.5, 3.8))
    for place, (name, each) in enumerate(values.items()):
        color, line = _COLORS[place % len(_COLORS)], _LINES[place % len(_LINES)]
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
    return _saved(figure, path)
