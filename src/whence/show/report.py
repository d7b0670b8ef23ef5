"""The report of an evaluation: one page with its tables and pictures inside."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from whence.show.html import STYLE

_CAPTIONS = {
    "activation": "Activation: units come back, best first; sooner sure is better.",
    "pruning": "Pruning: units go, least important first; the longer the logits stay, the better.",
    "conservation": "Conservation: what the scores add up to, against the output. On the line, "
    "nothing is lost.",
    "flip": "How much must go, best first, before the decision flips. Less is better.",
    "agreement": "Agreement of the methods: mean rank correlation of their scores.",
    "attention_erasure": "Erasing the highest attention weight against a random one.",
    "collapse": "Relevance before and after each LayerNorm: gradient × input loses it there.",
}


def render_evaluation(result: Any, pictures: Sequence[Path]) -> str:
    """A self-contained page: what to use, the table, the pictures, how it was done."""
    better = {"higher": "more is better", "lower": "less is better", "": ""}
    rows = result.rows()
    names = list(dict.fromkeys(row["metric"] for row in rows))
    directions = {row["metric"]: better[row["better"]] for row in rows}
    head = "".join(f'<th class="num">{escape(n)}<br>{escape(directions[n])}</th>' for n in names)
    leaders = {n: result.leaders(n) for n in names if directions[n]}
    body = []
    for method in result.methods:
        cells = []
        for name in names:
            found = result.summary(method, name)
            text = f"{found.mean:.3g} <span class='dim'>[{found.low:.3g}, {found.high:.3g}]</span>"
            best = leaders.get(name) == method
            cells.append(f'<td class="num">{f"<b>{text}</b>" if best else text}</td>')
        body.append(f"<tr><td>{escape(method)}</td>{''.join(cells)}</tr>")
    count = result.summary(result.methods[0], names[0]).samples
    skipped = ", ".join(f"{n} {why}" for why, n in result.skipped.items()) or "none"
    settings = ", ".join(
        f"{key} = {value}" for key, value in result.settings.items() if key != "methods"
    )
    state = (
        "" if result.complete else "<p><b>Interrupted:</b> this is what was done until then.</p>"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>whence: evaluation of '
        f"{escape(result.model)}</title><style>body{{margin:0}}"
        "@media (prefers-color-scheme:dark){body{background:#17171c}}"
        ".whence img{max-width:100%;background:#fff}.whence figure{margin:1.5rem 0}</style></head>"
        f'<body><div class="whence"><style>{STYLE}</style>'
        f"<h1>Which explanation can be trusted on {escape(result.model)}?</h1>"
        f"<p>By the tests below: <b>{escape(result.best)}</b>.</p>{state}"
        f'<p class="dim">{count} samples; skipped: {escape(skipped)}. In brackets the 95 % '
        "bootstrap interval of the mean; bold is best.</p>"
        f"<table><tr><th>method</th>{head}</tr>{''.join(body)}</table>"
        f"{''.join(_figure(picture) for picture in pictures)}"
        f'<h2>How it was done</h2><p class="dim">{escape(settings)}</p></div></body></html>\n'
    )


def _figure(path: Path) -> str:
    return picture_of(path, _CAPTIONS.get(path.stem, path.stem))


def picture_of(path: Path, caption: str) -> str:
    """A picture inside the page, with its caption."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    said = escape(caption)
    return (
        f'<figure><img alt="{said}" src="data:image/png;base64,{data}">'
        f'<figcaption class="dim">{said}</figcaption></figure>'
    )
