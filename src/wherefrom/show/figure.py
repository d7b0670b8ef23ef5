"""Plots of an evaluation and its studies, as in the papers: curves, scatter, boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wherefrom.show.plot_style import (
    AXIS,
    COLORS,
    FAINT,
    GRID,
    draw_boxes,
    line_style,
    saved_figure,
)
from wherefrom.show.text_marks import percent, whole_percent

_AXES = {
    "activation": ("share of units restored", "probability of the explained class"),
    "pruning": ("share of units removed", "squared change of the logits"),
}


def plot_evaluation(result: Any, folder: Path) -> list[Path]:
    """Writes all plots for which an evaluation has data, as PNG files in `folder`."""
    paths = []
    for metric, curves in result.curves.items():
        xlabel, ylabel = _AXES.get(metric, ("share of units", result.title(metric)))
        lower = result.better.get(metric) == "lower"
        paths.append(curves_plot(curves, xlabel, ylabel, folder / f"{metric}.png", lower))
    paths.append(conservation_plot(result, folder / "conservation.png"))
    if "flip" in result.metrics:
        values = {method: result.values[method]["flip"] for method in result.methods}
        paths.append(
            boxes_plot(values, "share removed before the decision flips", folder / "flip.png")
        )
    if len(result.methods) > 1:
        paths.append(matrix_plot(result.agreement, folder / "agreement.png"))
    return paths + plot_studies(result, folder)


def curves_plot(
    curves: Mapping[str, Sequence[float]], xlabel: str, ylabel: str, path: Path, lower: bool
) -> Path:
    """A mean curve for each method over shares from 0 to 1 (Ali et al. 2022, figure 4).

    The legend is sorted by area, the best first: the smallest if `lower`. If there are more curves
    than colours, each gets a panel, in that order, with the other curves in grey.
    """
    order = sorted(curves, key=lambda name: float(np.mean(curves[name])), reverse=not lower)
    if len(curves) > len(COLORS):
        return _small_multiples({name: curves[name] for name in order}, xlabel, ylabel, path)
    with saved_figure(path, figsize=(7.5, 4.5)) as figure:
        axes = figure.subplots()
        lines = {
            name: axes.plot(
                np.linspace(0, 1, len(curve)),
                curve,
                clip_on=False,
                zorder=3 - index / 100,
                **line_style(index),
            )[0]
            for index, (name, curve) in enumerate(curves.items())
        }
        axes.set(xlabel=xlabel, ylabel=ylabel, xlim=(0, 1))
        axes.grid(axis="y", color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
        axes.legend(
            [lines[name] for name in order], order, bbox_to_anchor=(1.02, 1), loc="upper left",
            frameon=False, fontsize=8, handlelength=3.4, title="best area first", title_fontsize=8,
            alignment="left", borderaxespad=0,
        )  # fmt: skip
    return path


def _small_multiples(
    curves: Mapping[str, Sequence[float]], xlabel: str, ylabel: str, path: Path
) -> Path:
    columns = 4
    rows = -(-len(curves) // columns)
    with saved_figure(path, figsize=(9, 1.75 * rows + 0.6), layout="constrained") as figure:
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes in grid.flat[len(curves) :]:
            axes.axis("off")
        for axes, (name, curve) in zip(grid.flat, curves.items(), strict=False):
            for other in curves.values():
                axes.plot(np.linspace(0, 1, len(other)), other, color="#d0d0d0", linewidth=0.7)
            shares = np.linspace(0, 1, len(curve))
            axes.plot(shares, curve, color=COLORS[0], linewidth=2, clip_on=False)
            axes.set_title(name, fontsize=8)
            axes.set(xlim=(0, 1), xticks=(0, 0.5, 1))
            axes.tick_params(labelsize=7)
        figure.supxlabel(xlabel, fontsize=9)
        figure.supylabel(ylabel, fontsize=9)
        figure.suptitle(
            "one method per panel, the best by area first; the others in grey", fontsize=8
        )
    return path


def conservation_plot(result: Any, path: Path) -> Path:
    """The sum of the scores plotted against the output (Ali et al. 2022, figure 3)."""
    names = list(result.sums)
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    size = (2.4 * columns + 0.3, 2.35 * rows + 0.3)
    with saved_figure(path, figsize=size, layout="constrained") as figure:
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[len(names) :]:
            axes.axis("off")
        for axes, name in zip(grid.flat, names, strict=False):
            totals, outputs = np.array(result.sums[name]).T
            low, high = outputs.min(), outputs.max()
            axes.scatter(outputs, totals, s=18, color=COLORS[0], alpha=0.6, linewidths=0, zorder=3)
            axes.plot([low, high], [low, high], color=COLORS[1], linewidth=1.3)
            fit = result.conservation[name]
            note = "" if fit.slope is None else f"slope {fit.slope:.2f}, R² {fit.r2:.2f}"
            note = note.replace("-0.00", "0.00").replace("-", "−")
            axes.set_title(f"{name}\n{note}", fontsize=9)
            axes.tick_params(labelsize=8)
            axes.locator_params(nbins=5)
        figure.supxlabel("output of the model", fontsize=9)
        figure.supylabel("sum of the scores", fontsize=9)
    return path


def boxes_plot(values: Mapping[str, Sequence[float]], xlabel: str, path: Path) -> Path:
    """A box for each method, the smallest mean first; the mean is a diamond."""
    order = sorted(values, key=lambda name: float(np.mean(values[name])))
    with saved_figure(path, figsize=(7.5, 0.34 * len(values) + 1.2)) as figure:
        axes = figure.subplots()
        draw_boxes(axes, {name: values[name] for name in order})
        axes.set(xlabel=f"{xlabel} (line: median, diamond: mean)", xlim=(-0.02, 1.02))
    return path


def matrix_plot(matrix: Mapping[str, Mapping[str, float]], path: Path) -> Path:
    """Rank correlations between methods."""
    names = list(matrix)
    values = np.array([[matrix[a][b] for b in names] for a in names])
    size = 0.42 * len(names) + 2.2
    with saved_figure(path, figsize=(size + 0.6, size)) as figure:
        axes = figure.subplots()
        image = axes.imshow(values, cmap="PuOr_r", vmin=-1, vmax=1)
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        for (i, j), value in np.ndenumerate(values):
            ink = "white" if abs(value) > 0.75 else "black"
            text = f"{value:.1f}".replace("-0.0", "0.0").replace("-", "−")
            axes.text(j, i, text, ha="center", va="center", fontsize=7.5, color=ink)
        figure.colorbar(image, ax=axes, shrink=0.7, label="mean rank correlation")
    return path


def histogram_plot(values: Mapping[str, Sequence[float]], xlabel: str, path: Path) -> Path:
    """A normalised histogram for each group with its median (Ali et al. 2022, figure 7)."""
    pooled = np.concatenate([np.asarray(numbers, dtype=float) for numbers in values.values()])
    low, high = np.quantile(pooled, [0.005, 0.995])
    edges = np.linspace(low, high, 41) if high > low else np.linspace(low - 1, high + 1, 3)
    with saved_figure(path, figsize=(7.5, 3.8)) as figure:
        axes = figure.subplots()
        for index, (name, numbers) in enumerate(values.items()):
            color, line = (line_style(index)[key] for key in ("color", "linestyle"))
            weights = np.ones(len(numbers)) / len(numbers)
            clipped = np.clip(numbers, edges[0], edges[-1])
            axes.hist(
                clipped, edges, weights=weights, histtype="stepfilled", alpha=0.3, color=color,
                label=f"{name}, {len(numbers)} occurrences",
            )  # fmt: skip
            axes.hist(clipped, edges, weights=weights, histtype="step", color=color)
            median = float(np.median(numbers))
            axes.axvline(median, color=color, linestyle=line, label=f"median {median:+.4f}")
        axes.axvline(0, color=FAINT, linewidth=0.8)
        axes.set(xlabel=xlabel, ylabel="share of occurrences")
        axes.legend(frameon=False, fontsize=8)
    return path


def plot_studies(result: Any, folder: Path) -> list[Path]:
    """Writes all plots for which the studies of an evaluation have data."""
    paths = []
    records = result.studies.get("attention_erasure")
    if records:
        singles = [record["single"] for record in records if record["single"] is not None]
        if singles:
            paths.append(weights_plot(singles, folder / "attention_erasure.png"))
        shares: dict[str, list[float]] = {}
        for record in records:
            for name, share in record["to_flip"].items():
                shares.setdefault(name, []).append(share)
        if shares:
            paths.append(until_flip_plot(shares, folder / "attention_to_flip.png"))
    if result.studies.get("layers"):
        summary = result.study("layers")
        paths.append(profile_plot(summary["blocks"], folder / "layers.png"))
        if summary["norms"]:
            paths.append(collapse_plot(summary["norms"], folder / "collapse.png"))
    return paths


def weights_plot(singles: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """ΔJS against Δα, and the table of decision flips (Serrano & Smith 2019)."""
    delta_weights = [record["delta_weight"] for record in singles]
    delta_js = np.array([record["delta_js"] for record in singles])
    counts = np.zeros((2, 2))
    for record in singles:
        counts[int(not record["flips_highest"]), int(not record["flips_random"])] += 1
    with saved_figure(path, figsize=(9, 3.8), layout="constrained") as figure:
        axes, table = figure.subplots(1, 2, width_ratios=(1.7, 1))
        axes.axhline(0, color=AXIS, linewidth=0.8)
        axes.scatter(delta_weights, delta_js, s=12, color=COLORS[0], alpha=0.5, linewidths=0)
        axes.set(
            xlabel="Δα: highest attention weight − a random other weight",
            ylabel="ΔJS: difference in output change (nats)",
        )
        share = float((delta_js > 0).mean())
        axes.set_title(
            f"the highest weight changes the output more in {whole_percent(share)} of texts",
            fontsize=9,
        )
        table.imshow(counts / len(singles), cmap="Blues", vmin=0, vmax=1)
        for (i, j), value in np.ndenumerate(counts / len(singles)):
            ink = "white" if value > 0.6 else "black"
            table.text(j, i, percent(value), ha="center", va="center", color=ink)
        table.set_xticks((0, 1), ("flips", "does not"))
        table.set_yticks((0, 1), ("flips", "does not"), rotation=90, va="center")
        table.set(xlabel="erasing the random weight", ylabel="erasing the highest weight")
        table.set_title(f"decision flips, {len(singles)} texts", fontsize=9)
        table.spines[:].set_visible(False)
        table.tick_params(length=0)
    return path


def until_flip_plot(shares: Mapping[str, Sequence[float]], path: Path) -> Path:
    """The share of weights erased before a flip, over the texts that at least one ranking flips."""
    names = list(shares)
    values = np.array(list(shares.values()))  # (rankings, texts)
    flipped = (values < 1).any(0)
    shown = values[:, flipped] if flipped.any() else values
    order = np.argsort(shown.mean(1), kind="stable")
    with saved_figure(path, figsize=(7.5, 0.34 * len(shares) + 1.4)) as figure:
        axes = figure.subplots()
        draw_boxes(axes, {names[i]: shown[i].tolist() for i in order})
        axes.set(
            xlabel="share of attention weights erased before the decision flips\n"
            "(line: median, diamond: mean, 1: never)",
            xlim=(-0.02, 1.02),
        )
        axes.set_title(
            f"{int(flipped.sum())} of {values.shape[1]} texts that at least one ranking flips",
            fontsize=9,
        )
    return path


def profile_plot(blocks: Mapping[str, Mapping[str, Mapping[str, float]]], path: Path) -> Path:
    """Σ relevance at the input and after each block, as a share of the output."""
    names = list(dict.fromkeys(name for profile in blocks.values() for name in profile))
    size = (max(5.5, 0.45 * len(names) + 2.5), 3.8)
    with saved_figure(path, figsize=size) as figure:
        axes = figure.subplots()
        for index, (method, profile) in enumerate(blocks.items()):
            positions = [n for n, name in enumerate(names) if name in profile]
            share, low, high = (
                [profile[names[n]][key] for n in positions] for key in ("share", "low", "high")
            )
            style = line_style(index)
            axes.plot([*positions, len(names)], [*share, 1.0], label=method, **style)
            axes.fill_between(positions, low, high, color=style["color"], alpha=0.15, linewidth=0)
        for level in (0, 1):
            axes.axhline(level, color=AXIS, linewidth=0.8, zorder=0)
        axes.set_xticks(range(len(names) + 1), [*map(_block_number, names), "output"])
        axes.set(
            xlabel="after layer",
            ylabel="Σ relevance / output (median, quartiles)",
            xlim=(-0.2, len(names) + 0.2),
        )
        axes.legend(frameon=False, fontsize=8, loc="best")
    return path


def collapse_plot(norms: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> Path:
    """Σ relevance at the input and output of each norm (Ali et al. 2022, figure 2)."""
    titles = {"gradient_x_input": "gradient × input", "lrp_ah_ln": "with the AH and LN rules"}
    methods = [name for name in titles if name in norms]
    count = max(len(norms[name]) for name in methods)
    size = (max(3.6, 0.22 * count + 1.6) * len(methods), 3.6)
    with saved_figure(path, figsize=size, layout="constrained") as figure:
        (row,) = figure.subplots(1, len(methods), sharey=True, squeeze=False)
        for axes, name in zip(row, methods, strict=True):
            positions = np.arange(1, len(norms[name]) + 1)
            before = [record["before"] for record in norms[name]]
            after = [record["after"] for record in norms[name]]
            axes.axhline(0, color=AXIS, linewidth=0.8)
            axes.vlines(positions, before, after, color=FAINT, linewidth=1)
            axes.plot(positions, after, "o", color=COLORS[0], markersize=8, fillstyle="none",
                      markeredgewidth=1.6, label="at its output")  # fmt: skip
            axes.plot(positions, before, "X", color=COLORS[1], markersize=5, label="at its input")
            axes.set_title(titles[name], fontsize=10)
            axes.set_xlabel("norm, in the order of the model")
            axes.set_xticks(positions if count <= 14 else positions[:: -(-count // 12)])
        row[0].set_ylabel("Σ relevance / output (median)")
        row[-1].legend(frameon=False, fontsize=8)
    return path


def _block_number(name: str) -> str:
    """The number of a block, counted from 1; other names stay as they are."""
    last = name.rpartition(".")[2]
    return str(int(last) + 1) if last.isdecimal() else last
