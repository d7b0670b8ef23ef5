"""The paper's figures for all sets: curves, conservation, collapse at norms, heatmaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from reproduction.methods import DEFAULT, PAPER, methods_of
from reproduction.registry import SETS
from reproduction.result import SetResult
from reproduction.sets import ReproductionSet, Samples
from wherefrom.core.explanation import Comparison
from wherefrom.evaluation.results import fit
from wherefrom.show.plot_style import AXIS, COLORS, FAINT, GRID, saved_figure

AXES = {
    "AUAC": ("share of units restored", "probability of the true class"),
    "AU-MSE": ("share of units removed", "squared change of the logits"),
}
ADD_UP = ("GI", "LRP(AH)", "LRP(AH+LN)", DEFAULT)  # methods whose scores have a sum to compare
LABELS = {DEFAULT: "lrp (default here)"}
STYLES = {  # of the curves: colour and line
    "Random": (FAINT, ":"),
    "A-Last": (COLORS[5], "--"),
    "A-Flow": (COLORS[2], "--"),
    "Rollout": (COLORS[3], "--"),
    "GAE": (COLORS[4], "-"),
    "GI": (COLORS[1], "-"),
    "LRP(AH)": (COLORS[0], "-."),
    "LRP(AH+LN)": (COLORS[0], "-"),
    DEFAULT: ("#000000", "-"),
}


def draw(results: Sequence[SetResult], folder: Path) -> None:
    """All figures that need no model."""
    if results:
        for measure in AXES:
            curves_plot(results, measure, folder / f"curves-{measure.lower()}.png")
        conservation_plot(results, folder / "conservation.png")
        collapse_plot([result for result in results if result.norms], folder / "collapse.png")


def _title(result: SetResult) -> str:
    return SETS[result.name].title if result.name in SETS else result.name


def _grid(figure: Any, count: int, columns: int) -> list[Any]:
    """So many axes in rows; those that are left over are not drawn."""
    columns = min(columns, count)
    axes = figure.subplots(-(-count // columns), columns, squeeze=False)
    for unused in axes.flat[count:]:
        unused.axis("off")
    return list(axes.flat[:count])


def curves_plot(results: Sequence[SetResult], measure: str, path: Path) -> None:
    """Mean curves of the paper's methods and the default: its figure 4 for every set."""
    xlabel, ylabel = AXES[measure]
    columns = min(3, len(results))
    size = (3.0 * columns + 0.5, 2.4 * -(-len(results) // columns) + 0.9)
    with saved_figure(path, figsize=size, layout="constrained") as figure:
        lines: dict[str, Any] = {}
        for axes, result in zip(_grid(figure, len(results), columns), results, strict=True):
            for row, (color, line) in STYLES.items():
                curve = result.curves[row][measure]
                width = 2.0 if row == DEFAULT else 1.3
                shares = np.linspace(0, 1, len(curve))
                lines[row] = axes.plot(shares, curve, line, color=color, linewidth=width)[0]
            axes.set_title(f"{_title(result)}, {result.samples} samples", fontsize=9)
            axes.tick_params(labelsize=7)
            axes.grid(axis="y", color=GRID, linewidth=0.7)
        figure.supxlabel(xlabel, fontsize=9)
        figure.supylabel(ylabel, fontsize=9)
        names = [LABELS.get(row, row) for row in lines]
        figure.legend(
            lines.values(), names, loc="outside upper center", ncols=5, frameon=False, fontsize=8
        )


def conservation_plot(results: Sequence[SetResult], path: Path) -> None:
    """Σ scores against the output, the paper's figure 2."""
    size = (2.0 * len(ADD_UP) + 0.6, 1.75 * len(results) + 0.6)
    with saved_figure(path, figsize=size, layout="constrained") as figure:
        grid = figure.subplots(len(results), len(ADD_UP), squeeze=False)
        for panels, result in zip(grid, results, strict=True):
            for axes, row in zip(panels, ADD_UP, strict=True):
                totals, outputs = np.array(result.sums[row]).T
                ends = [outputs.min(), outputs.max()]
                axes.scatter(outputs, totals, s=6, color=COLORS[0], alpha=0.45, linewidths=0)
                axes.plot(ends, ends, color=COLORS[1], linewidth=1.1)
                line = fit(result.sums[row])
                note = "" if line.slope is None else f"slope {line.slope:.2f}, R² {line.r2:.2f}"
                axes.set_title(note.replace("-", "−"), fontsize=7)
                axes.tick_params(labelsize=6)
                axes.locator_params(nbins=4)
            panels[0].set_ylabel(_title(result), fontsize=9)
        for axes, row in zip(grid[-1], ADD_UP, strict=True):
            axes.set_xlabel(LABELS.get(row, row), fontsize=9)
        figure.supxlabel("output (logit of the true class)", fontsize=9)
        figure.supylabel("Σ scores, for lrp with the constants of its ledger", fontsize=9)


def collapse_plot(results: Sequence[SetResult], path: Path) -> None:
    """Σ relevance before and after each norm, the paper's figure 3."""
    if not results:
        return
    columns = min(5, len(results))
    size = (2.3 * columns + 0.5, 2.2 * -(-len(results) // columns) + 0.7)
    with saved_figure(path, figsize=size, layout="constrained") as figure:
        shown: dict[str, Any] = {}
        for axes, result in zip(_grid(figure, len(results), columns), results, strict=True):
            for index, (method, name) in enumerate(
                (("gradient_x_input", "GI"), ("lrp_ah_ln", "LRP(AH+LN)"))
            ):
                _draw_norms(
                    axes, result.norms[method], COLORS[index], 0.12 * (2 * index - 1), name, shown
                )
            axes.axhline(0, color=AXIS, linewidth=0.8)
            axes.set_title(_title(result), fontsize=9)
            axes.tick_params(labelsize=7)
        figure.supxlabel("norm, in the order of the model", fontsize=9)
        figure.supylabel("Σ relevance / output (median)", fontsize=9)
        figure.legend(
            shown.values(),
            shown.keys(),
            loc="outside upper center",
            ncols=4,
            frameon=False,
            fontsize=8,
        )


def _draw_norms(
    axes: Any,
    norms: Sequence[Mapping[str, Any]],
    color: str,
    shift: float,
    name: str,
    shown: dict[str, Any],
) -> None:
    places = np.arange(1, len(norms) + 1) + shift
    before, after = ([norm[side] for norm in norms] for side in ("before", "after"))
    axes.vlines(places, before, after, color=FAINT, linewidth=1)
    out = axes.plot(places, after, "o", color=color, fillstyle="none", markersize=7)[0]
    into = axes.plot(places, before, "X", color=color, markersize=5)[0]
    shown[f"{name}, at its output"], shown[f"{name}, at its input"] = out, into
    axes.set_xticks(range(1, len(norms) + 1))


def heatmap(of: ReproductionSet, samples: Samples, path: Path) -> None:
    """One test input by the paper's methods and the default: its figures 5 and 6."""
    methods = methods_of(of.kind)
    rows = [*PAPER, DEFAULT]
    source, label = next(
        (pair for pair in samples.rows if of.kind == "graph" or 8 <= len(pair[0].split()) <= 16),
        samples.rows[0],
    )
    explanations = [
        samples.explainer(source, methods[row], target=label, truncate=True) for row in rows
    ]
    named = [replace(e, label=LABELS.get(r, r)) for r, e in zip(rows, explanations, strict=True)]
    Comparison(named).plot(path=path)
