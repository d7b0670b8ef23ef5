"""The report of an evaluation: one page with its tables and pictures inside."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from wherefrom.show.html import STYLE

_CAPTIONS = {
    "activation": "Activation: units come back, best first; sooner sure is better.",
    "pruning": "Pruning: units go, least important first; the longer the logits stay, the better.",
    "conservation": "Conservation: what the scores add up to, against the output. On the line, "
    "nothing is lost.",
    "flip": "How much must go, best first, before the decision flips. Less is better.",
    "agreement": "Agreement of the methods: mean rank correlation of their scores.",
    "attention_erasure": "Erasing the highest attention weight of the last layer against erasing a "
    "random other one: what either does to the output, and how often it flips the decision.",
    "attention_to_flip": "How many attention weights of the last layer must go, by each ranking, "
    "before the decision flips. Less is better. Random, attention, its gradient and their product "
    "rank the weights themselves, as Serrano & Smith did; the others are methods.",
    "layers": "Σ relevance on its way from the output down to the input, as a share of the output "
    "(median; band: quartiles). What changes between blocks went to biases, or is lost.",
    "collapse": "Relevance at the output and the input of each norm: gradient × input loses it "
    "there, the LN rule does not.",
}


def render_evaluation(result: Any, pictures: Sequence[Path]) -> str:
    """A self-contained page: what to use, the tables, the pictures, how it was done."""
    skipped = ", ".join(f"{reason} ({n})" for reason, n in result.skipped.items()) or "none"
    settings = ", ".join(
        f"{key} = {value}" for key, value in result.settings.items() if key != "methods"
    )
    best = f"<p>By the tests below: <b>{escape(result.best)}</b>.</p>" if result.best else ""
    state = (
        "" if result.complete else "<p><b>Interrupted:</b> this is what was done until then.</p>"
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in result.notes)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>wherefrom: evaluation of {escape(result.model)}</title><style>body{{margin:0}}"
        "@media (prefers-color-scheme:dark){body{background:#17171c}}"
        ".wherefrom img{max-width:100%;background:#fff}.wherefrom figure{margin:1.5rem 0}"
        "</style></head>"
        f'<body><div class="wherefrom"><style>{STYLE}</style>'
        f"<h1>Which explanation can be trusted on {escape(result.model)}?</h1>"
        f"{best}{state}{notes}"
        f'<p class="dim">{result.samples} samples; skipped: {escape(skipped)}.</p>'
        f"{_means(result)}{_conservation(result)}{_erasure(result)}"
        f"{''.join(_figure(picture) for picture in pictures)}"
        f'<h2>How it was done</h2><p class="dim">{escape(settings)}</p></div></body></html>\n'
    )


def _means(result: Any) -> str:
    better = {"higher": "more is better", "lower": "less is better", "": ""}
    rows = result.rows()
    names = list(dict.fromkeys(row["metric"] for row in rows))
    if not names:
        return ""
    directions = {row["metric"]: better[row["better"]] for row in rows}
    leaders = {n: result.best_by(n) for n in names if directions[n]}
    cells: dict[str, list[str]] = {}
    for row in rows:
        text = f"{row['mean']:.3g} <span class='dim'>[{row['low']:.3g}, {row['high']:.3g}]</span>"
        best = leaders.get(row["metric"]) == row["method"]
        cells.setdefault(row["method"], []).append(f"<b>{text}</b>" if best else text)
    head = [f"{escape(n)}<br>{escape(directions[n])}" for n in names]
    return _table(["method", *head], [[escape(m), *each] for m, each in cells.items()]) + (
        '<p class="dim">In brackets the 95 % bootstrap interval of the mean; bold is best.</p>'
    )


def _conservation(result: Any) -> str:
    rows = [[escape(method), *cells] for method, cells in result.conservation_cells().items()]
    head = ["method", "slope", "R²", "R² of the diagonal", "mean |gap|", "/ mean |output|"]
    return "<h2>Do the scores add up to the output?</h2>" + _table(head, rows)


def _erasure(result: Any) -> str:
    if not result.studies.get("attention_erasure"):
        return ""
    found = result.study("attention_erasure")
    flips = [[escape(name), f"{share:.1%}"] for name, share in found["flips"].items()]
    shares = sorted(found["to_flip"].items(), key=lambda each: each[1]["mean"])
    rows = [[escape(name), f"{s['mean']:.3f}", f"{s['flipped']:.1%}"] for name, s in shares]
    return (
        "<h2>Is attention a reason?</h2>"
        f"<p>{found['samples']} texts. Which weight, erased alone, flips the decision:</p>"
        + _table(["flipped by", "texts"], flips)
        + "<p>Share of weights erased before the decision flips (1: never):</p>"
        + _table(["ranked by", "mean share", "texts ever flipped"], rows)
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose cells are HTML already; all but the first column are numbers."""

    def row(cells: Sequence[str], tag: str) -> str:
        rest = "".join(f'<{tag} class="num">{cell}</{tag}>' for cell in cells[1:])
        return f"<tr><{tag}>{cells[0]}</{tag}>{rest}</tr>"

    return f"<table>{row(head, 'th')}{''.join(row(each, 'td') for each in rows)}</table>"


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
