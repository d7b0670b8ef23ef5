"""Fine-tunes an encoder on a text set: a model to measure on, which is not shipped.

    python -m training.encoder --data FOLDER --base PATH_OR_ID --out FOLDER

No setting of wherefrom was chosen on these models, so they show how results carry over. Unlike the
embedded model they have not seen sentences with [UNK].
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from training.loop import Batches, Plan, fit
from training.sentiment import accuracy, encode, padded, read


def main(
    data: Annotated[Path, typer.Option(help="Folder with train and validation or test .csv.gz.")],
    base: Annotated[str, typer.Option(help="Pretrained encoder: a path or a hub id.")],
    out: Annotated[Path, typer.Option(help="Where the model goes.")],
    epochs: Annotated[int, typer.Option(help="Passes over the training texts.")] = 2,
    rows: Annotated[int, typer.Option(help="Training texts at most, a seeded draw.")] = 7000,
) -> None:
    """Trains, saves, and prints the accuracy on a thousand texts of the other split."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    torch.manual_seed(0)
    texts, labels = read(data / "train.csv.gz")
    model = AutoModelForSequenceClassification.from_pretrained(
        base, num_labels=max(labels) + 1, dtype=torch.float32
    )
    drawn = torch.randperm(len(texts))[:rows].tolist()
    ids, truth = encode(tokenizer, [texts[i] for i in drawn]), torch.tensor(labels)[drawn]
    batches = Batches([len(row) for row in ids], size=32)

    def loss_at(step: int) -> Tensor:
        rows = batches[step]
        batch = padded([ids[i] for i in rows.tolist()], tokenizer.pad_token_id)
        return cross_entropy(model(**batch).logits, truth[rows])

    out.mkdir(parents=True, exist_ok=True)
    fit(model, loss_at, Plan("encoder", epochs * batches.per_epoch, 5e-5, out / "checkpoint.pt"))
    held_out = data / "validation.csv.gz"
    split = held_out if held_out.exists() else data / "test.csv.gz"
    texts, labels = read(split)
    drawn = torch.randperm(len(texts))[:1000].tolist()
    share = accuracy(model, tokenizer, [texts[i] for i in drawn], [labels[i] for i in drawn])
    typer.echo(f"{share:.4f} on {len(drawn)} texts of {split.name}")
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    typer.run(main)
