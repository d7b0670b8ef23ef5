"""The inside of an explanation as plots: maps of layers and heads, and the flow through layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.errors import InputError
from wherefrom.show.inside import NO_LAYERS, by_column, column_labels, stream_cuts
from wherefrom.show.plot_style import AXIS, Drawing, import_matplotlib
from wherefrom.show.text_marks import signed, target_name, whole_percent

Numbers = NDArray[np.float64]
_COLORS = {1: "#d62728", -1: "#1f77dc"}
_POWER = 0.5  # of colour scales: weak relevance stays visible
_MOST_LABELS = 60  # of units below a map
_MOST_NUMBERS = 400  # in the cells of a map
_WEAK_BAND = 0.002  # of the largest sum of a column: thinner bands of attention are left out
_MOST_BANDS = 600  # of attention


def drawings(inside: Any) -> dict[str, Callable[..., Drawing]]:
    """The figures of the inside of an explanation."""
    if not inside.depth:
        raise InputError(NO_LAYERS)

    def flow(units: int = 24) -> Drawing:
        if units < 1:
            raise InputError(f"units must be 1 or more, got {units}.")
        return _drawing(Flow(inside, units))

    return {
        "layers": lambda: _drawing(LayerMap(inside)),
        "heads": lambda: _drawing(HeadGrid(inside)),
        "flow": flow,
    }


def _drawing(figure: LayerMap | HeadGrid | Flow) -> Drawing:
    return Drawing(figure.size, on_figure=figure.draw)


def _title(inside: Any) -> str:
    explanation = inside.explanation
    name = f"{target_name(explanation)} {signed(explanation.output)}"
    return f"{name}, by {explanation.method_label} on {explanation.model}"


def _scale(values: Numbers) -> Any:
    """A colour scale over ±the largest relevance."""
    matplotlib = import_matplotlib()
    largest = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0

    def forward(x: Any) -> Any:
        return np.sign(x) * np.abs(x) ** _POWER

    def backward(x: Any) -> Any:
        return np.sign(x) * np.abs(x) ** (1 / _POWER)

    return matplotlib.colors.FuncNorm((forward, backward), vmin=-largest, vmax=largest)


def _colorbar(figure: Any, image: Any, axes: Any) -> None:
    top = image.norm.vmax
    bar = figure.colorbar(image, ax=axes, pad=0.01, fraction=0.05, label="relevance")
    bar.set_ticks([-top, -top / 4, 0, top / 4, top])
    bar.ax.yaxis.set_major_formatter(lambda value, _: signed(value))
    bar.ax.tick_params(labelsize=8)


@dataclass(frozen=True)
class LayerMap:
    """The residual stream by layer and unit, the input at the bottom, and the sum of each row."""

    inside: Any

    @property
    def size(self) -> tuple[float, float]:
        """Inches."""
        rows, columns = len(self.inside.layers), len(column_labels(self.inside))
        return min(18.0, 3.5 + max(0.32 * min(columns, 24), 0.08 * columns)), 1.8 + 0.2 * rows

    def draw(self, figure: Any) -> None:
        """Draws the map and the sums."""
        values = by_column(self.inside)["stream"]
        axes, side = figure.subplots(1, 2, sharey=True, width_ratios=(self.size[0] - 2.2, 1.2))
        image = axes.imshow(
            values, cmap="RdBu_r", norm=_scale(values), aspect="auto", origin="lower",
            interpolation="nearest",
        )  # fmt: skip
        labels = column_labels(self.inside)
        shown = strongest_apart(np.abs(values).max(0), _MOST_LABELS)
        axes.set_xticks(shown, [labels[i] for i in shown], rotation=90, fontsize=8)
        axes.set_yticks(*_layer_ticks(self.inside.depth), fontsize=8)
        axes.set(ylabel="layer that it enters")
        axes.set_title(f"Relevance of the residual stream: {_title(self.inside)}", fontsize=9)
        cuts = stream_cuts(self.inside)
        streams, later = ([getattr(cut, name) for cut in cuts] for name in ("relevance", "later"))
        rows = range(len(cuts))
        side.barh(rows, streams, color=AXIS, height=0.7)
        side.plot([a + b for a, b in zip(streams, later, strict=True)], rows, "k.", markersize=4)
        side.axvline(0, color=AXIS, linewidth=0.8)
        side.set_title("bar: sum of a row\ndot: with what enters later", fontsize=7)
        side.tick_params(labelsize=7)
        side.tick_params(axis="y", length=0, labelleft=False)
        _colorbar(figure, image, side)


@dataclass(frozen=True)
class HeadGrid:
    """What each attention head carries."""

    inside: Any

    @property
    def size(self) -> tuple[float, float]:
        """Inches."""
        rows, columns = self.inside.heads.shape
        return 2.6 + max(2.5, 0.48 * columns), 1.5 + 0.24 * rows

    def draw(self, figure: Any) -> None:
        """Draws the grid, with numbers if they have room."""
        values = self.inside.heads
        if not np.isfinite(values).any():
            raise InputError("the heads of this model are not known from its calls.")
        axes, norm = figure.subplots(), _scale(values)
        image = axes.imshow(values, cmap="RdBu_r", norm=norm, aspect="auto", origin="lower")
        if values.size <= _MOST_NUMBERS:
            for (layer, head), value in np.ndenumerate(values):
                if np.isfinite(value):
                    ink = "white" if abs(2 * float(norm(value)) - 1) > 0.7 else "black"
                    number = f"{value:+.2f}".replace("-0.00", "0").replace("+0.00", "0")
                    axes.text(head, layer, number, ha="center", va="center", fontsize=7, color=ink)
        axes.set_xticks(range(values.shape[1]), range(values.shape[1]), fontsize=8)
        axes.set_yticks(range(len(values)), range(len(values)), fontsize=8)
        axes.set(xlabel="head", ylabel="layer")
        axes.set_title(f"Relevance of heads:\n{_title(self.inside)}", fontsize=9)
        _colorbar(figure, image, axes)


def _layer_ticks(depth: int) -> tuple[range, list[str]]:
    return range(depth + 1), [*map(str, range(depth)), "end"]


def strongest_apart(strengths: Numbers, count: int) -> list[int]:
    """Columns to label: the strongest, with room for a label between any two."""
    room = -(-len(strengths) // count)
    chosen: list[int] = []
    for column in np.argsort(-strengths, kind="stable").tolist():
        if all(abs(column - other) >= room for other in chosen):
            chosen.append(column)
    return sorted(chosen)


class Flow:
    """Bands from units through layers to the output, as wide as the relevance that they carry.

    A bar is the residual stream of a unit where it enters a layer. Attention moves a part of it to
    other units; all else stays: the band that stays is what the next bar has besides.
    """

    def __init__(self, inside: Any, units: int) -> None:
        self.inside = inside
        layers, labels = by_column(inside)["stream"], column_labels(inside)
        count = len(inside.units)
        order = np.argsort(-np.abs(layers[:, :count]).max(0), kind="stable")
        several = count > units + 1
        self.named = sorted(order[:units].tolist()) if several else list(range(count))
        members = [[unit] for unit in self.named]
        self.labels = [labels[unit] for unit in self.named]
        if several:
            members.append([unit for unit in range(count) if unit not in self.named])
            self.labels.append(f"{len(members[-1])} others")
        members += [[column] for column in range(count, len(labels))]
        self.labels += labels[count:]
        groups = np.zeros((count + 1, len(members)))  # the last row: of rows without a unit
        for row, columns in enumerate(members):
            groups[columns, row] = 1.0
        self.bars = layers @ groups[: len(labels)]  # (layers + 1, rows)
        moved = [groups.T @ inside.moved(layer) @ groups for layer in range(inside.depth)]
        self.moved = np.array([part * (1 - np.eye(len(part))) for part in moved])
        self.stays = self.bars[1:] - self.moved.sum(1)
        self.largest = float(np.abs(self.bars).sum(1).max()) or 1.0
        sizes = np.sort(np.abs(self.moved), axis=None)[::-1]
        weak = sizes[_MOST_BANDS] if sizes.size > _MOST_BANDS else 0.0
        self.least = max(_WEAK_BAND * self.largest, float(weak))

    @property
    def size(self) -> tuple[float, float]:
        """Inches."""
        columns, rows = self.bars.shape
        return min(20.0, 3.5 + max(0.85 * min(columns, 9), 0.55 * columns)), 3.0 + 0.22 * rows

    @property
    def left_out(self) -> float:
        """The share of moved relevance, by size, in bands that are not drawn."""
        sizes = np.abs(self.moved)
        return float(sizes[sizes < self.least].sum() / (sizes.sum() or 1.0))

    def draw(self, figure: Any) -> None:
        """Draws bars and bands."""
        axes = figure.subplots()
        tops = self._tops()
        depth = len(self.bars) - 1
        for layer in range(depth):
            self._draw_bands(axes, layer, tops)
        for layer, bars in enumerate(self.bars):
            for row, value in enumerate(bars):
                axes.add_patch(_box(layer, tops[layer][row], value))
        self._draw_output(axes, tops)
        for row, label in enumerate(self.labels):
            middle = tops[0][row] + abs(self.bars[0][row]) / 2
            axes.text(-0.12, middle, label, ha="right", va="center", fontsize=8)
        bottom = max(top[-1] + abs(bars[-1]) for top, bars in zip(tops, self.bars, strict=True))
        axes.set(xlim=(-0.3, depth + 1.3), ylim=(1.02 * bottom, -0.03 * bottom))
        axes.set_xticks(range(depth + 1), _layer_ticks(depth)[1], fontsize=8)
        axes.set_yticks([])
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.tick_params(length=0)
        axes.set_xlabel(self.caption, fontsize=8)
        axes.set_title(f"Flow of relevance: {_title(self.inside)}", fontsize=9)

    @property
    def caption(self) -> str:
        """What is drawn and what is not."""
        return (
            "layer that the residual stream enters\nred: positive; blue, hatched: negative; pale "
            "bands stay at their unit, dark ones are moved by attention\n"
            f"not drawn: bands below {self.least:.2g}, {whole_percent(self.left_out)} of what "
            "attention moves"
        )

    def _tops(self) -> list[list[float]]:
        """The upper end of each bar; bars are stacked in the order of the text."""
        gap = self.largest * 0.5 / len(self.labels) + 0.02 * self.largest
        tops = []
        for bars in self.bars:
            starts, start = [], 0.0
            for value in bars:
                starts.append(start)
                start += abs(float(value)) + gap
            tops.append(starts)
        return tops

    def _draw_bands(self, axes: Any, layer: int, tops: list[list[float]]) -> None:
        """The bands between two columns; those of a bar start and end one below the other."""
        moved, rows = self.moved[layer], range(len(self.labels))
        bands = [(i, i, float(self.stays[layer][i])) for i in rows]
        strong = np.argwhere(np.abs(moved) >= self.least).tolist()
        bands += [(i, j, float(moved[i, j])) for i, j in strong]
        leaving = _stacked(bands, tops[layer], self.bars[layer], side=0)
        arriving = _stacked(bands, tops[layer + 1], self.bars[layer + 1], side=1)
        for band, start, end in zip(bands, leaving, arriving, strict=True):
            axes.add_patch(_band(layer, start, end, band[2], stays=band[0] == band[1]))

    def _draw_output(self, axes: Any, tops: list[list[float]]) -> None:
        """Bands from the last column to the output."""
        depth, start = len(self.bars) - 1, 0.0
        for row, value in enumerate(self.bars[-1]):
            width = abs(float(value))
            ends = (start, width)
            axes.add_patch(_band(depth, (tops[-1][row], width), ends, float(value), stays=True))
            start += width
        later = stream_cuts(self.inside)[-1].later
        note = f"output\n{signed(self.inside.output)}"
        if abs(later) >= 0.0005 * self.largest:
            note += f"\n(constants\n{signed(later)})"
        axes.add_patch(_box(depth + 1, 0.0, start, color=AXIS))
        axes.text(depth + 1.12, start / 2, note, ha="left", va="center", fontsize=8)


def _stacked(
    bands: list[tuple[int, int, float]], tops: list[float], bars: Numbers, side: int
) -> list[tuple[float, float]]:
    """The upper end and width of each band at its bar, in the order of the rows at its other end.

    Bands of different signs may be wider than their bar: they are compressed to its width.
    """
    ends: list[tuple[float, float]] = [(0.0, 0.0)] * len(bands)
    for row, top in enumerate(tops):
        own = [k for k, band in enumerate(bands) if band[side] == row]
        own.sort(key=lambda k: bands[k][1 - side])
        total = sum(abs(bands[k][2]) for k in own)
        shrink = min(1.0, abs(float(bars[row])) / total) if total else 0.0
        for k in own:
            width = abs(bands[k][2]) * shrink
            ends[k] = (top, width)
            top += width
    return ends


def _box(layer: int, top: float, value: float, color: str | None = None) -> Any:
    patches = import_matplotlib().patches
    face = color or _COLORS[1 if value >= 0 else -1]
    return patches.Rectangle(
        (layer - 0.05, top), 0.1, abs(value), facecolor=face, linewidth=0,
        hatch="" if value >= 0 else "////", edgecolor="white",
    )  # fmt: skip


def _band(
    layer: int, start: tuple[float, float], end: tuple[float, float], value: float, stays: bool
) -> Any:
    """A band from one column to the next, between two cubic curves."""
    matplotlib = import_matplotlib()
    path = matplotlib.path.Path
    left, right = layer + 0.05, layer + 0.95
    middle = (left + right) / 2
    (upper, wide), (lower, narrow) = start, end
    points = [
        (left, upper), (middle, upper), (middle, lower), (right, lower),
        (right, lower + narrow), (middle, lower + narrow), (middle, upper + wide),
        (left, upper + wide), (left, upper),
    ]  # fmt: skip
    codes = [
        path.MOVETO, *[path.CURVE4] * 3, path.LINETO, *[path.CURVE4] * 3, path.CLOSEPOLY
    ]  # fmt: skip
    return matplotlib.patches.PathPatch(
        path(points, codes), facecolor=_COLORS[1 if value >= 0 else -1], linewidth=0,
        alpha=0.28 if stays else 0.55, hatch="" if value >= 0 else "////", edgecolor="white",
        gid="stays" if stays else "moved",
    )  # fmt: skip
