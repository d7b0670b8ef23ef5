"""Trains a Graphormer on MNIST as graphs of about 75 superpixels.

    python -m training.superpixels --data MNIST_FOLDER

Two stages, each resumable: (1) SLIC cuts every image, and the graphs go into a file, (2) the model
learns them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from training.card import write_card
from training.graphs import with_holes
from training.loop import Batches, Plan, fit, progress
from training.mnist import read_images
from wherefrom.inputs.graph import batch, superpixels
from wherefrom.models.graphormer import Graphormer, GraphormerConfig

FIELDS = ("x", "degree", "distance", "mask")
HELD = 5_000  # the last training images, for validation
STORY = """---
license: mit
tags: [superpixels, graphormer, explainability]
---
# superpixels

A Graphormer of 2 layers (width $width, $heads heads; $parameters parameters) that reads a digit of
MNIST from a graph of about 75 superpixels ($fewest to $most, on average $average). A node has the
mean intensity and the position of its region; regions are joined where they touch.

| MNIST split | accuracy |
|---|---|
| validation (the last 5,000 training images) | $validation |
| test (10,000 images) | $test |

## How it was made

`make -C training superpixels DATA=…` (`training/superpixels.py`, seeded): SLIC of scikit-image cut
the images; the model saw $images of them in $epochs epochs, 64 at a time (AdamW, rate $rate,
linear warm-up and decay, the mean of the weights over the last tenth of the steps). In one of five
images, drawn anew in each epoch, a random part of the regions was removed, so that the model knows
what the evaluation by removal asks. The test images had no say in any setting.

Data: LeCun et al., MNIST. Model: Ying et al., Do Transformers Really Perform Bad for Graph
Representation?, NeurIPS 2021. Regions: Achanta et al., SLIC Superpixels, PAMI 2012.
"""


def cut(data: Path, split: str, cache: Path) -> dict[str, Tensor]:
    """Stage 1: the padded graphs of a split, from the file if they were made before."""
    kept = cache / f"{split}.safetensors"
    if not kept.exists():
        images, labels = read_images(data, split)
        with progress() as bar:
            graphs = [
                superpixels(i) for i in bar.track(images.numpy(), description=f"SLIC {split}")
            ]
        cache.mkdir(parents=True, exist_ok=True)
        save_file({**batch(graphs), "labels": labels}, kept.with_suffix(".new"))
        kept.with_suffix(".new").replace(kept)
    return load_file(kept)


def take(data: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Some of the graphs, without the padding that none of them needs."""
    size = int(data["mask"][rows].sum(1).max())
    given = {name: data[name][rows][:, :size] for name in FIELDS}
    return {**given, "distance": given["distance"][:, :, :size]}


def train(
    data: dict[str, Tensor], rows: Tensor, epochs: int, rate: float, work: Path
) -> Graphormer:
    """Stage 2: a model that has learned these graphs."""
    torch.manual_seed(0)
    model = Graphormer(
        GraphormerConfig(
            features=data["x"].shape[2],
            labels=tuple(str(digit) for digit in range(10)),
            width=64,
            heads=4,
            hidden=128,
            dropout=0.0,
            max_degree=12,
            max_distance=14,
            max_nodes=256,
            reads="superpixels",
        )
    )
    batches = Batches(data["mask"][rows].sum(1).tolist(), size=64)

    def loss_at(step: int) -> Tensor:
        chosen = rows[batches[step]]
        given = take(data, chosen)
        given["mask"] = with_holes(given["mask"])
        return cross_entropy(model(**given), data["labels"][chosen])

    steps = epochs * batches.per_epoch
    plan = Plan("superpixels", steps, rate, work / "superpixels.pt", average_last=0.1)
    fit(model, loss_at, plan)
    return model


@torch.inference_mode()
def accuracy(model: Graphormer, data: dict[str, Tensor], rows: Tensor) -> float:
    """Share of the images whose most likely digit is the right one."""
    right = sum(
        int((model(**take(data, part)).argmax(1) == data["labels"][part]).sum())
        for part in rows.split(200)
    )
    return right / len(rows)


def main(
    data: Annotated[Path, typer.Option(help="Folder with the four idx files, gzip.")],
    cache: Annotated[Path, typer.Option(help="Where the graphs go.")] = Path("build/superpixels"),
    work: Annotated[Path, typer.Option(help="Where checkpoints go.")] = Path("build/superpixels"),
    out: Annotated[Path, typer.Option(help="Where the model goes.")] = Path(
        "build/superpixels/model"
    ),
    images: Annotated[int, typer.Option(help="Training images, 55,000 at most.")] = 55_000,
    epochs: int = 6,
    rate: Annotated[float, typer.Option(help="The learning rate.")] = 2e-3,
    threads: int = 1,
) -> None:
    """Trains, measures and writes the model with its card."""
    torch.set_num_threads(threads)
    graphs = cut(data, "train", cache)
    everything = torch.arange(len(graphs["labels"]))
    rows, held = everything[:-HELD][:images], everything[-HELD:]
    model = train(graphs, rows, epochs, rate, work)
    model.save(out)
    figures = {"validation": accuracy(model, graphs, held)}
    typer.echo(f"validation {figures['validation']:.4f}")
    unseen = cut(data, "test", cache)
    figures["test"] = accuracy(model, unseen, torch.arange(len(unseen["labels"])))
    typer.echo(f"test {figures['test']:.4f}")
    counts = graphs["mask"][rows].sum(1)
    write_card(
        out,
        task="the digit in an image of 75 superpixels",
        data="MNIST",
        metric="accuracy",
        figures=figures,
        parameters=sum(p.numel() for p in model.parameters()),
        story=STORY,
        width=model.config.width,
        heads=model.config.heads,
        images=f"{len(rows):,}",
        epochs=epochs,
        rate=rate,
        fewest=int(counts.min()),
        most=int(counts.max()),
        average=f"{counts.float().mean().item():.1f}",
    )


if __name__ == "__main__":
    typer.run(main)
