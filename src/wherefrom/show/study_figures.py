"""Plots of the studies: attention erased, relevance through blocks and norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wherefrom.show.plot_style import AXIS, COLORS, FAINT, draw_boxes, line_style, saved_figure
from wherefrom.show.text_marks import percent, whole_percent


def plot_studies(result: Any, folder: Path) -> list[Path]:
    """All plots for which the studies of an evaluation have the data."""
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
    """The share of weights erased before a flip, over the texts that any ranking flips."""
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
            f"{int(flipped.sum())} of {values.shape[1]} texts: those that some ranking flips",
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
    """Σ relevance before and after each norm: what it takes away (Ali et al. 2022, figure 2)."""
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
    """The number of a block, counted from 1 as everywhere; a name that is none stays."""
    last = name.rpartition(".")[2]
    return str(int(last) + 1) if last.isdecimal() else last
