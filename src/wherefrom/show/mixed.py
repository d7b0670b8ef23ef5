"""Explanations of a text with images, taken apart: the patches of each image, and the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wherefrom.core.explanation import Explanation


def is_mixed(explanation: Explanation) -> bool:
    """Whether there are images beside the text."""
    return (explanation.scene or {}).get("kind") == "images"


def pictures(explanation: Explanation) -> list[Explanation]:
    """The patches of each image as an explanation of that image, in the order of the images."""
    scenes = (explanation.scene or {}).get("images", ())
    found = []
    for number, scene in enumerate(scenes, 1):
        own = [
            i
            for i, unit in enumerate(explanation.units)
            if unit.field == f"image {number}" and unit.box is not None
        ]
        found.append(replace(_taken(explanation, own), scene=scene, text=None))
    return found


def text_part(explanation: Explanation) -> Explanation:
    """The tokens alone, without those that stand for parts of an image."""
    own = [i for i, unit in enumerate(explanation.units) if unit.start is not None]
    return replace(_taken(explanation, own), scene=None)


def _taken(explanation: Explanation, units: Sequence[int]) -> Explanation:
    return replace(
        explanation,
        units=tuple(explanation.units[i] for i in units),
        scores=explanation.scores[list(units)],
        parts={name: part[list(units)] for name, part in explanation.parts.items()},
    )
