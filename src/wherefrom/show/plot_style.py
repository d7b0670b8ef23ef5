"""Figures for papers and notebooks: one palette, fonts that embed, and output without pyplot."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError, InputError, MissingExtra, printable

# The colour-blind safe palette of Okabe and Ito; line styles and markers differ as well.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
TINTS = {"for": "#d62728", "against": "#1f77dc", "strength": "#00825a"}
GRID, AXIS, FAINT, INK, DIM = "#e4e4e4", "#777777", "#999999", "#1b1b1f", "#6a6a75"
_LINES = ("-", "--", "-.", ":")
_MARKERS = "os^vDPX<>*hp"
_RC = {
    "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120,
    "savefig.dpi": "figure", "text.parse_math": False,
    "text.hinting": "none",  # letters are as wide as in a PDF
    "pdf.fonttype": 42, "ps.fonttype": 42,  # TrueType, which publishers accept; not Type 3
    "svg.fonttype": "none",  # text stays text
}  # fmt: skip
_LONGEST_LABEL = 24  # characters


@dataclass(frozen=True)
class Drawing:
    """What a figure shows: drawn on axes, on a figure, or on either; its default size in inches."""

    size: tuple[float, float]
    on_axes: Callable[[Any], None] | None = None
    on_figure: Callable[[Any], None] | None = None


def import_matplotlib() -> Any:
    """Matplotlib with the modules that plots use, but without pyplot and its backend."""
    try:
        import matplotlib
        import matplotlib.backends.backend_agg
        import matplotlib.colors
        import matplotlib.figure
        import matplotlib.font_manager
        import matplotlib.image
        import matplotlib.patches
        import matplotlib.textpath
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot", "plotting") from error
    return matplotlib


def plot(
    kinds: Mapping[str, Callable[..., Drawing]],
    kind: str | None,
    path: str | Path | None,
    figsize: tuple[float, float] | None,
    dpi: float | None,
    ax: Any,
    options: Mapping[str, Any],
) -> Any:
    """Draws one of `kinds`, by default the first: a figure, with `path` a file, or on `ax`."""
    kind = next(iter(kinds), "") if kind is None else kind
    if kind not in kinds:
        names = ", ".join(f'"{name}"' for name in kinds) or "none"
        raise InputError(f'there is no figure "{kind}" of this result; there are: {names}.')
    try:
        inspect.signature(kinds[kind]).bind(**options)
    except TypeError as error:
        raise InputError(f'plot("{kind}"): {error}.') from error
    drawing = kinds[kind](**options)
    if ax is not None:
        if path is not None or figsize is not None or dpi is not None:
            raise InputError(
                "path, figsize and dpi do not apply to axes of yours.",
                "Leave them out, or leave out ax=.",
                command="",
            )
        if drawing.on_axes is None:
            raise InputError(
                f'the figure "{kind}" has several panels.', "Leave out ax=.", command=""
            )
        with import_matplotlib().rc_context(_RC):
            drawing.on_axes(ax)
        return ax
    size = {"figsize": figsize or drawing.size} | ({} if dpi is None else {"dpi": dpi})
    with styled_figure(**size, layout="constrained") as figure:
        if drawing.on_figure is not None:
            drawing.on_figure(figure)
        elif drawing.on_axes is not None:
            drawing.on_axes(figure.subplots())
        if path is None:
            return figure
        save(figure, Path(path))
    return Path(path)


@contextmanager
def styled_figure(**options: Any) -> Iterator[Any]:
    """A figure to draw on, which notebooks can display.

    The figure is not registered with pyplot, and the style holds only within the block and while
    the figure is saved: the caller's backend, rcParams and open figures stay as they are.
    """
    matplotlib = import_matplotlib()

    class Figure(matplotlib.figure.Figure):  # type: ignore[misc,name-defined]
        def savefig(self, *args: Any, **kwargs: Any) -> None:
            with matplotlib.rc_context(_RC):
                super().savefig(*args, **kwargs)

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    with matplotlib.rc_context(_RC):
        figure = Figure(**options)
        matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
        yield figure


@contextmanager
def saved_figure(path: Path, **options: Any) -> Iterator[Any]:
    """A figure to draw on, written to `path` at the end of the block."""
    with styled_figure(**{"layout": "constrained", **options}) as figure:
        yield figure
        save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Writes a figure in the format of the file's suffix."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from error
    except ValueError as error:  # unknown image format
        raise FileError(f"cannot write {path}: {str(error).rstrip('.')}.") from error


def shade(tint: str, size: float) -> tuple[float, float, float]:
    """The colour of a strength from 0 to 1, mixed with white."""
    full = import_matplotlib().colors.to_rgb(TINTS[tint])
    red, green, blue = (1 - size * (1 - channel) for channel in full)
    return red, green, blue


def colormap(is_signed: bool = True) -> Any:
    """The palette over −1 to 1, through white."""
    ends = ("against", "for") if is_signed else ("strength", "strength")
    colors = [TINTS[ends[0]], "#ffffff", TINTS[ends[1]]]
    return import_matplotlib().colors.LinearSegmentedColormap.from_list("wherefrom", colors)


def short_label(text: str) -> str:
    r"""A text as a label: one short line.

    >>> short_label("one\n two"), short_label(" ")
    ('one two', '␣')
    """
    line = printable(" ".join(text.split())) or "␣"
    return line if len(line) <= _LONGEST_LABEL else f"{line[: _LONGEST_LABEL - 1]}…"


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
