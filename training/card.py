"""Writes the card of an embedded model, with the figures that its training measured."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from string import Template

from wherefrom.models.embedded import CARD, WEIGHTS


def write_card(
    out: Path,
    *,
    task: str,
    data: str,
    metric: str,
    figures: dict[str, float],
    parameters: int,
    story: str,
    **values: object,
) -> None:
    """Writes `card.json` for the library and `README.md` for people.

    `story` is Markdown with $names for `values`, `figures` (as percentages) and `parameters`.
    """
    weights = (out / WEIGHTS).read_bytes()
    card = {
        "name": out.name,
        "task": task,
        "data": data,
        "metric": metric,
        "figures": figures,
        "parameters": parameters,
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    (out / CARD).write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    shown = {name: f"{100 * value:.1f} %" for name, value in figures.items()}
    filled = Template(story).substitute(
        shown, **values, parameters=f"{parameters:,}", megabytes=f"{len(weights) / 1e6:.1f}"
    )
    (out / "README.md").write_text(filled, encoding="utf-8")
