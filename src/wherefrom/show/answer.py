"""Answers of language models: in a terminal, and as a page on which any part can be chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from wherefrom.errors import printable
from wherefrom.show.line_kinds import LINE_KINDS
from wherefrom.show.page import page as whole_page
from wherefrom.show.terminal import (
    console_text,
    heatmap,
    ledger_line,
    make_console,
    wants_color,
)
from wherefrom.show.text_marks import label_name, quoted, signed, whole_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wherefrom.answers.answer import Answer
    from wherefrom.answers.rows import Row
    from wherefrom.answers.sources import Citation, Source
    from wherefrom.core.explanation import Explanation

_SCRIPTS = ("answer_matrix.js", "answer_sentence.js", "answer.js")
_SHOWN = 60  # characters of a source in a table
_DIGITS = 5
_WHAT = {
    "contrast": "the logit less that of the runner-up",
    "logit": "the logit",
    "logprob": "the log-probability",
}


def what(answer: Answer, explanation: Explanation) -> str:
    """What is explained, in a line."""
    target = explanation.target
    if answer.explained == "contrast" and target.against_label is not None:
        return f"{quoted(target.label)} − {label_name(target, target.against_label)}"
    return f"{_WHAT[answer.explained]} of {quoted(target.label)}"


def terminal(
    answer: Answer,
    color: bool | None = None,
    width: int | None = None,
    *,
    through: bool = False,
    citations: Sequence[Citation] | None = None,
) -> str:
    """The answer, its sentences with their passages, the prompt as a heatmap, and the ledger."""
    color = wants_color() if color is None else color
    console = make_console(color, width)
    explanation = answer.of(through=through)
    source = printable(f"{explanation.label}  {answer.model}")
    console.print(Text(printable(answer.text.strip()), style="bold"))
    console.print(Text(source, style="dim"))
    described = printable(f"explained: {what(answer, explanation)}, {signed(explanation.output)}")
    console.print(Text(described, style="dim"))
    if citations is None and any(part.kind == "passage" for part in answer.parts):
        citations = answer.citations(through=through)
    for citation in citations or ():
        console.print()
        console.print(Text(printable(citation.sentence.text)))
        console.print(_citation(answer, citation))
    if not citations:
        console.print(_sources(answer.sources("word", through=through)[:5], "word"))
    if answer.images:
        whole = [s for s in answer.sources(through=through) if s.name.startswith("image ")]
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
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"


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
        cells = [whole_percent(support.share), signed(support.relevance)]
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
        cells = whole_percent(source.share), signed(source.relevance)
        table.add_row(*cells, Text(printable(source.text)))
    return table


# The page.

STYLE = Path(__file__).with_name("answer.css").read_text(encoding="utf-8")


def page(answer: Answer) -> str:
    """A self-contained page: choose any part of the answer, and the prompt lights up."""
    data = json.dumps(page_data(answer), ensure_ascii=False, separators=(",", ":"))
    return whole_page(_short(answer.text), VIEW, STYLE, script(), data)


def script() -> str:
    """What draws an answer."""
    folder = Path(__file__).parent
    return "".join((folder / name).read_text(encoding="utf-8") for name in _SCRIPTS)


VIEW = (
    '<p class="said" id="sentence" aria-live="polite"></p><p class="dim" id="what"></p>'
    '<p class="key dim"><span><span class="u for">red</span> speaks for the chosen words</span>'
    '<span><span class="u against n">blue, underlined</span> against them</span>'
    "<span>share: relevance / Σ |relevance| of all parts</span></p>"
    '<div class="answer" id="answer" tabindex="0" role="group" '
    'aria-label="The answer. Click a word or sweep over several; arrow keys move."></div>'
    '<div class="choices" id="choices"></div>'
    '<div class="choices" id="hops"></div>'
    '<div class="parts" id="parts"></div>'
    '<h2>Matrix</h2><p class="dim" id="matrix-note"></p><div class="wide" id="matrix"></div>'
    '<h2>Ledger</h2><div class="wide"><table class="ledger" id="ledger"></table></div>'
    '<p class="dim" id="ledger-note"></p>'
    "<noscript><p>This page needs JavaScript.</p></noscript>"
)
"""The elements that the script fills."""


def page_data(answer: Answer) -> dict[str, Any]:
    """What the script draws: texts, parts, and a row of numbers for each token of the answer."""
    groups = [answer.group(number) for number in range(len(answer.units))]
    rows = answer.rows()
    through, keeps = None, []
    if len(answer) > 1 and all(row.lines is not None for row in rows):
        through = [_row(row, groups) for row in answer.handed_on()]
        keeps = answer.keeping()
    return {
        "what": _WHAT[answer.explained],
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
        "tokens": [
            [token.text, token.probability, token.other, token.other_probability]
            for token in answer.tokens
        ],
        "words": [[span.first, span.last] for span in answer.words],
        "sentences": [[span.first, span.last, span.text] for span in answer.sentences],
        "chosen": [answer.span().first, answer.span().last],
        "rows": [_row(row, groups) for row in rows],
        "through": through,
        "keeps": keeps,
    }


def _row(row: Row, groups: Sequence[str]) -> dict[str, Any]:
    lines: dict[str, float] = {}
    for number, group in enumerate(groups):
        lines[group] = lines.get(group, 0.0) + float(row.values[number])
    for (_, kind), value in (row.lines or {}).items():
        lines[kind] = lines.get(kind, 0.0) + value
    if row.lines is None:
        lines = {}
    values = [float(f"{value:.{_DIGITS}g}") for value in row.values]
    return {"values": values, "lines": lines, "output": row.output}
