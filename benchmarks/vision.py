"""Which methods can be trusted on images: held-out digits, and two digits side by side.

    python -m benchmarks.vision --data MNIST_FOLDER [--pairs FOLDER] [--pictures docs/images]

The first table perturbs the patches of test images (mean colour) for the embedded model `digits`.
The second shows a model that was trained for pairs (`training.digits --pairs`) two different
digits, explains each of the two answers, and asks which share of the positive relevance lies on
the half where that digit is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

import wherefrom
from training.digits import normalised, pairs_of
from training.mnist import read_images
from wherefrom import Comparison
from wherefrom.methods import default_methods

METRICS = (
    "positive", "negative", "positive_accuracy", "negative_accuracy", "insertion", "deletion",
)  # fmt: skip


def held_out(data: Path, count: int, blank: str, methods: list[str]) -> str:
    """Methods on test images, as a table."""
    images, digits = read_images(data, "test")
    drawn = np.random.default_rng(0).choice(len(images), count, replace=False)
    pixels = normalised(images)
    rows = [(pixels[i], int(digits[i])) for i in drawn.tolist()]
    found = wherefrom.evaluate(wherefrom.load("digits"), rows, methods, METRICS, blank=blank)
    return found.table(markdown=True)


def halves(explanation: Any) -> tuple[float, float]:
    """The positive relevance on the left and on the right half."""
    middle = explanation.scene["width"] / 2
    sums = [0.0, 0.0]
    for unit, score in zip(explanation.units, explanation.scores, strict=True):
        sums[int(unit.box[0] >= middle)] += max(0.0, float(score))
    return sums[0], sums[1]


def _shares(explainer: Any, pixels: Any, both: Any, method: str, contrast: bool) -> list[float]:
    """The share of positive relevance on the right half, for each pair and each of its digits."""
    shares: list[float] = []
    for side in (0, 1):
        against = both[:, 1 - side].tolist() if contrast else None
        made = explainer(
            pixels, method, target=both[:, side].tolist(), against=against, batch_size=25
        )
        for sums in (np.array(halves(each)) for each in made):
            # with no positive relevance at all neither half is favoured
            shares.append(float(sums[side] / sums.sum()) if sums.sum() > 0 else 0.5)
    return shares


def specificity(
    data: Path, folder: Path, count: int, pictures: Path | None, methods: Sequence[str]
) -> str:
    """Where methods put their positive relevance, for each of two digits."""
    explainer = wherefrom.load(folder)
    seen, both = pairs_of(*read_images(data, "test"), torch.Generator().manual_seed(1))
    pixels = normalised(seen)
    with torch.inference_mode():
        found = explainer.runner.run({"pixel_values": pixels[: 4 * count]}).topk(2).indices
    right = (found.sort(1).values == both[: 4 * count].sort(1).values).all(1)
    chosen = right.nonzero().flatten()[:count].tolist()
    lines = [
        f"Of the first {4 * count} pairs of test digits the model names both digits in "
        f"{100 * float(right.float().mean()):.1f} %; the first {len(chosen)} of those are shown.",
        "",
        "| method | share on the correct half | above 50 % | of a contrast | above 50 % |",
        "|---|---|---|---|---|",
    ]
    for name in methods:
        cells = []
        for contrast in (False, True):
            shares = _shares(explainer, pixels[chosen], both[chosen], name, contrast)
            most = np.mean([share > 0.5 for share in shares])
            cells.append(f"{100 * np.mean(shares):.1f} % | {100 * most:.0f} %")
        typer.echo(f"{name}: {cells}", err=True)
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    if pictures is not None:
        names = ("lrp", "gradient_x_input", "gae", "transformer_attribution", "attention_rollout")
        first = chosen[0]
        shown = [
            explainer(pixels[first], name, target=int(both[first, side]))
            for side in (0, 1)
            for name in names
        ]
        Comparison(shown).plot(path=pictures / "pairs.png")
    return "\n".join(lines)


def main(
    data: Annotated[Path, typer.Option(help="Folder with the four idx files of MNIST.")],
    pairs: Annotated[Path | None, typer.Option(help="A model trained for pairs.")] = None,
    pictures: Annotated[Path | None, typer.Option(help="Where galleries are drawn.")] = None,
    methods: Annotated[str | None, typer.Option(help="Comma-separated; all by default.")] = None,
    sample: Annotated[int, typer.Option(help="Images of the first table; 0 for none.")] = 300,
    count: int = 100,
    blank: str = "zero",
) -> None:
    """Prints both tables."""
    if pictures is not None:
        images, _ = read_images(data, "test")
        wherefrom.load("digits").compare(normalised(images)[0]).plot(path=pictures / "digits.png")
    chosen = methods.split(",") if methods else default_methods()
    if sample:
        typer.echo(held_out(data, sample, blank, chosen) + "\n")
    if pairs is not None:
        typer.echo(specificity(data, pairs, count, pictures, chosen))


if __name__ == "__main__":
    typer.run(main)
