"""Draws the example digits: strokes with a round brush, 28 × 28 pixels, white on black.

python examples/draw.py
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).parent


def arc(x, y, across, down, start, end, steps=40):
    """Points on an ellipse around (x, y); angles in degrees, clockwise from the right."""
    angles = np.radians(np.linspace(start, end, steps))
    return np.stack([x + across * np.cos(angles), y + down * np.sin(angles)], 1)


def line(*corners, steps=30):
    """Points on the lines from corner to corner."""
    pairs = pairwise(corners)
    return np.concatenate([np.linspace(a, b, steps) for a, b in pairs])


DIGITS = {
    "zero": [arc(14, 14, 5.0, 8.0, 0, 360, 80)],
    "one": [line((11.5, 8.5), (14.5, 5.5), (14.0, 22.5))],
    "two": [arc(13.5, 10, 4.8, 4.6, 190, 390), line((17.6, 12.5), (9, 22), (19.5, 22))],
    "three": [arc(13, 9.8, 4.6, 4.2, 210, 450), arc(13, 18.2, 5.2, 4.4, 270, 500)],
    "four": [line((11, 5.5), (9, 14.5), (19, 14.5)), line((17, 6.5), (15.5, 23))],
    "five": [line((18.5, 6), (11, 6), (10.3, 12.6)), arc(13.2, 17, 5.2, 5.2, 240, 500)],
    "seven": [line((8.5, 7), (19, 7), (13, 22.5))],
    "eight": [arc(14, 9.5, 3.9, 4.0, 0, 360, 60), arc(14, 18, 4.6, 4.6, 0, 360, 60)],
}


def drawn(strokes):
    """The strokes as bytes: full within the brush, fading at its rim."""
    down, right = np.mgrid[0:28, 0:28]
    points = np.concatenate(strokes)
    away = np.hypot(right[..., None] - points[:, 0], down[..., None] - points[:, 1]).min(-1)
    return (np.clip(1.9 - away, 0, 1) * 255).astype(np.uint8)


if __name__ == "__main__":
    for name, strokes in DIGITS.items():
        Image.fromarray(drawn(strokes)).save(HERE / f"{name}.png")
