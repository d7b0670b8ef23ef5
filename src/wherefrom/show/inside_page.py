"""The inside of an explanation as a page: the map of layers, the heads, and what flows through."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.show import html
from wherefrom.show.inside import (
    KINDS,
    LEGEND,
    by_column,
    claims,
    column_labels,
    layer_rows,
)
from wherefrom.show.line_kinds import named_ledger
from wherefrom.show.page import block, page, prose, table
from wherefrom.show.sentence import explained, source
from wherefrom.show.text_marks import signed, target_name

_SCRIPT = Path(__file__).with_name("inside.js")
_STYLE = """
.wherefrom .map canvas{display:block;width:100%;cursor:crosshair;touch-action:pan-y}
.wherefrom .map .note{min-height:3.2em;margin:.2rem 0;overflow-wrap:anywhere}
.wherefrom .map :is(button,select){font:inherit;color:var(--ink);background:var(--page);
 border:1px solid var(--line);border-radius:.3em;padding:.05em .5em}
.wherefrom .heads{width:auto;font-size:.8rem}
.wherefrom .heads :is(td,th){padding:.1rem .35rem;text-align:right;border:0!important}
.wherefrom .heads td a{color:inherit;font-weight:600}
.wherefrom .heads .n{border-bottom:2px dotted!important}
.wherefrom .layers :is(td,th):nth-child(n+6){padding-left:1rem}
.wherefrom .through{display:none;scroll-margin-top:1rem}
.wherefrom .through:target,.wherefrom .parts:not(:has(:target)) .through:first-child{display:block}
.wherefrom .through h3{font-size:1rem;font-weight:600;margin:.4rem 0}
@media print{.wherefrom .map :is(button,label){display:none}.wherefrom .through{display:block}}
"""
_THROUGH = 12  # heads whose flow is shown by unit
_MOST_PARTS = 12  # neurons or experts in a list

Numbers = NDArray[np.float64]


def render(inside: Any, whole_page: bool = True) -> str:
    """A page; in a notebook without the map and without what flows through single heads."""
    explanation = inside.explanation
    words = html.said(explanation)
    about = prose(f"{explained(explanation)} {source(explanation)}")
    parts = [f'<h1>{words}</h1><p class="dim">{about}</p>', html.warnings([explanation])]
    parts.append(f"<p>{prose(' '.join(claims(inside)))}</p>")
    data = ""
    if inside.depth:
        heads = [name for name, _ in inside.top("head", _THROUGH)] if whole_page else []
        if whole_page:
            maps = by_column(inside)
            largest = max(float(np.abs(rows).max()) for rows in maps.values()) or 1.0
            parts.append(_map(maps, largest))
            data = _data(inside, maps, largest)
        parts += [_layers(inside), _heads(inside, heads), _through(inside, heads)]
        parts += [_strongest(inside)]
    if explanation.ledger is not None:
        parts.append("<h2>The ledger: lines and residual add up to the output</h2>")
        parts.append(html.waterfall(named_ledger(explanation)))
    body = "".join(parts)
    if not whole_page:
        return block(body, _STYLE)
    title = f"inside {explanation.model}: {target_name(explanation)}"
    script = _SCRIPT.read_text(encoding="utf-8") if data else ""
    return page(title, body, _STYLE, script, data)


def _map(names: Iterable[str], largest: float) -> str:
    options = "".join(f'<option value="{i}">{name}' for i, name in enumerate(names))
    return (
        "<h2>Relevance by layer and unit</h2>"
        '<div class="map"><p class="key dim"><span><span class="u" '
        'style="background:rgba(var(--for),.6)">red</span> positive</span><span><span class="u n" '
        'style="background:rgba(var(--against),.6)">blue, with a line</span> negative</span>'
        f"<span>full colour: {signed(largest).lstrip('+')}</span>"
        f"<label>relevance of <select>{options}</select></label>"
        '<span><button data-zoom="in" aria-label="zoom in">+</button> '
        '<button data-zoom="out" aria-label="zoom out">−</button> '
        '<button data-zoom="all">whole</button></span></p>'
        '<canvas tabindex="0" role="img" aria-label="Relevance by layer and unit; arrow keys read '
        'the numbers, + and − zoom"></canvas>'
        '<p class="note dim" aria-live="polite">Point at a cell for its numbers; scroll to zoom '
        "into many units. Below is the input, above the output.</p></div>"
    )


def _data(inside: Any, maps: dict[str, Numbers], largest: float) -> str:
    """The numbers of the map, for its script."""
    tables = [
        {"name": name, "rows": [[float(f"{v:.4g}") for v in row] for row in rows]}
        for name, rows in maps.items()
    ]
    names = [*map(str, range(inside.depth)), "end"]
    data = {"units": column_labels(inside), "names": names, "maps": tables, "largest": largest}
    return json.dumps(data, ensure_ascii=False)


def _layers(inside: Any) -> str:
    head, *rows = layer_rows(inside)
    cells = [list(map(escape, row)) for row in rows]
    note = f'<p class="dim">{escape(LEGEND)}</p>'
    return f"<h2>Layers</h2>{table(head, cells, css_class='layers')}{note}"


def _heads(inside: Any, linked: list[str]) -> str:
    """The heads as a grid; those in `linked` point to what flows through them."""
    values: Numbers = inside.heads
    if not np.isfinite(values).any():
        return ""
    largest = float(np.nanmax(np.abs(values))) or 1.0
    rows = []
    for layer in reversed(range(len(values))):
        cells = "".join(
            _head(layer, head, float(value), largest, linked)
            for head, value in enumerate(values[layer])
        )
        rows.append(f"<tr><th>{layer}</th>{cells}</tr>")
    numbers = "".join(f"<th>{head}</th>" for head in range(values.shape[1]))
    hint = "; a linked head shows below from which units it carries it" if linked else ""
    return (
        f'<h2>Heads</h2><p class="dim">Relevance by layer and head{hint}.</p>'
        f'<div class="wide"><table class="heads"><thead><tr><th>layer</th>{numbers}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _head(layer: int, head: int, value: float, largest: float, linked: list[str]) -> str:
    if np.isnan(value):
        return "<td></td>"
    name, number = f"layer.{layer}.head.{head}", f"{value:+.2f}".replace("-", "−")
    share = value / largest
    number = f'<a href="#{name}">{number}</a>' if name in linked else number
    shade = f"background:rgba(var(--{'for' if share > 0 else 'against'}),{0.8 * abs(share):.2f})"
    negative = ' class="n"' if share < -0.05 else ""
    return f'<td{negative} title="{name} {signed(value)}" style="{shade}">{number}</td>'


def _through(inside: Any, heads: list[str]) -> str:
    """For each of these heads the units that its relevance comes from, one shown at a time."""
    if not heads:
        return ""
    sections = []
    for name in heads:
        explanation = inside.through(name)
        units = sum(float(score) for score in explanation.scores)
        text = (
            f"{name} carries {signed(explanation.output)}: {signed(units)} from these units, "
            f"{signed(explanation.output - units)} from constants and other inputs."
        )
        sections.append(
            f'<div class="through" id="{name}"><h3>{escape(text)}</h3>{html.picture(explanation)}'
            "</div>"
        )
    return (
        f"<h2>Through the {len(heads)} strongest heads</h2>"
        f'<div class="parts">{"".join(sections)}</div>'
    )


def _strongest(inside: Any) -> str:
    parts = []
    for kind, noun in KINDS.items():
        strongest = inside.top(kind, _MOST_PARTS) if kind != "head" else []
        if strongest:
            rows = [[escape(name), signed(value)] for name, value in strongest]
            listed = table(["name", "relevance"], rows, css_class="classes")
            parts.append(f"<div><h2>Strongest {noun}</h2>{listed}</div>")
    return f'<div class="pair">{"".join(parts)}</div>'
