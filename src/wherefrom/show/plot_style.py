"""Plot style and output: colours, line styles, boxes, and figures without pyplot."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError, MissingExtra

# The colour-blind safe palette of Okabe and Ito; line styles and markers differ as well.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GRID, AXIS, FAINT = "#e4e4e4", "#777777", "#999999"
_LINES = ("-", "--", "-.", ":")
_MARKERS = "os^vDPX<>*hp"
_RC = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120}


def import_matplotlib() -> Any:
    """Matplotlib with the modules that plots use, but without pyplot and its backend."""
    try:
        import matplotlib
        import matplotlib.backends.backend_agg
        import matplotlib.figure
        import matplotlib.image
        import matplotlib.patches
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot", "plotting") from error
    return matplotlib


@contextmanager
def styled_figure(**options: Any) -> Iterator[Any]:
    """A figure to draw on, which notebooks can display.

    The style holds within the block only, and the figure is not registered with pyplot: the
    caller's backend, rcParams and open figures stay as they are.
    """
    matplotlib = import_matplotlib()

    class Figure(matplotlib.figure.Figure):  # type: ignore[misc,name-defined]
        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png", bbox_inches="tight")
            return file.getvalue()

    with matplotlib.rc_context(_RC):
        figure = Figure(**options)
        matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
        yield figure


@contextmanager
def saved_figure(path: Path, **options: Any) -> Iterator[Any]:
    """A figure to draw on, written to `path` at the end of the block."""
    with styled_figure(**options) as figure:
        yield figure
        save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Writes a figure in the format of the file's suffix."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, bbox_inches="tight")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from error
    except ValueError as error:  # unknown image format
        raise FileError(f"cannot write {path}: {str(error).rstrip('.')}.") from error


def line_style(index: int) -> dict[str, Any]:
    """Colour, line style and marker of the n-th method."""
    return {
        "color": COLORS[index % len(COLORS)],
        "linestyle": _LINES[(index + index // len(COLORS)) % len(_LINES)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "markersize": 4.5,
        "linewidth": 1.4,
    }


def draw_boxes(axes: Any, values: Mapping[str, Sequence[float]]) -> None:
    """A horizontal box for each name, the first on top; the mean is a diamond."""
    axes.boxplot(
        list(values.values()), orientation="horizontal", tick_labels=list(values), widths=0.6,
        showmeans=True, patch_artist=True,
        boxprops={"facecolor": "#d6e6f2", "edgecolor": COLORS[0]},
        whiskerprops={"color": COLORS[0]},
        capprops={"color": COLORS[0]},
        medianprops={"color": COLORS[1], "linewidth": 2},
        meanprops={"marker": "D", "markersize": 4, "markerfacecolor": "k", "markeredgecolor": "k"},
        flierprops={"markersize": 2, "markeredgecolor": FAINT},
    )  # fmt: skip
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
