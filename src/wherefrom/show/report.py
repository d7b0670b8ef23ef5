"""The report of an evaluation: one page with its tables and pictures inside."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from wherefrom.show.page import block, page, picture, prose, table
from wherefrom.show.text_marks import percent

_CAPTIONS = {
    "activation": "Activation (AUAC): units are restored, highest score first. Higher is better.",
    "pruning": "Pruning (AU-MSE): units are removed, lowest score first. Lower is better.",
    "conservation": "Conservation: the sum of the scores plotted against the output. On the line, "
    "the scores add up to the output.",
    "flip": "Share of units removed, highest score first, before the decision flips. Lower is "
    "better.",
    "agreement": "Agreement of the methods: mean rank correlation of their scores.",
    "attention_erasure": "Erasing the highest attention weight of the last layer, compared with "
    "erasing a random other one: how much each changes the output, and how often it flips the "
    "decision.",
    "attention_to_flip": "How many attention weights of the last layer must be erased, by each "
    "ranking, before the decision flips. Lower is better. Random, attention, its gradient and "
    "their product rank the weights themselves (Serrano & Smith); the others are methods.",
    "layers": "Σ relevance from the output down to the input, as a share of the output (median; "
    "band: quartiles). Changes between blocks went to biases, or are lost.",
    "collapse": "Relevance at the output and the input of each norm: gradient × input loses it "
    "there, the LN rule does not.",
}


def render_evaluation(result: Any, pictures: Sequence[Path], whole_page: bool = True) -> str:
    """The recommended method, tables, plots and settings."""
    skipped = ", ".join(f"{reason} ({n})" for reason, n in result.skipped.items()) or "none"
    settings = ", ".join(
        f"{key} = {value}" for key, value in result.settings.items() if key != "methods"
    )
    advice = result.recommendation
    title = advice.text if advice else f"Explanations of {result.model}, measured."
    state = "" if result.complete else "<p><b>Interrupted:</b> partial results.</p>"
    notes = "".join(f"<p>{escape(note)}</p>" for note in result.notes)
    body = (
        f"<h1>{escape(title)}</h1>{state}"
        f'<p class="dim">Which explanation can be trusted on {escape(result.model)}? '
        f"{result.samples} samples; skipped: {escape(skipped)}.</p>{notes}"
        f"{_means(result)}{_conservation(result)}{_erasure(result)}"
        f"{''.join(picture(path, _CAPTIONS.get(path.stem, path.stem)) for path in pictures)}"
        f'<h2>Settings</h2><p class="dim">{escape(settings)}</p>'
    )
    return page(f"evaluation of {result.model}", body) if whole_page else block(body)


def _means(result: Any) -> str:
    better = {"higher": "↑ higher is better", "lower": "↓ lower is better", "": ""}
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
    head = [
        f'<span title="{escape(name, quote=True)}">{escape(result.title(name))}</span>'
        f"<br>{escape(directions[name])}"
        for name in names
    ]
    meanings = "".join(
        f"<br>{escape(result.title(name))}: {prose(result.meaning(name))}"
        for name in names
        if result.meaning(name)
    )
    return (
        '<p class="dim">The mean of each metric, in brackets its 95&nbsp;% bootstrap interval; '
        f"bold is best.{meanings}</p>"
        + table(["method", *head], [[escape(m), *v] for m, v in cells.items()])
    )


def _conservation(result: Any) -> str:
    rows = [[escape(method), *cells] for method, cells in result.conservation_cells().items()]
    head = ["method", "slope", "R²", "R² of the diagonal", "mean |gap|", "/ mean |output|"]
    return (
        "<h2>Do the scores add up to the output?</h2>"
        '<p class="dim">Slope and R²: regression of the sum of the scores on the output over '
        "all samples; 1 if they add up. R² of the diagonal: how well the sum itself predicts the "
        "output. Gap: sum − output.</p>" + table(head, rows)
    )


def _erasure(result: Any) -> str:
    if not result.studies.get("attention_erasure"):
        return ""
    study = result.study("attention_erasure")
    flips = [[escape(name), prose(percent(share))] for name, share in study["flips"].items()]
    rankings = sorted(study["to_flip"].items(), key=lambda pair: pair[1]["mean"])
    rows = [
        [escape(name), f"{s['mean']:.3f}", prose(percent(s["flipped"]))] for name, s in rankings
    ]
    return (
        "<h2>Is attention a reason?</h2>"
        f"<p>Texts of {study['samples']} in which erasing a single weight flips the decision:</p>"
        + table(["flipped by", "texts"], flips)
        + "<p>Share of weights erased before the decision flips (1: never):</p>"
        + table(["ranked by", "mean share", "texts ever flipped"], rows)
    )
