"""Plots of the studies: attention erased, relevance through blocks and norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wherefrom.show.plot_style import COLORS, boxes, drawing, look, saved


def plot_studies(result: Any, folder: Path) -> list[Path]:
    """All plots that the studies of an evaluation allow."""
    made = []
    records = result.studies.get("attention_erasure")
    if records:
        singles = [r["single"] for r in records if r["single"] is not None]
        if singles:
            made.append(weights_plot(singles, folder / "attention_erasure.png"))
        shares: dict[str, list[float]] = {}
        for record in records:
            for name, share in record["to_flip"].items():
                shares.setdefault(name, []).append(share)
        if shares:
            made.append(until_flip_plot(shares, folder / "attention_to_flip.png"))
    if result.studies.get("layers"):
        found = result.study("layers")
        made.append(profile_plot(found["blocks"], folder / "layers.png"))
        if found["norms"]:
            made.append(collapse_plot(found["norms"], folder / "collapse.png"))
    return made


def weights_plot(singles: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """ΔJS against Δα, and the table of decision flips (Serrano & Smith 2019)."""
    plt = drawing()
    figure, (axes, table) = plt.subplots(
        1, 2, figsize=(9, 3.8), width_ratios=(1.7, 1), layout="constrained"
    )
    across = [each["delta_weight"] for each in singles]
    up = np.array([each["delta_js"] for each in singles])
    axes.axhline(0, color="#777777", linewidth=0.8)
    axes.scatter(across, up, s=12, color=COLORS[0], alpha=0.5, linewidths=0)
    axes.set(
        xlabel="Δα: highest attention weight − a random other",
        ylabel="ΔJS: change of the output (nats)",
    )
    share = float((up > 0).mean())
    axes.set_title(f"the highest changes the output more in {share:.0%} of texts", fontsize=9)
    counts = np.zeros((2, 2))
    for each in singles:
        counts[int(not each["flips_highest"]), int(not each["flips_random"])] += 1
    counts /= len(singles)
    table.imshow(counts, cmap="Blues", vmin=0, vmax=1)
    for i, row in enumerate(counts):
        for j, value in enumerate(row):
            ink = "white" if value > 0.6 else "black"
            table.text(j, i, f"{value:.1%}", ha="center", va="center", color=ink)
    table.set_xticks((0, 1), ("flips", "does not"))
    table.set_yticks((0, 1), ("flips", "does not"), rotation=90, va="center")
    table.set(xlabel="erasing the random weight", ylabel="erasing the highest weight")
    table.set_title(f"decision flips, {len(singles)} texts", fontsize=9)
    table.spines[:].set_visible(False)
    table.tick_params(length=0)
    return saved(figure, path)


def until_flip_plot(shares: Mapping[str, Sequence[float]], path: Path) -> Path:
    """The share of weights erased before a flip, of the texts that any ranking flips."""
    plt = drawing()
    whole = np.array(list(shares.values()))
    ever = (whole < 1).any(0)
    kept = whole[:, ever] if ever.any() else whole
    order = np.argsort(kept.mean(1), kind="stable")
    figure, axes = plt.subplots(figsize=(7.5, 0.34 * len(shares) + 1.4))
    names = list(shares)
    boxes(axes, [kept[i] for i in order], [names[i] for i in order])
    axes.set(
        xlabel="share of attention weights erased before the decision flips\n"
        "(line: median, diamond: mean, 1: never)",
        xlim=(-0.02, 1.02),
    )
    axes.set_title(
        f"the {int(ever.sum())} of {whole.shape[1]} texts that any ranking flips", fontsize=9
    )
    return saved(figure, path)


def profile_plot(blocks: Mapping[str, Mapping[str, Mapping[str, float]]], path: Path) -> Path:
    """Σ relevance at the input and after each block, as a share of the output."""
    plt = drawing()
    names = list(dict.fromkeys(name for each in blocks.values() for name in each))
    figure, axes = plt.subplots(figsize=(max(5.5, 0.45 * len(names) + 2.5), 3.8))
    places = range(len(names) + 1)
    for place, (method, found) in enumerate(blocks.items()):
        there = [n for n, name in enumerate(names) if name in found]
        line = [found[names[n]]["share"] for n in there]
        low = [found[names[n]]["low"] for n in there]
        high = [found[names[n]]["high"] for n in there]
        axes.plot([*there, len(names)], [*line, 1.0], label=method, **look(place))
        axes.fill_between(there, low, high, color=COLORS[place], alpha=0.15, linewidth=0)
    axes.axhline(1, color="#777777", linewidth=0.8, zorder=0)
    axes.axhline(0, color="#777777", linewidth=0.8, zorder=0)
    axes.set_xticks(places, [*map(_short, names), "output"])
    axes.set(
        xlabel="after block",
        ylabel="Σ relevance / output (median, quartiles)",
        xlim=(-0.2, len(names) + 0.2),
    )
    axes.legend(frameon=False, fontsize=8, loc="best")
    return saved(figure, path)


def collapse_plot(norms: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> Path:
    """Σ relevance before and after each norm: what it takes away (Ali et al. 2022, figure 2)."""
    plt = drawing()
    titles = {"gradient_x_input": "gradient × input", "lrp_ah_ln": "with the AH and LN rules"}
    chosen = [name for name in titles if name in norms]
    count = max(len(norms[name]) for name in chosen)
    figure, grid = plt.subplots(
        1, len(chosen), figsize=(max(3.6, 0.22 * count + 1.6) * len(chosen), 3.6),
        sharey=True, squeeze=False, layout="constrained",
    )  # fmt: skip
    for axes, name in zip(grid[0], chosen, strict=True):
        places = np.arange(1, len(norms[name]) + 1)
        before = [each["before"] for each in norms[name]]
        after = [each["after"] for each in norms[name]]
        axes.axhline(0, color="#777777", linewidth=0.8)
        axes.vlines(places, before, after, color="#999999", linewidth=1)
        axes.plot(places, after, "o", color=COLORS[0], markersize=8, fillstyle="none",
                  markeredgewidth=1.6, label="at its output")  # fmt: skip
        axes.plot(places, before, "X", color=COLORS[1], markersize=5, label="at its input")
        axes.set_title(titles[name], fontsize=10)
        axes.set_xlabel("norm, in the order of the model")
        axes.set_xticks(places if count <= 14 else places[:: -(-count // 12)])
    grid[0][0].set_ylabel("Σ relevance / output (median)")
    grid[0][-1].legend(frameon=False, fontsize=8)
    return saved(figure, path)


def _short(name: str) -> str:
    """The number of a block, without its path."""
    return name.rpartition(".")[2]
