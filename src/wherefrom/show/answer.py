"""Shows answers of language models: in a terminal, as an interactive page, as a figure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table
from rich.text import Text

from wherefrom.core.explanation import plural
from wherefrom.errors import printable
from wherefrom.show.explanation_figure import draw_scene
from wherefrom.show.line_kinds import LINE_KINDS
from wherefrom.show.page import page as whole_page
from wherefrom.show.plot_style import AXIS, FAINT, GRID, Drawing, colormap, short_label
from wherefrom.show.terminal import (
    console_text,
    heatmap,
    ledger_line,
    make_console,
    wants_color,
)
from wherefrom.show.text_marks import (
    label_name,
    pictures,
    quoted,
    signed,
    whole_percent,
    with_error,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wherefrom.answers.answer import Answer
    from wherefrom.answers.multi_hop import RelevanceRow
    from wherefrom.answers.sources import Citation, Level, Source
    from wherefrom.answers.verdicts import Verdict
    from wherefrom.core.explanation import Explanation

_SCRIPTS = ("answer_matrix.js", "answer_sentence.js", "answer.js")
_SOURCE_WIDTH = 60  # characters of a source in a table
_DIGITS = 5
_COLUMNS = 80  # of the prompt, in the figure
_SHARE = (
    "share: relevance / Σ |relevance| of the prompt's parts, whose sum is the ledger's line prompt"
)
_KEY = (
    ("for", "red", "counts for the chosen words"),
    ("against", "blue, underlined", "against them"),
)
_UNSIGNED_KEY = (("strength", "green", "strength, without a sign"),)
_QUANTITIES = {
    "contrast": "the logit minus the runner-up's",
    "logit": "the logit",
    "logprob": "the log-probability",
}


def explained_quantity(answer: Answer, explanation: Explanation) -> str:
    """A description of the explained quantity."""
    target = explanation.target
    if answer.explained == "contrast" and target.against_label is not None:
        return f"{quoted(target.label)} − {label_name(target, target.against_label)}"
    return f"{_QUANTITIES[answer.explained]} of {quoted(target.label)}"


def terminal(
    answer: Answer,
    color: bool | None = None,
    width: int | None = None,
    *,
    multi_hop: bool = False,
    citations: Sequence[Citation] | None = None,
    verdicts: Sequence[Verdict] = (),
) -> str:
    """The answer, its sentences with their passages, the prompt as a heatmap, and the ledger."""
    color = wants_color() if color is None else color
    console = make_console(color, width)
    explanation = answer.of(multi_hop=multi_hop)
    source = printable(f"{explanation.label}  {answer.model}")
    if citations is None and any(part.kind == "passage" for part in answer.parts):
        citations = answer.citations(multi_hop=multi_hop)
    if len(citations or ()) < 2:  # else each sentence is shown with its passages
        console.print(Text(printable(answer.text.strip()), style="bold"))
    console.print(Text(source, style="dim"))
    described = printable(
        f"explained: {explained_quantity(answer, explanation)}, {signed(explanation.output)}"
    )
    console.print(Text(described, style="dim"))
    for number, citation in enumerate(citations or ()):
        console.print()
        if len(citations or ()) > 1:
            console.print(Text(printable(citation.sentence.text), style="bold"))
        if verdicts:
            console.print(Text(printable(str(verdicts[number])), style="italic"))
        console.print(_citation(answer, citation))
    if citations:
        console.print(Text(_SHARE, style="dim"))
    else:
        console.print(_sources(answer.sources("word", multi_hop=multi_hop)[:5], "word"))
    if answer.images:
        whole = [s for s in answer.sources(multi_hop=multi_hop) if s.name.startswith("image ")]
        console.print(_sources(whole, "image"))
    console.print()
    console.print(heatmap(explanation.words(), color))
    if explanation.ledger is not None:
        console.print(Text(printable(ledger_line(explanation)), style="dim"))
    for warning in explanation.warnings:
        console.print(Text(printable(f"warning: {warning}"), style="yellow"))
    return console_text(console)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SOURCE_WIDTH else f"{line[: _SOURCE_WIDTH - 1]}…"


def _citation(answer: Answer, citation: Citation) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
    columns = ["share", "relevance"]
    checked = any(support.drop is not None for support in citation.supports)
    for column in [*columns, *(["drop if left out"] if checked else [])]:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("passage", no_wrap=True)
    table.add_column("", overflow="fold")
    texts = {part.name: answer.prompt[part.start : part.end] for part in answer.parts}
    for support in citation.supports:
        cells = [whole_percent(support.share), with_error(support.relevance, support.error)]
        if checked:
            cells.append("–" if support.drop is None else signed(support.drop))
        text = Text(printable(_short(texts[support.passage])))
        table.add_row(*cells, Text(printable(support.passage)), text)
    return table


def _sources(sources: Sequence[Source], noun: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
    table.add_column("share", justify="right")
    table.add_column("relevance", justify="right")
    table.add_column(noun)
    for source in sources:
        cells = whole_percent(source.share), with_error(source.relevance, source.error)
        table.add_row(*cells, Text(printable(source.text)))
    return table


# The page

STYLE = Path(__file__).with_name("answer.css").read_text(encoding="utf-8")


def page(answer: Answer) -> str:
    """A self-contained page that shows the relevance for any selected part of the answer."""
    data = json.dumps(page_data(answer), ensure_ascii=False, separators=(",", ":"))
    return whole_page(_short(answer.text), VIEW, STYLE, script(), data)


def script() -> str:
    """The script that draws an answer."""
    folder = Path(__file__).parent
    return "".join((folder / name).read_text(encoding="utf-8") for name in _SCRIPTS)


VIEW = (
    '<h1 id="sentence" aria-live="polite"></h1><p class="dim" id="what"></p>'
    '<p class="key dim" id="key"></p>'
    '<div class="answer" id="answer" tabindex="0" role="group" '
    'aria-label="The answer. Click a word or sweep over several; arrow keys move."></div>'
    '<div class="choices" id="choices"></div>'
    '<div class="choices" id="hops"></div>'
    '<div class="split"><div class="parts" id="parts"></div>'
    '<div class="side"><h2>Ledger</h2><table class="ledger" id="ledger"></table>'
    '<p class="dim" id="ledger-note"></p></div></div>'
    '<h2>Matrix</h2><p class="dim" id="matrix-note"></p>'
    '<div class="wide" id="matrix" tabindex="0" role="region" aria-label="Matrix"></div>'
    "<noscript><p>This page needs JavaScript.</p></noscript>"
)
"""The elements that the script fills."""


def page_data(answer: Answer) -> dict[str, Any]:
    """The data of the script: texts, parts, and a row for each token of the answer."""
    groups = [answer.group(i) for i in range(len(answer.units))]
    rows = answer.rows()
    all_hops: list[dict[str, Any]] | None = None
    keeps: list[int] = []
    if len(answer) > 1 and all(row.lines is not None for row in rows):
        after, keeps = answer.rows_after_hops()
        all_hops = [_row(row, groups) for row in after]
    is_signed = answer.of().signed
    return {
        "signed": is_signed,
        "key": _KEY if is_signed else _UNSIGNED_KEY,
        "share": _SHARE,
        "what": _QUANTITIES[answer.explained],
        "source": f"By {answer.of().label} on {answer.model}.",
        "kinds": {kind: about._asdict() for kind, about in LINE_KINDS.items()},
        "prompt": answer.prompt,
        "start": answer.start,
        "units": [
            [unit.start, unit.end, unit.field, unit.word, group, unit.text, unit.box]
            for unit, group in zip(answer.units[: answer.start], groups, strict=False)
        ],
        "images": [dict(scene) for scene in answer.images],
        "parts": [[part.name, part.title] for part in answer.parts],
        "sources": answer.places("passage"),
        "tokens": [
            [token.text, token.probability, token.other, token.other_probability]
            for token in answer.tokens
        ],
        "words": [[span.first, span.last] for span in answer.words],
        "sentences": [[span.first, span.last, span.text] for span in answer.sentences()],
        "chosen": _decisive(answer),
        "rows": [_row(row, groups) for row in rows],
        "all_hops": all_hops,
        "keeps": keeps,
    }


def _decisive(answer: Answer) -> list[int]:
    """The word with the most relevance from one passage; the whole answer without passages."""
    chosen, most = answer.span(), 0.0
    for word in answer.words:
        for source in answer.sources("passage", word):
            if source.name.startswith("passage") and source.relevance > most:
                chosen, most = word, source.relevance
    return [chosen.first, chosen.last]


def _row(row: RelevanceRow, groups: Sequence[str]) -> dict[str, Any]:
    lines: dict[str, float] = {}
    for i, group in enumerate(groups):
        lines[group] = lines.get(group, 0.0) + float(row.values[i])
    for (_, kind), value in (row.lines or {}).items():
        lines[kind] = lines.get(kind, 0.0) + value
    if row.lines is None:
        lines = {}
    values = [float(f"{value:.{_DIGITS}g}") for value in row.values]
    return {"values": values, "lines": lines, "output": row.output}


# The figure


@dataclass(frozen=True, eq=False)
class Column:
    """A word of the prompt, or an earlier token of the answer."""

    text: str
    relevance: NDArray[np.float64]  # (answer tokens,)
    share: NDArray[np.float64]  # relevance / Σ |relevance| of the whole prompt
    earlier: bool = False


def alignment(
    answer: Answer, level: Level = "word", multi_hop: bool = False, limit: int = _COLUMNS
) -> list[Column]:
    """The columns of the figure: the most relevant words of the prompt, in prompt order."""
    sources = answer.places(level, whole_images=True)
    rows = answer.rows_after_hops()[0] if multi_hop else answer.rows()
    matrix = np.stack([row.values for row in rows])  # (answer tokens, units)
    sums = np.stack([matrix[:, units].sum(1) for _, units in sources], 1)
    size = np.abs(sums).sum(1)
    size[size == 0] = 1.0
    largest = np.argsort(-np.abs(sums).sum(0), kind="stable")[:limit]
    columns = []
    for i in sorted(largest.tolist()):
        name, units = sources[i]
        text = "".join(answer.units[unit].text for unit in units)
        whole = level == "passage" or answer.group(units[0]) == "image"
        label, relevance = name if whole else text.strip(), sums[:, i]
        columns.append(Column(label, relevance, relevance / size))
    for token in range(len(answer) - 1):
        text = answer.tokens[token].text.strip()
        relevance = matrix[:, answer.start + token]
        columns.append(Column(text, relevance, relevance / size, earlier=True))
    return columns


def matrix_drawing(answer: Answer, level: Level = "word", multi_hop: bool = False) -> Drawing:
    """Answer tokens × prompt words, then earlier answer tokens: the shares of `alignment`."""
    columns = alignment(answer, level, multi_hop)
    shares = np.stack([column.share for column in columns], 1)
    tokens = [short_label(token.text) for token in answer.tokens]
    prompt = sum(not column.earlier for column in columns)
    count = len(answer.places(level, whole_images=True))
    explanation = answer.of(multi_hop=multi_hop)
    images = pictures(explanation)
    wide, high = 0.24 * len(columns) + 2.4, 0.24 * len(tokens) + 2.0
    wide = max(wide, 2.6 * len(images))

    def on_axes(axes: Any) -> None:
        # colours are scaled to the prompt, since earlier answer tokens have much larger scores
        most = float(np.abs(shares[:, :prompt]).max(initial=0.0)) or 1.0
        clipped = "both" if float(np.abs(shares).max()) > most else "neither"
        image = axes.imshow(shares, cmap=colormap(explanation.signed), vmin=-most, vmax=most)
        labels = [short_label(column.text) for column in columns]
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
        bar = axes.figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02, aspect=12, extend=clipped)
        bar.set_label("relevance / Σ |relevance| of the prompt", fontsize=8)
        bar.ax.tick_params(labelsize=7)
        bar.outline.set_visible(False)

    def on_figure(figure: Any) -> None:
        by_name = {source.name: source.share for source in answer.sources(multi_hop=multi_hop)}
        upper, lower = figure.subfigures(2, 1, height_ratios=(2.6, high))
        for number, (panel, picture) in enumerate(
            zip(upper.subplots(1, len(images), squeeze=False)[0], images, strict=True), 1
        ):
            panel.axis("off")
            draw_scene(panel, picture)
            share = by_name[f"image {number}"]
            panel.set_title(f"image {number}: share {whole_percent(share)}", fontsize=8)
        on_axes(lower.subplots())

    if not images:
        return Drawing((wide, high), on_axes)
    return Drawing((wide, high + 2.6), None, on_figure)
