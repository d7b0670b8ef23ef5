"""Writes the card of an embedded model, with the figures its training measured."""

from __future__ import annotations

from pathlib import Path


def write_card(out: Path, **figures: object) -> None:
    """Writes the figures beside the model."""
    out.joinpath("figures.txt").write_text(repr(figures))
