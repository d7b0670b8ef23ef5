"""Fine-tunes an encoder on SST-2 sentences: a model for measurements, which wherefrom does not ship.

    python -m training.encoder --data SST2_SENTENCES --base PATH_OR_ID --out FOLDER

No setting of wherefrom was chosen on this model, so it shows how results carry over. Unlike the
embedded model it has not seen sentences with [UNK].
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
from training.sentiment import LABELS, accuracy, encode, padded, read


def main(
    data: Annotated[Path, typer.Option(help="Folder with train and validation .csv.gz.")],
    base: Annotated[str, typer.Option(help="Pretrained encoder: a path or a hub id.")],
    out: Annotated[Path, typer.Option(help="Where the model goes.")],
    epochs: Annotated[int, typer.Option(help="Passes over the training sentences.")] = 2,
) -> None:
    """Trains, saves, and prints the accuracy on the validation sentences."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(
        base, id2label=LABELS, label2id={name: i for i, name in LABELS.items()}, dtype=torch.float32
    )
    texts, labels = read(data / "train.csv.gz")
    ids, truth = encode(tokenizer, texts), torch.tensor(labels)
    batches = Batches([len(row) for row in ids], size=32)

    def loss_at(step: int) -> Tensor:
        rows = batches[step]
        batch = padded([ids[i] for i in rows.tolist()], tokenizer.pad_token_id)
        return cross_entropy(model(**batch).logits, truth[rows])

    out.mkdir(parents=True, exist_ok=True)
    fit(model, loss_at, Plan("encoder", epochs * batches.per_epoch, 5e-5, out / "checkpoint.pt"))
    share = accuracy(model, tokenizer, *read(data / "validation.csv.gz"))
    typer.echo(f"{share:.4f} on the validation sentences")
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    typer.run(main)
