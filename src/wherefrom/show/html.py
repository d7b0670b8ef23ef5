"""Explanations as a self-contained page: no network, all text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from wherefrom.core.explanation import Explanation, Ledger, Line
from wherefrom.show import svg
from wherefrom.show.line_kinds import LINE_KINDS, group_name, line_name, named_ledger
from wherefrom.show.page import block, breakable, page, prose, table
from wherefrom.show.sentence import explained, for_legend, pieces, sides, source
from wherefrom.show.text_marks import (
    Mark,
    error_note,
    is_mixed,
    largest_score,
    marks,
    pictures,
    score_text,
    short_number,
    signed,
    target_name,
    text_part,
    whole_percent,
)

_CLOSED = 1e-3  # of the output: a ledger with a smaller residual adds up


def render(explanations: Sequence[Explanation], whole_page: bool = True) -> str:
    """One explanation with its ledger, or one input by many methods as rows."""
    body = _section(explanations)
    return page(_title(explanations[0]), body) if whole_page else block(body)


def render_classes(tables: Sequence[Sequence[Explanation]]) -> str:
    """One image for several classes: methods as rows, classes as columns."""
    firsts = [column[0] for column in tables]
    caveats = warnings([explanation for column in tables for explanation in column])
    title = " and ".join(map(target_name, firsts))
    others = "".join(f'<p class="said">{said(other)}</p>' for other in firsts[1:])
    about = " ".join([*map(explained, firsts), f"Model: {firsts[0].model}."])
    meaning = ("counts for the class of the column", "against it")
    key = _key([one for column in tables for one in column], meaning)
    head = f'<h1>{said(firsts[0])}</h1>{others}<p class="dim">{prose(about)}</p>{key}'
    return page(title, head + caveats + svg.gallery(tables))


def render_many(tables: Sequence[Sequence[Explanation]]) -> str:
    """Several inputs on one page, each as `render` shows it."""
    return page(_title(tables[0][0]), "<hr>".join(map(_section, tables)))


def _title(explanation: Explanation) -> str:
    return f"{target_name(explanation)} by {explanation.method_label}"


def _section(explanations: Sequence[Explanation]) -> str:
    return _single(explanations[0]) if len(explanations) == 1 else _comparison(explanations)


def _heading(explanations: Sequence[Explanation]) -> str:
    """The sentence, the explained output, and the legend."""
    explanation = explanations[0]
    origin = source(explanation)
    if len(explanations) > 1:
        origin = f"Scores by {explanation.method_label}. Model: {explanation.model}."
    note = error_note(explanation) if len(explanations) == 1 else ""
    about = prose(f"{explained(explanation)} {origin}" + (f" {note.capitalize()}." if note else ""))
    return f'<h1>{said(explanation)}</h1><p class="dim">{about}</p>{_key(explanations)}'


def said(explanation: Explanation) -> str:
    """The sentence, with labels and units marked."""

    def tagged(kind: str, text: str) -> str:
        if kind == "label":
            return f"<strong>{escape(text)}</strong>"
        return f'<em class="{kind}">{escape(text)}</em>' if kind else prose(text)

    return "".join(tagged(*piece) for piece in pieces(explanation))


def _key(explanations: Sequence[Explanation], meaning: tuple[str, str] | None = None) -> str:
    """The legend of the colours and their scale, and the switch that shows numbers."""
    first, several = for_legend(explanations), len(explanations) > 1
    above, below = meaning or sides(first)
    kind = svg.kind_of(first)
    negative = "blue, hatched in print" if kind == "image" else "blue, dashed"
    entries = []
    if first.signed:
        entries = [
            ("for", "red", above),
            ("against", negative if kind else "blue, underlined", below),
        ]
    if not all(one.signed for one in explanations):
        entries.append(("strength", "green", "strength without a sign" if first.signed else above))
    colors = "".join(
        f'<span><span class="u{" n" if tint == "against" else ""}" '
        f'style="background:rgba(var(--{tint}),.6)">{name}</span> {escape(text)}</span>'
        for tint, name, text in entries
    )
    scale = "full colour: the largest score of a method"
    if not several:
        scale = f"full colour: a score of {signed(largest_score(first)).lstrip('+')}"
    return (
        f'<p class="key dim">{colors}<span>{escape(scale)}</span>'
        '<label class="switch"><input type="checkbox" class="numbers"> show numbers</label></p>'
    )


def _single(explanation: Explanation) -> str:
    parts = [_heading([explanation]), warnings([explanation]), picture(explanation)]
    if explanation.ledger is not None:
        parts.append("<h2>The ledger: lines and residual add up to the output</h2>")
        parts.append(waterfall(named_ledger(explanation)))
    return "".join(parts)


def warnings(explanations: Sequence[Explanation]) -> str:
    """The warnings of explanations."""
    return "".join(
        f'<p class="warning">Warning: {escape(warning)}</p>'
        for explanation in explanations
        for warning in explanation.warnings
    )


def picture(explanation: Explanation) -> str:
    """The units on their text, image or molecule."""
    if is_mixed(explanation):
        return "".join(map(picture, [*pictures(explanation), text_part(explanation)]))
    if svg.kind_of(explanation):
        pair = svg.heatmap(explanation, bare=True) + svg.heatmap(explanation)
        return f'<div class="pair">{pair}</div>'
    return f'<div class="heat">{heatmap(explanation)}</div>'


def _comparison(explanations: Sequence[Explanation]) -> str:
    first = explanations[0]
    shown = svg.gallery([explanations]) if svg.kind_of(first) else _table(explanations)
    ledgers = [(e.method_label, named_ledger(e)) for e in explanations if e.ledger is not None]
    tail = ""
    if ledgers:
        closed = [pair for pair in ledgers if pair[1].relative < _CLOSED]
        label, ledger = (closed or ledgers)[0]
        tail = f"<h2>The ledger of {escape(label)}</h2>{waterfall(ledger)}"
    return _heading(explanations) + warnings(explanations) + shown + tail


def _table(explanations: Sequence[Explanation]) -> str:
    rows = []
    for explanation in explanations:
        ledger = explanation.ledger
        sums = ["–", "–"] if ledger is None else [signed(ledger.total), signed(ledger.residual)]
        text = f'<div class="heat">{heatmap(explanation)}</div>'
        rows.append([breakable(explanation.method_label), text, *sums])
    return table(["method", "heatmap", "sum", "residual"], rows, 2, css_class="methods")


def heatmap(explanation: Explanation) -> str:
    """The text with a coloured span for each unit; a click or the tab key shows its numbers."""
    output = 0.0 if explanation.ledger is None else explanation.output
    return "".join(_span(mark, output) for mark in marks(explanation))


def _span(mark: Mark, output: float) -> str:
    """A unit with its numbers; an `output` other than 0 is what the scores are shares of."""
    size = abs(mark.strength)
    classes = ["u"]
    if mark.special:
        classes.append("s")
    if size > 0.15:
        classes.append("strong")
    if mark.strength < -0.05:
        classes.append("n")
    shade = ""
    if size >= 0.02:
        shade = f' style="background:rgba(var(--{mark.tint}),{0.75 * size:.2f})"'
    notes = [score_text(mark.score, mark.tint)] + [
        f"{name} {signed(value)}" for name, value in mark.parts
    ]
    notes += [] if mark.error is None else [f"standard error {mark.error:.2g}"]
    if output:
        share = whole_percent(mark.score / output)
        notes.append(f"{share} of the output, {signed(output)}")
    note = escape(" · ".join(notes), quote=True)
    number = f' data-score="{short_number(mark.score, mark.tint)}"' if size >= 0.05 else ""
    return (
        f'{escape(mark.gap)}<span class="{" ".join(classes)}" tabindex="0" title="{note}"{number}'
        f"{shade}>"
        f"{escape(mark.text)}</span>"
    )


def waterfall(ledger: Ledger) -> str:
    """Each line as a bar that starts at the end of the previous one, then the output."""
    lines = [*ledger.lines, Line("residual", "", ledger.residual)]
    ends = [0.0]
    for line in lines:
        ends.append(ends[-1] + line.value)
    low, high = min(ends), max(ends)
    span = (high - low) or 1.0

    def bar(start: float, end: float) -> str:
        left, right = sorted((start, end))
        return (
            f'<td class="bar"><i class="{"for" if end >= start else "against"}" '
            f'style="left:{100 * (left - low) / span:.2f}%;'
            f'width:{100 * (right - left) / span:.2f}%"></i></td>'
        )

    rows = []
    for i, line in enumerate(lines):
        name, group = line_name(line), group_name(line.kind) if line.kind else ""
        rows.append(
            f"<tr><td>{escape(name).replace('.', '.<wbr>')}</td>"
            f'<td class="dim">{"" if name == group else escape(group)}</td>'
            f'{bar(ends[i], ends[i + 1])}<td class="num">{signed(line.value)}</td></tr>'
        )
    rows.append(
        f'<tr class="total"><td>output</td><td></td>{bar(0.0, ends[-1])}'
        f'<td class="num">{signed(ledger.output)}</td></tr>'
    )
    kinds = dict.fromkeys(line.kind for line in ledger.lines)
    notes = "; ".join(": ".join(LINE_KINDS[kind]) for kind in kinds if kind in LINE_KINDS)
    return (
        f'<div class="wide"><table class="ledger">{"".join(rows)}</table></div>'
        f'<p class="dim">{escape(notes)}{"; " if notes else ""}residual: the part of the output '
        "without a line.</p>"
    )
