"""The seven text sets: how they are read, and the Transformer that learns each of them.

A model is the embeddings and the first two blocks of a pretrained MiniLM, with BERT's tokenizer, and
a new head. All of it is fine-tuned with AdamW, with the same settings for every set but for epochs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from training.loop import Batches, Plan, fit, progress
from training.sentiment import padded, read

BLOCKS = 2
RATE = 2e-4
BASE = "sentence-transformers/all-MiniLM-L6-v2"


@dataclass(frozen=True)
class TextSet:
    """A text set: its folder, its classes by label, and the passes over its training texts."""

    folder: str
    labels: tuple[str, ...]
    epochs: int
    batch: int = 32
    pieces: int = 128  # the longest text, in word pieces with [CLS] and [SEP]: the last ones are kept
    held: int = 0  # training texts that serve as validation, where the set has none

    def split(self, data: Path, name: str) -> tuple[list[str], list[int]]:
        """Texts and labels of `train`, `validation` or `test`; blank texts are left out."""
        own = not self.held or name == "test"
        texts, labels = read(data / self.folder / f"{name if own else 'train'}.csv.gz")
        rows = [i for i, text in enumerate(texts) if text.strip()]
        if not own:
            order = np.random.default_rng(0).permutation(rows)
            rows = (order[: self.held] if name == "validation" else order[self.held :]).tolist()
        return [_plain(texts[i]) for i in rows], [labels[i] for i in rows]


def _plain(text: str) -> str:
    """The text without line breaks, which IMDB writes as tags.

    >>> _plain("Bad.<br /><br />Very  bad.")
    'Bad. Very bad.'
    """
    return " ".join(re.sub(r"<br\s*/?>", " ", text).split())


def clipped(tokenizer: Any, texts: list[str], pieces: int) -> list[str]:
    """Each text from where its last `pieces` word pieces begin, two less for [CLS] and [SEP]."""
    spans = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    starts = [
        places[-(pieces - 2)][0] if len(places) > pieces - 2 else 0
        for places in spans["offset_mapping"]
    ]
    return [text[start:] for text, start in zip(texts, starts, strict=True)]


def encode(tokenizer: Any, texts: list[str], pieces: int) -> list[list[int]]:
    """Token ids of each text, clipped as `clipped` clips it."""
    ids = tokenizer(clipped(tokenizer, texts, pieces), truncation=True, max_length=pieces)
    return list(ids["input_ids"])


def learn(of: TextSet, name: str, data: Path, base: str, work: Path) -> tuple[Any, Any]:
    """The model and the tokenizer after training; goes on from the last checkpoint in `work`."""
    tokenizer = AutoTokenizer.from_pretrained(base, model_max_length=of.pieces)
    torch.manual_seed(0)
    names = dict(enumerate(of.labels))
    model = AutoModelForSequenceClassification.from_pretrained(
        base,
        num_hidden_layers=BLOCKS,
        num_labels=len(of.labels),
        id2label=names,
        label2id={label: i for i, label in names.items()},
        attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.1,
    )
    texts, labels = of.split(data, "train")
    ids, truth = encode(tokenizer, texts, of.pieces), torch.tensor(labels)
    batches = Batches([len(row) for row in ids], size=of.batch)

    def loss_at(step: int) -> Tensor:
        rows = batches[step]
        batch = padded([ids[i] for i in rows.tolist()], tokenizer.pad_token_id)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(**batch).logits
        return cross_entropy(logits.float(), truth[rows])

    steps = of.epochs * batches.per_epoch
    fit(model, loss_at, Plan(name, steps, RATE, work / f"{name}.pt", average_last=0.1, every=500))
    return model, tokenizer


@torch.inference_mode()
def probabilities(model: Any, tokenizer: Any, texts: list[str], pieces: int, name: str) -> Tensor:
    """The probability of each class for each text, in bfloat16 as the training was."""
    ids = encode(tokenizer, texts, pieces)
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    found = torch.empty(len(ids), model.config.num_labels)
    with progress() as bar:
        for start in bar.track(range(0, len(order), 128), description=name):
            rows = order[start : start + 128]
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(**padded([ids[i] for i in rows], tokenizer.pad_token_id)).logits
            found[rows] = logits.float().softmax(-1)
    return found
