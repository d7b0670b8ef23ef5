"""One explanation as a plot: a waterfall from zero to the output, or bars by size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wherefrom.core.explanation import Explanation, Ledger, Line
from wherefrom.errors import InputError
from wherefrom.show.plot_style import AXIS, GRID, save, styled_figure
from wherefrom.show.sentence import explained, sentence
from wherefrom.show.text_marks import signed, summary

_FOR, _AGAINST, _TOTAL = "#d62728", "#1f77dc", "#444444"
Bar = tuple[str, float, float]  # name, start, value


def plot(explanation: Explanation, kind: str, path: Path | None, units: int) -> Any:
    """The figure, or the path that it was written to."""
    if units < 1:
        raise InputError(f"units must be 1 or more, got {units}.")
    if kind not in ("waterfall", "bar"):
        raise InputError(f'kind must be "waterfall" or "bar", got {kind!r}.')
    bars = (waterfall_bars if kind == "waterfall" else _by_size)(explanation, units)
    with styled_figure(figsize=(7.5, 0.34 * len(bars) + 1.3)) as figure:
        axes = figure.subplots()
        _draw(axes, bars, explanation)
        if path is None:
            return figure
        save(figure, path)
    return path


def waterfall_bars(explanation: Explanation, units: int) -> list[Bar]:
    """The strongest units, the rest, what the model itself adds, the residual, and the output."""
    ledger = explanation.ledger
    if ledger is None:
        raise InputError(
            f"the scores of {explanation.method} do not add up to the output, so they make no "
            "waterfall.",
            'Use plot("bar").',
            command="",
        )
    named, rest = _strongest(explanation, units)
    lines = [*named, *([("other units", rest)] if rest else [])]
    # the parts are what the scores are made of: the ledger's lines without them are the model's own
    parts = explanation.parts or {ledger.lines[0].kind: explanation.scores}
    beside = [
        Line(kind, kind, ledger.of(kind) - float(parts[kind].sum() if kind in parts else 0.0))
        for kind in dict.fromkeys(line.kind for line in ledger.lines)
    ]
    tiny = 1e-5 * sum(abs(line.value) for line in ledger.lines)
    others = summary(Ledger(tuple(beside), ledger.output))
    lines += [(line.label, line.value) for line in others if abs(line.value) > tiny]
    total = sum(value for _, value in lines)
    lines.append(("residual", ledger.output - total))
    bars, start = [], 0.0
    for name, value in lines:
        bars.append((name, start, value))
        start += value
    return [*bars, ("output", 0.0, ledger.output)]


def _by_size(explanation: Explanation, units: int) -> list[Bar]:
    named, rest = _strongest(explanation, units)
    named += [("other units", rest)] if rest else []
    return [(name, 0.0, value) for name, value in named]


def _strongest(explanation: Explanation, units: int) -> tuple[list[tuple[str, float]], float]:
    """The strongest units by name, the tokens of a word joined, and the sum of all others."""
    if explanation.text is not None and any(unit.word is not None for unit in explanation.units):
        explanation = explanation.words()
    scores = explanation.scores.astype(float).tolist()
    order = sorted(range(len(scores)), key=lambda i: -abs(scores[i]))
    named = [(explanation.units[i].text.strip() or "·", scores[i]) for i in order[:units]]
    return named, float(sum(scores[i] for i in order[units:]))


def _draw(axes: Any, bars: list[Bar], explanation: Explanation) -> None:
    for row, (name, start, value) in enumerate(bars):
        is_total = name == "output" and row == len(bars) - 1 and row > 0
        color = _TOTAL if is_total else _FOR if value >= 0 else _AGAINST
        hatch = "" if value >= 0 else "///"  # the sign without colour
        axes.barh(row, value, left=start, color=color, height=0.7, hatch=hatch,
                  edgecolor="white", linewidth=0.5)  # fmt: skip
        side = "left" if value >= 0 else "right"
        axes.annotate(signed(value), (start + value, row), xytext=(3 if value >= 0 else -3, 0),
                      textcoords="offset points", va="center", ha=side, fontsize=8)  # fmt: skip
        if row + 1 < len(bars) and bars[row + 1][1] == start + value and start + value:
            axes.plot([start + value] * 2, [row - 0.35, row + 1.35], color=AXIS, linewidth=0.6)
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars], fontsize=9)
    axes.invert_yaxis()
    axes.axvline(0, color=AXIS, linewidth=0.8)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.margins(x=0.14)
    axes.set_title(sentence(explanation), fontsize=9, loc="left", wrap=True)
    axes.set_xlabel(explained(explanation).removeprefix("Explained: "), fontsize=8)
