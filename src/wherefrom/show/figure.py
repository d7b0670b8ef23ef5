"""Figures of evaluations, studies and corpora, as in the papers: curves, scatter, boxes, bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from wherefrom.errors import InputError, counted
from wherefrom.show.corpus import LEAST_TEXTS, is_function_word
from wherefrom.show.plot_style import (
    AXIS,
    COLORS,
    FAINT,
    GRID,
    TINTS,
    Drawing,
    colormap,
    draw_boxes,
    line_style,
    short_label,
)
from wherefrom.show.text_marks import percent, whole_percent

_AXES = {
    "activation": ("share of units restored", "probability of the explained class"),
    "pruning": ("share of units removed", "squared change of the logits"),
}


def evaluation_drawings(result: Any) -> dict[str, Callable[[], Drawing]]:
    """The figures for which an evaluation has data."""
    kinds: dict[str, Callable[[], Drawing]] = {}
    for metric, curves in result.curves.items():
        xlabel, ylabel = _AXES.get(metric, ("share of units", result.title(metric)))
        lower = result.better.get(metric) == "lower"
        kinds[metric] = partial(curves_drawing, curves, xlabel, ylabel, lower)
    kinds["conservation"] = partial(conservation_drawing, result)
    if "flip" in result.metrics:
        values = {method: result.values[method]["flip"] for method in result.methods}
        kinds["flip"] = partial(boxes_drawing, values, "share removed before the decision flips")
    if len(result.methods) > 1:
        kinds["agreement"] = partial(matrix_drawing, result.agreement)
    return kinds | _study_drawings(result)


def curves_drawing(
    curves: Mapping[str, Sequence[float]], xlabel: str, ylabel: str, lower: bool
) -> Drawing:
    """A mean curve for each method over shares from 0 to 1 (Ali et al. 2022, figure 4).

    The legend is sorted by area, the best first: the smallest if `lower`. If there are more curves
    than colours, each gets a panel, in that order, with the other curves in grey.
    """
    order = sorted(curves, key=lambda name: float(np.mean(curves[name])), reverse=not lower)
    if len(curves) > len(COLORS):
        return _small_multiples({name: curves[name] for name in order}, xlabel, ylabel)

    def draw(axes: Any) -> None:
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

    return Drawing((7.5, 4.5), draw)


def _small_multiples(curves: Mapping[str, Sequence[float]], xlabel: str, ylabel: str) -> Drawing:
    columns = 4
    rows = -(-len(curves) // columns)

    def draw(figure: Any) -> None:
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

    return Drawing((9, 1.75 * rows + 0.6), None, draw)


def conservation_drawing(result: Any) -> Drawing:
    """The sum of the scores plotted against the output (Ali et al. 2022, figure 3)."""
    names = list(result.sums)
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    size = (2.4 * columns + 0.3, 2.35 * rows + 0.3)

    def draw(figure: Any) -> None:
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

    return Drawing(size, None, draw)


def boxes_drawing(values: Mapping[str, Sequence[float]], xlabel: str) -> Drawing:
    """A box for each method, the smallest mean first; the mean is a diamond."""
    order = sorted(values, key=lambda name: float(np.mean(values[name])))

    def draw(axes: Any) -> None:
        draw_boxes(axes, {name: values[name] for name in order})
        axes.set(xlabel=f"{xlabel} (line: median, diamond: mean)", xlim=(-0.02, 1.02))

    return Drawing((7.5, 0.34 * len(values) + 1.2), draw)


def matrix_drawing(matrix: Mapping[str, Mapping[str, float]]) -> Drawing:
    """Rank correlations between methods."""
    names = list(matrix)
    values = np.array([[matrix[a][b] for b in names] for a in names])
    size = 0.42 * len(names) + 2.2

    def draw(axes: Any) -> None:
        image = axes.imshow(values, cmap=colormap(), vmin=-1, vmax=1)
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        for (i, j), value in np.ndenumerate(values):
            ink = "white" if abs(value) > 0.75 else "black"
            text = f"{value:.1f}".replace("-0.0", "0.0").replace("-", "−")
            axes.text(j, i, text, ha="center", va="center", fontsize=7.5, color=ink)
        axes.figure.colorbar(image, ax=axes, shrink=0.7, label="mean rank correlation")

    return Drawing((size + 0.6, size), draw)


def histogram_drawing(values: Mapping[str, Sequence[float]], xlabel: str) -> Drawing:
    """A normalised histogram for each group with its median (Ali et al. 2022, figure 7)."""
    pooled = np.concatenate([np.asarray(numbers, dtype=float) for numbers in values.values()])
    low, high = np.quantile(pooled, [0.005, 0.995])
    edges = np.linspace(low, high, 41) if high > low else np.linspace(low - 1, high + 1, 3)

    def draw(axes: Any) -> None:
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

    return Drawing((7.5, 3.8), draw)


def bias_drawings(study: Any) -> dict[str, Callable[..., Drawing]]:
    """The figures of a bias study."""
    label = f"relevance for {study.corpus.question}"
    return {
        "histogram": partial(histogram_drawing, study.distribution(), label),
        "names": partial(_names_drawing, study, label),
    }


def _names_drawing(study: Any, label: str, min_texts: int = LEAST_TEXTS, most: int = 12) -> Drawing:
    """The names with the highest and the lowest medians, with their quartiles."""
    names = [entity for entity in study.entities if len(entity.texts) >= min_texts]
    if not names:
        raise InputError(
            f"no name occurs in {counted(min_texts, 'text')} or more.",
            "Pass a lower min_texts=.",
            command="",
        )
    groups = [group.name for group in study.groups]
    rows = [
        (entity.name, entity.value, (entity.low, entity.high), COLORS[groups.index(entity.group)])
        for entity in _ends(names, most)
    ]
    counts = f"names in {counted(min_texts, 'text')} or more: {len(rows)} of {len(names)}"
    key = dict(zip(groups, COLORS, strict=False))
    return _ranking_drawing(rows, f"{label} (median, quartiles)", counts, key)


def corpus_drawings(view: Any) -> dict[str, Callable[..., Drawing]]:
    """The figures of a corpus."""
    return {"words": partial(_words_drawing, view)}


def _words_drawing(view: Any, function_words: bool = False, most: int = 15) -> Drawing:
    """The words with the highest and the lowest mean relevance."""
    words = [word for word in view.words if function_words or not is_function_word(word.word)]
    words.sort(key=lambda word: -word.mean)
    if not words:
        raise InputError(
            "there is no word to show.",
            "Pass function_words=True, or a lower min_count.",
            command="Use a lower --min-count.",
        )
    rows = [
        (word.word, word.mean, None, TINTS["for" if word.mean > 0 else "against"])
        for word in _ends(words, most)
    ]
    kind = "words" if function_words else "words without function words"
    counts = f"{kind} in {counted(view.min_count, 'text')} or more: {len(rows)} of {len(words)}"
    return _ranking_drawing(rows, f"mean relevance for {view.corpus.question}", counts, {})


def _ends(entries: Sequence[Any], most: int) -> list[Any]:
    """The first and last entries."""
    return [*entries] if len(entries) <= 2 * most else [*entries[:most], *entries[-most:]]


def _ranking_drawing(
    rows: Sequence[tuple[str, float, tuple[float, float] | None, str]],
    xlabel: str,
    title: str,
    key: Mapping[str, str],
) -> Drawing:
    """A bar for each row, from the top down: its name, value, range and colour."""

    def draw(axes: Any) -> None:
        for row, (_, value, span, color) in enumerate(rows):
            axes.barh(row, value, color=color, height=0.7, hatch="" if value >= 0 else "///",
                      edgecolor="white", linewidth=0.5)  # fmt: skip
            if span is not None:
                axes.hlines(row, *span, color=AXIS, linewidth=1)
        axes.set_yticks(range(len(rows)), [short_label(name) for name, *_ in rows], fontsize=8)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.axvline(0, color=AXIS, linewidth=0.8)
        axes.grid(axis="x", color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
        axes.set_xlabel(xlabel, fontsize=9)
        axes.set_title(title, fontsize=9, loc="left")
        for name, color in key.items():
            axes.bar(0, 0, color=color, label=name)
        if key:
            axes.legend(frameon=False, fontsize=8, loc="best")

    return Drawing((6.5, 0.2 * len(rows) + 1.0), draw)


def _study_drawings(result: Any) -> dict[str, Callable[[], Drawing]]:
    """The figures for which the studies of an evaluation have data."""
    kinds: dict[str, Callable[[], Drawing]] = {}
    records = result.studies.get("attention_erasure")
    if records:
        singles = [record["single"] for record in records if record["single"] is not None]
        if singles:
            kinds["attention_erasure"] = partial(weights_drawing, singles)
        shares: dict[str, list[float]] = {}
        for record in records:
            for name, share in record["to_flip"].items():
                shares.setdefault(name, []).append(share)
        if shares:
            kinds["attention_to_flip"] = partial(until_flip_drawing, shares)
    if result.studies.get("layers"):
        summary = result.study("layers")
        kinds["layers"] = partial(profile_drawing, summary["blocks"])
        if summary["norms"]:
            kinds["collapse"] = partial(collapse_drawing, summary["norms"])
    return kinds


def weights_drawing(singles: Sequence[Mapping[str, Any]]) -> Drawing:
    """ΔJS against Δα, and the table of decision flips (Serrano & Smith 2019)."""
    delta_weights = [record["delta_weight"] for record in singles]
    delta_js = np.array([record["delta_js"] for record in singles])
    counts = np.zeros((2, 2))
    for record in singles:
        counts[int(not record["flips_highest"]), int(not record["flips_random"])] += 1

    def draw(figure: Any) -> None:
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
        table.imshow(counts / len(singles), cmap=colormap(False), vmin=-1, vmax=1)
        for (i, j), value in np.ndenumerate(counts / len(singles)):
            ink = "white" if value > 0.6 else "black"
            table.text(j, i, percent(value), ha="center", va="center", color=ink)
        table.set_xticks((0, 1), ("flips", "does not"))
        table.set_yticks((0, 1), ("flips", "does not"), rotation=90, va="center")
        table.set(xlabel="erasing the random weight", ylabel="erasing the highest weight")
        table.set_title(f"decision flips, {len(singles)} texts", fontsize=9)
        table.spines[:].set_visible(False)
        table.tick_params(length=0)

    return Drawing((9, 3.8), None, draw)


def until_flip_drawing(shares: Mapping[str, Sequence[float]]) -> Drawing:
    """The share of weights erased before a flip, over the texts that at least one ranking flips."""
    names = list(shares)
    values = np.array(list(shares.values()))  # (rankings, texts)
    flipped = (values < 1).any(0)
    shown = values[:, flipped] if flipped.any() else values
    order = np.argsort(shown.mean(1), kind="stable")

    def draw(axes: Any) -> None:
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

    return Drawing((7.5, 0.34 * len(shares) + 1.4), draw)


def profile_drawing(blocks: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Drawing:
    """Σ relevance at the input and after each block, as a share of the output."""
    names = list(dict.fromkeys(name for profile in blocks.values() for name in profile))
    size = (max(5.5, 0.45 * len(names) + 2.5), 3.8)

    def draw(axes: Any) -> None:
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

    return Drawing(size, draw)


def collapse_drawing(norms: Mapping[str, Sequence[Mapping[str, Any]]]) -> Drawing:
    """Σ relevance at the input and output of each norm (Ali et al. 2022, figure 2)."""
    titles = {"gradient_x_input": "gradient × input", "lrp_ah_ln": "with the AH and LN rules"}
    methods = [name for name in titles if name in norms]
    count = max(len(norms[name]) for name in methods)
    size = (max(3.6, 0.22 * count + 1.6) * len(methods), 3.6)

    def draw(figure: Any) -> None:
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

    return Drawing(size, None, draw)


def _block_number(name: str) -> str:
    """The number of a block, counted from 1; other names stay as they are."""
    last = name.rpartition(".")[2]
    return str(int(last) + 1) if last.isdecimal() else last
