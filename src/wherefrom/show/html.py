"""Explanations as a self-contained page: no network, all text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from wherefrom.explanation import Explanation, Ledger, Line
from wherefrom.show import svg
from wherefrom.show.text_marks import Mark, heading, marks, signed

STYLE = """
.wherefrom{--for:214,39,40;--against:31,119,220;--ink:#1b1b1f;--dim:#6a6a75;--line:#d9d9e0;
 --page:#fff;color:var(--ink);background:var(--page);max-width:60rem;margin:0 auto;
 padding:1rem 1.25rem;font:16px/1.6 system-ui,sans-serif}
@media (prefers-color-scheme:dark){.wherefrom{--for:235,80,75;--against:70,150,245;--ink:#ececf1;
 --dim:#a0a0ab;--line:#3a3a44;--page:#17171c}}
.wherefrom h1{font-size:1.35rem;margin:.2rem 0}
.wherefrom h2{font-size:1rem;margin:1.2rem 0 .2rem}
.wherefrom .dim{color:var(--dim);font-size:.85rem}
.wherefrom .heat{font-size:1.15rem;line-height:2;white-space:pre-wrap;overflow-wrap:anywhere;
 margin:.4rem 0}
.wherefrom .u{border-radius:.2em;padding:.12em .06em}
.wherefrom .s{color:var(--dim);font-size:.75em}
.wherefrom .n{text-decoration:underline dotted;text-underline-offset:.22em}
.wherefrom table{border-collapse:collapse;width:100%}
.wherefrom td,.wherefrom th{padding:.15rem .5rem .15rem 0;text-align:left;vertical-align:baseline}
.wherefrom th{color:var(--dim);font-weight:normal;font-size:.85rem}
.wherefrom tr+tr td{border-top:1px solid var(--line)}
.wherefrom .num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.wherefrom .bar{position:relative;width:45%;min-width:9rem}
.wherefrom .bar i{position:absolute;top:.35em;bottom:.35em;min-width:2px;border-radius:2px}
.wherefrom .total td{border-top:2px solid var(--ink);font-weight:600}
.wherefrom .image{width:100%;max-width:22rem;display:block;border-radius:.2rem}
.wherefrom .molecule{max-width:30rem}
.wherefrom .image .under{filter:grayscale(1);opacity:.35}
.wherefrom .pair,.wherefrom .cards{display:flex;flex-wrap:wrap;gap:1rem}
.wherefrom .pair>*{flex:1 1 14rem}
.wherefrom figure{margin:0}
.wherefrom .cards figure{width:8.6rem}
.wherefrom .classes{width:auto}
.wherefrom .classes .image{width:8.6rem;margin-right:1rem}
.wherefrom .classes td{vertical-align:middle}
.wherefrom .key{display:flex;gap:1.2rem;margin-top:1rem}
"""


def render(explanations: Sequence[Explanation], whole_page: bool = True) -> str:
    """One explanation with its ledger, or one input by many methods as rows."""
    block = _block([_body(explanations)])
    return _page(block, explanations[0]) if whole_page else block


def render_beside(tables: Sequence[Sequence[Explanation]]) -> str:
    """One image for several classes: methods as rows, classes as columns."""
    first = tables[0][0]
    body = f'<h1>{escape(heading(first))}</h1><p class="dim">{escape(first.model)}</p>'
    return _page(_block([body + svg.gallery(tables)]), first)


def render_many(tables: Sequence[Sequence[Explanation]]) -> str:
    """Several inputs on one page, each as `render` shows it."""
    return _page(_block([_body(table) for table in tables]), tables[0][0])


def _body(explanations: Sequence[Explanation]) -> str:
    return _one(explanations[0]) if len(explanations) == 1 else _rows(explanations)


def _block(bodies: Sequence[str]) -> str:
    return f'<div class="wherefrom"><style>{STYLE}</style>{"<hr>".join(bodies)}{_KEY}</div>'


def _page(block: str, first: Explanation) -> str:
    title = escape(f"wherefrom: {first.target} by {first.method}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title>"
        "<style>body{margin:0}@media (prefers-color-scheme:dark){body{background:#17171c}}</style>"
        f"</head><body>{block}</body></html>\n"
    )


_KEY = (
    '<p class="key dim"><span><span class="u" style="background:rgba(var(--for),.6)">red</span> '
    'speaks for the answer</span><span><span class="u n" '
    'style="background:rgba(var(--against),.6)">blue, underlined</span> against it</span>'
    "<span>point at a piece for its numbers</span></p>"
)


def _one(explanation: Explanation) -> str:
    parts = [
        f"<h1>{escape(heading(explanation))}</h1>",
        f'<p class="dim">{_source(explanation)}</p>',
        _picture(explanation),
    ]
    if explanation.ledger is not None:
        parts.append("<h2>The ledger: it adds up</h2>" + waterfall(explanation.ledger))
    return "".join(parts)


def _picture(explanation: Explanation) -> str:
    if svg.kind_of(explanation):
        shown = svg.heatmap(explanation, bare=True) + svg.heatmap(explanation)
        return f'<div class="pair">{shown}</div>'
    return f'<div class="heat">{heatmap(explanation)}</div>'


def _rows(explanations: Sequence[Explanation]) -> str:
    first = explanations[0]
    shown = svg.gallery([explanations]) if svg.kind_of(first) else _table(explanations)
    closed = [each for each in explanations if each.ledger is not None]
    best = min(closed, key=lambda e: abs(e.ledger.residual if e.ledger else 0.0), default=None)
    tail = ""
    if best is not None and best.ledger is not None:
        tail = f"<h2>The ledger of {escape(best.method)}</h2>" + waterfall(best.ledger)
    return f'<h1>{escape(heading(first))}</h1><p class="dim">{escape(first.model)}</p>{shown}{tail}'


def _table(explanations: Sequence[Explanation]) -> str:
    rows = [
        "<tr><th>method</th><th>where it comes from</th>"
        '<th class="num">adds up to</th><th class="num">residual</th></tr>'
    ]
    for each in explanations:
        total = signed(each.ledger.total) if each.ledger else "–"
        rest = signed(each.ledger.residual) if each.ledger else "–"
        rows.append(
            f"<tr><td>{escape(each.method)}</td>"
            f'<td class="heat">{heatmap(each)}</td>'
            f'<td class="num">{total}</td><td class="num">{rest}</td></tr>'
        )
    return f"<table>{''.join(rows)}</table>"


def heatmap(explanation: Explanation) -> str:
    """The text with a coloured span for each unit."""
    return "".join(_span(mark) for mark in marks(explanation))


def _span(mark: Mark) -> str:
    size = abs(mark.strength)
    kinds = ["u"]
    if mark.special:
        kinds.append("s")
    if mark.strength < -0.05:
        kinds.append("n")
    tint = "for" if mark.strength > 0 else "against"
    shade = f' style="background:rgba(var(--{tint}),{0.85 * size:.2f})"' if size >= 0.02 else ""
    notes = [signed(mark.score)] + [f"{name} {signed(value)}" for name, value in mark.parts]
    note = escape(" · ".join(notes), quote=True)
    return (
        f"{escape(mark.gap)}"
        f'<span class="{" ".join(kinds)}" title="{note}"{shade}>{escape(mark.text)}</span>'
    )


def waterfall(ledger: Ledger) -> str:
    """Each line as a bar that starts where the one before ended; the last is the output."""
    lines = [*ledger.lines, Line("residual", "residual", ledger.residual)]
    ends = [0.0]
    for line in lines:
        ends.append(ends[-1] + line.value)
    low, high = min(ends), max(ends)
    span = (high - low) or 1.0

    def bar(start: float, end: float) -> str:
        left, right = sorted((start, end))
        tint = "for" if end >= start else "against"
        return (
            f'<td class="bar"><i style="left:{100 * (left - low) / span:.2f}%;'
            f"width:{100 * (right - left) / span:.2f}%;background:rgb(var(--{tint}))"
            '"></i></td>'
        )

    rows = [
        f'<tr><td>{escape(line.label)}</td><td class="dim">{escape(line.kind)}</td>'
        f'{bar(ends[i], ends[i + 1])}<td class="num">{signed(line.value)}</td></tr>'
        for i, line in enumerate(lines)
    ]
    rows.append(
        f'<tr class="total"><td>output</td><td></td>{bar(0.0, ends[-1])}'
        f'<td class="num">{signed(ledger.output)}</td></tr>'
    )
    return f'<table class="ledger">{"".join(rows)}</table>'


def _source(explanation: Explanation) -> str:
    named = ", ".join(f"{key}={value}" for key, value in explanation.settings.items())
    return escape(f"{explanation.method}({named}) · {explanation.model}")
