"""Trains the embedded model `digits`, a small ViT on MNIST, and one for pairs of digits on request.

    python -m training.digits --data MNIST_FOLDER [--pairs FOLDER]

In half of the images a random share of the patches is put to the mean colour, so that erasing
patches, as the evaluation protocols do, stays within what the model has seen. With --pairs a
second model goes on from the first: it sees two different digits side by side and is asked for
both, so that an explanation can be held against where each of them is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, pad
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

from training.card import write_card
from training.loop import Batches, Plan, fit
from training.mnist import read_images

PATCH = 4
MEAN, SPREAD = 0.1307, 0.3081  # of the training images
HELD_OUT = 5_000  # the last of the training images, to watch the training by
STORY = """---
license: mit
tags: [digits, explainability]
---
# digits

A ViT of 4 layers (width 64, 4 heads, 7 × 7 patches of 4 × 4 pixels; $parameters parameters,
$megabytes MB as float16) that classifies handwritten digits. It comes with wherefrom so that
examples and tests on images run on a real model, without a network.

| MNIST split | accuracy |
|---|---|
| validation (the last 5,000 of the training images) | $validation |
| test (10,000 images) | $test |

## Training

`make -C training digits DATA=…` (`training/digits.py`, seeded): $passes passes over 55,000 images,
shifted by up to two pixels; in half of them a random share of the patches is set to the mean
colour. A first run of 6 passes had 96.8 % on validation, below the goal of 97 %, so the number of
passes was increased.

## Limits

It is made for single white digits on black, centred in 28 × 28 pixels. It predicts a digit for any
image.

Data: LeCun, Cortes & Burges, The MNIST database of handwritten digits.
"""


def normalised(images: Tensor) -> Tensor:
    """Bytes as the model takes them: (N, 1, H, W), zero being the mean colour."""
    return ((images.float() / 255 - MEAN) / SPREAD).unsqueeze(1)


def moved(images: Tensor, chance: torch.Generator) -> Tensor:
    """Each image moved by up to two pixels."""
    size = images.shape[-1]
    wide = pad(images, (2, 2, 2, 2))
    down, right = torch.randint(0, 5, (2, len(images)), generator=chance)
    rows = torch.arange(size) + down[:, None]
    columns = torch.arange(size) + right[:, None]
    return wide[torch.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None, :]]


def with_holes(images: Tensor, chance: torch.Generator) -> Tensor:
    """Half of the images with a random share of their patches put to zero, the mean colour."""
    count, _, height, width = images.shape
    share = torch.rand(count, 1, 1, generator=chance) * 0.9
    share[torch.rand(count, generator=chance) < 0.5] = 0.0
    gone = torch.rand(count, height // PATCH, width // PATCH, generator=chance) < share
    kept = (~gone).repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)
    return images * kept.unsqueeze(1)


def new_model(width: int = 28) -> Any:
    """A ViT with random weights for images of 28 rows."""
    torch.manual_seed(0)
    return ViTForImageClassification(
        ViTConfig(
            image_size=(28, width),
            patch_size=PATCH,
            num_channels=1,
            hidden_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=256,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            id2label={i: str(i) for i in range(10)},
            label2id={str(i): i for i in range(10)},
        )
    )


@torch.inference_mode()
def answers(model: Any, images: Tensor) -> Tensor:
    """The logits of many images."""
    return torch.cat([model(pixel_values=part).logits for part in images.split(250)])


def train(data: Path, work: Path, passes: int) -> Any:
    """The model of single digits."""
    images, digits = read_images(data, "train")
    images, digits = images[:-HELD_OUT], digits[:-HELD_OUT]
    model = new_model()
    batches = Batches([1] * len(images), size=100)

    def loss_at(step: int) -> Tensor:
        chance = torch.Generator().manual_seed(step)
        rows = batches[step]
        seen = with_holes(normalised(moved(images[rows], chance)), chance)
        return cross_entropy(model(pixel_values=seen).logits, digits[rows])

    steps = passes * batches.per_epoch
    fit(model, loss_at, Plan("digits", steps, 1.5e-3, work / "digits.pt", average_last=0.1))
    return model


def pairs_of(images: Tensor, digits: Tensor, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images (28 × 56) of two different digits side by side, and the two digits, (N, 2)."""
    order = torch.randperm(len(images), generator=chance)
    left, right = order[: len(order) // 2], order[len(order) // 2 : len(order) // 2 * 2]
    differ = digits[left] != digits[right]
    left, right = left[differ], right[differ]
    return torch.cat([images[left], images[right]], 2), torch.stack(
        [digits[left], digits[right]], 1
    )


def train_pairs(data: Path, work: Path, single: Any, steps: int) -> Any:
    """A model that is asked for both of two digits, beginning with the weights for one."""
    images, digits = read_images(data, "train")
    images, digits = images[:-HELD_OUT], digits[:-HELD_OUT]
    model = new_model(56)
    table = "vit.embeddings.position_embeddings"
    weights = single.state_dict()
    first, rest = weights[table][:, :1], weights[table][:, 1:].unflatten(1, (7, 7))
    weights[table] = torch.cat([first, torch.cat([rest, rest], 2).flatten(1, 2)], 1)
    model.load_state_dict(weights)

    def loss_at(step: int) -> Tensor:
        chance = torch.Generator().manual_seed(1_000_000 + step)
        rows = torch.randint(0, len(images), (160,), generator=chance)
        seen, both = pairs_of(moved(images[rows], chance), digits[rows], chance)
        logits = model(pixel_values=with_holes(normalised(seen), chance)).logits
        # each digit is a question of its own: a softmax would leave open what all logits share
        there = torch.zeros_like(logits).scatter(1, both, 1.0)
        return binary_cross_entropy_with_logits(logits, there)

    fit(model, loss_at, Plan("pairs", steps, 1e-3, work / "pairs.pt", average_last=0.2))
    return model


def stored(model: Any, out: Path, width: int) -> Any:
    """Writes the model as float16 with its image processor, and reads it back."""
    out.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(out)
    ViTImageProcessorPil(
        size={"height": 28, "width": width}, image_mean=[MEAN], image_std=[SPREAD]
    ).save_pretrained(out)
    return ViTForImageClassification.from_pretrained(out, dtype=torch.float32).eval()


def main(
    data: Annotated[Path, typer.Option(help="Folder with the four idx files of MNIST.")],
    work: Annotated[Path, typer.Option(help="Where checkpoints go.")] = Path("build/digits"),
    out: Annotated[Path, typer.Option(help="Where the model goes.")] = Path(
        "src/wherefrom/models/digits"
    ),
    pairs: Annotated[Path | None, typer.Option(help="Where a model for pairs goes.")] = None,
    passes: int = 14,
    pair_steps: int = 2000,
    threads: int = 0,
) -> None:
    """Trains, measures and writes the model with its card."""
    if threads:
        torch.set_num_threads(threads)
    model = stored(train(data, work, passes), out, 28)
    images, digits = read_images(data, "train")
    splits = {
        "validation": (images[-HELD_OUT:], digits[-HELD_OUT:]),
        "test": read_images(data, "test"),
    }
    figures = {
        split: float((answers(model, normalised(seen)).argmax(1) == truth).float().mean())
        for split, (seen, truth) in splits.items()
    }
    typer.echo(f"digits: as stored {figures}")
    write_card(
        out,
        task="which digit an image shows (0 to 9)",
        data="MNIST",
        metric="accuracy",
        figures=figures,
        parameters=sum(p.numel() for p in model.parameters()),
        story=STORY,
        passes=passes,
    )
    if pairs is not None:
        double = stored(train_pairs(data, work, model, pair_steps), pairs, 56)
        seen, both = pairs_of(*read_images(data, "test"), torch.Generator().manual_seed(0))
        found = answers(double, normalised(seen)).topk(2).indices.sort(1).values
        right = (found == both.sort(1).values).all(1).float().mean()
        typer.echo(f"pairs: both digits right in {right:.4f} of {len(both)} test pairs")


if __name__ == "__main__":
    typer.run(main)
