"""What all plots have in common: colours, lines, marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wherefrom.errors import MissingExtra

# Okabe and Ito's colours, told apart by colour-blind people; lines and marks differ as well.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", "-.", ":")
_MARKS = "os^vDPX<>*hp"


def drawing() -> Any:
    """Matplotlib without a window, in the looks of this library."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot", "plotting") from error
    pyplot.rcParams.update(
        {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120}
    )
    return pyplot


def look(place: int) -> dict[str, Any]:
    """The colour, line and mark of the n-th method."""
    return {
        "color": COLORS[place % len(COLORS)],
        "linestyle": _LINES[(place // len(COLORS)) % len(_LINES)],
        "marker": _MARKS[place % len(_MARKS)],
        "markersize": 4.5,
        "linewidth": 1.4,
    }


def saved(figure: Any, path: Path) -> Path:
    """Writes a figure and lets go of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight")
    drawing().close(figure)
    return path


def boxes(axes: Any, values: Sequence[Any], names: Sequence[str]) -> None:
    """A box for each name, the first on top; the mean is a diamond."""
    axes.boxplot(
        values, orientation="horizontal", tick_labels=names, widths=0.6, showmeans=True,
        patch_artist=True,
        boxprops={"facecolor": "#d6e6f2", "edgecolor": COLORS[0]},
        whiskerprops={"color": COLORS[0]},
        capprops={"color": COLORS[0]},
        medianprops={"color": COLORS[1], "linewidth": 2},
        meanprops={"marker": "D", "markersize": 4, "markerfacecolor": "k", "markeredgecolor": "k"},
        flierprops={"markersize": 2, "markeredgecolor": "#999999"},
    )  # fmt: skip
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
