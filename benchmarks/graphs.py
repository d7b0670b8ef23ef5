"""Which methods can be trusted on graphs: molecules of BACE, digits as superpixels.

    python -m benchmarks.graphs --bace BACE_FOLDER [--mnist MNIST_FOLDER --superpixels MODEL]
                                [--pictures docs/images]

Activation begins with the empty graph, pruning takes nodes away (masked out of attention, the
virtual node kept). The molecules are the test split that the embedded model `bace` never saw; of
the test images a seeded draw is taken. The class explained is the true one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import wherefrom
from training.bace import random_split
from training.bace import read as read_molecules
from training.mnist import read_images
from wherefrom.inputs.graph import Graph
from wherefrom.methods import Method, default_methods

METRICS = ("activation", "pruning", "leave_one_out")
SHOWN = ("lrp", "lrp_ah_ln", "gradient_x_input", "gae", "attention_rollout", "attention_flow",
         "transformer_attribution", "integrated_gradients", "random")  # fmt: skip


def molecules(folder: Path, model: str) -> tuple[Any, list[tuple[Graph, int]]]:
    """The embedded model, and the molecules it is tested on with their classes."""
    data = read_molecules(folder)
    chosen = [int(i) for i in random_split(data.labels)["test"]]
    return wherefrom.load(model), [(data.graphs[i], int(data.labels[i])) for i in chosen]


def superpixels(folder: Path, model: Path, count: int) -> tuple[Any, list[tuple[Graph, int]]]:
    """A model of superpixels, and some test images as graphs with their digits."""
    images, digits = read_images(folder, "test")
    drawn = np.random.default_rng(0).choice(len(images), count, replace=False)
    rows = [(Graph.superpixels(images[i].numpy()), int(digits[i])) for i in drawn.tolist()]
    return wherefrom.load(model), rows


def table(
    title: str, explainer: Any, rows: Sequence[tuple[Graph, int]], methods: Sequence[str | Method]
) -> str:
    """Methods on these graphs."""
    found = wherefrom.evaluate(explainer, rows, methods, METRICS)
    return f"{title}, {len(rows)} graphs\n\n{found.table(markdown=True)}\n"


def main(
    bace: Annotated[Path, typer.Option(help="Folder with bace.csv.gz.")],
    mnist: Annotated[Path | None, typer.Option(help="Folder with the idx files.")] = None,
    superpixels_model: Annotated[
        Path | None, typer.Option("--superpixels", help="A model of `training.superpixels`.")
    ] = None,
    model: Annotated[str, typer.Option(help="The model of molecules.")] = "bace",
    sample: int = 200,
    methods: Annotated[str | None, typer.Option(help="Comma-separated; all by default.")] = None,
    pictures: Annotated[Path | None, typer.Option(help="Where galleries are drawn.")] = None,
) -> None:
    """Prints a table for each of the two."""
    # nodes are removed by the metrics too
    everything = [*default_methods(), wherefrom.method("occlusion", baseline="remove")]
    chosen = methods.split(",") if methods else everything
    explainer, rows = molecules(bace, model)
    if pictures is not None:
        active = next(graph for graph, label in rows if label == 1 and len(graph) < 30)
        explainer.compare(active, SHOWN).plot(path=pictures / "molecule.png")
    typer.echo(table("BACE", explainer, rows, chosen))
    if mnist is not None and superpixels_model is not None:
        explainer, rows = superpixels(mnist, superpixels_model, sample)
        if pictures is not None:
            explainer.compare(rows[0][0], SHOWN).plot(path=pictures / "superpixels.png")
        typer.echo(table("MNIST superpixels", explainer, rows, chosen))


if __name__ == "__main__":
    typer.run(main)
