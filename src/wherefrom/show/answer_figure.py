"""The matrix of an answer as a picture: which words each of its tokens comes from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wherefrom.core.explanation import plural
from wherefrom.errors import printable
from wherefrom.show.explanation_figure import draw_scene
from wherefrom.show.plot_style import AXIS, FAINT, GRID, saved_figure
from wherefrom.show.text_marks import pictures, whole_percent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wherefrom.answers.answer import Answer
    from wherefrom.answers.sources import Level

_MOST = 80  # columns of the prompt
_LETTERS = 24  # of a label


@dataclass(frozen=True, eq=False)
class Column:
    """A word of the prompt, or an earlier token of the answer."""

    text: str
    relevance: NDArray[np.float64]  # (answer tokens,)
    earlier: bool = False


def alignment(
    answer: Answer, level: Level = "word", through: bool = False, limit: int = _MOST
) -> list[Column]:
    """The columns of the picture: those of the prompt with most relevance, in its order."""
    places = answer.places(level, whole_images=True)
    rows = answer.handed_on() if through else answer.rows()
    matrix = np.stack([row.values for row in rows])  # (answer tokens, units)
    sums = np.stack([matrix[:, units].sum(1) for _, units in places], 1)
    largest = np.argsort(-np.abs(sums).sum(0), kind="stable")[:limit]
    columns = []
    for number in sorted(largest.tolist()):
        name, units = places[number]
        text = "".join(answer.units[unit].text for unit in units)
        whole = level == "passage" or answer.group(units[0]) == "image"
        columns.append(Column(name if whole else text.strip(), sums[:, number]))
    for token in range(len(answer) - 1):
        text = answer.tokens[token].text.strip()
        columns.append(Column(text, matrix[:, answer.start + token], earlier=True))
    return columns


def alignment_plot(
    answer: Answer, path: Path, level: Level = "word", through: bool = False
) -> Path:
    """Answer tokens × prompt words, then earlier answer tokens: shares of each row."""
    columns = alignment(answer, level, through)
    table = np.stack([column.relevance for column in columns], 1)
    shares = table / np.maximum(np.abs(table).sum(1, keepdims=True), 1e-300)
    tokens = [_label(token.text) for token in answer.tokens]
    prompt = sum(not column.earlier for column in columns)
    count = len(answer.places(level, whole_images=True))
    images = pictures(answer.of(through=through))
    wide, high = 0.24 * len(columns) + 2.4, 0.24 * len(tokens) + 2.0
    wide = max(wide, 2.6 * len(images))
    with saved_figure(path, figsize=(wide, high + 2.6 * bool(images))) as figure:
        lower = figure
        if images:
            by_name = {source.name: source.share for source in answer.sources(through=through)}
            upper, lower = figure.subfigures(2, 1, height_ratios=(2.6, high))
            for number, (own, each) in enumerate(
                zip(upper.subplots(1, len(images), squeeze=False)[0], images, strict=True), 1
            ):
                own.axis("off")
                draw_scene(own, each, bare=False)
                share = by_name[f"image {number}"]
                own.set_title(f"image {number}: share {whole_percent(share)}", fontsize=8)
        axes = lower.subplots()
        # the colours are scaled to the prompt: tokens next to each other would outshine it
        most = float(np.abs(shares[:, :prompt]).max(initial=0.0)) or 1.0
        clipped = "both" if float(np.abs(shares).max()) > most else "neither"
        image = axes.imshow(shares, cmap="RdBu_r", vmin=-most, vmax=most, aspect="equal")
        labels = [_label(column.text) for column in columns]
        axes.set_xticks(range(len(columns)), labels, rotation=90, fontsize=8)
        axes.set_yticks(range(len(tokens)), tokens, fontsize=8)
        axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(len(tokens) + 1) - 0.5, minor=True)
        axes.grid(which="minor", color=GRID, linewidth=0.4)
        axes.tick_params(which="both", length=0)
        axes.spines[:].set_visible(False)
        axes.xaxis.tick_top()
        for text in axes.get_xticklabels()[prompt:]:
            text.set_color(AXIS)
        if prompt < len(columns):
            axes.axvline(prompt - 0.5, color=FAINT, linewidth=1.2)
        shown = f"{prompt} of {count} {plural(level)}" if prompt < count else f"{plural(level)}"
        axes.set_xlabel(
            f"{shown} of the prompt" + (" | earlier tokens of the answer" * (len(tokens) > 1)),
            fontsize=8,
        )
        bar = lower.colorbar(image, ax=axes, shrink=0.8, pad=0.02, aspect=12, extend=clipped)
        bar.set_label("share of the row", fontsize=8)
        bar.ax.tick_params(labelsize=7)
        bar.outline.set_visible(False)
    return path


def _label(text: str) -> str:
    """A text as a label: in one line, short, and no formula."""
    line = printable(" ".join(text.split())) or "␣"
    line = line if len(line) <= _LETTERS else f"{line[: _LETTERS - 1]}…"
    return line.replace("$", r"\$")
