"""The seven text sets: how they are read, and the Transformer that learns each of them.

A model is the embeddings and the first two blocks of a pretrained MiniLM, with BERT's tokenizer
and a new head. All of it is fine-tuned with AdamW in bfloat16, at one learning rate for all sets.
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

import wherefrom
from reproduction.sets import ReproductionSet, Samples, class_figures, shuffled
from training.card import write_card
from training.loop import Batches, Plan, fit, progress
from training.sentiment import padded, read

BLOCKS = 2
RATE = 2e-4
STORY = """---
language: en
base_model: sentence-transformers/all-MiniLM-L6-v2
tags: [explainability]
---
# $name

The embeddings and the first $blocks blocks of all-MiniLM-L6-v2 (Apache-2.0; $parameters parameters)
with a new head, fine-tuned on $title ($count training texts, $epochs epochs of batches of $batch;
AdamW, learning rate $rate, linear warm-up and decay, the mean of the weights over the last tenth of
the steps, seed 0, bfloat16). A text longer than $pieces word pieces is read from its end.

| $tested test texts | |
|---|---|
| accuracy | $accuracy |
| macro-F1 | $macro_f1 |
| majority class | $majority |
| accuracy on $held validation texts | $validation |
"""


@dataclass(frozen=True)
class TextSet(ReproductionSet):
    """A text set: its classes by label, and the passes over its training texts."""

    labels: tuple[str, ...] = ()
    epochs: int = 1
    batch: int = 32
    pieces: int = 128  # the longest text, with [CLS] and [SEP]; of a longer one the last are kept
    held: int = 0  # training texts that serve as validation, where the set has none

    kind = "text"

    def split(self, data: Path, part: str) -> tuple[list[str], list[int]]:
        """Texts and labels of `train`, `validation` or `test`; blank texts are left out."""
        own = not self.held or part == "test"
        texts, labels = read(data / self.folder / f"{part if own else 'train'}.csv.gz")
        rows = [i for i, text in enumerate(texts) if text.strip()]
        if not own:
            order = np.random.default_rng(0).permutation(rows).tolist()
            rows = order[: self.held] if part == "validation" else order[self.held :]
        return [plain(texts[i]) for i in rows], [labels[i] for i in rows]

    def train(self, data: Path, base: str, work: Path, out: Path) -> None:
        """Writes the model, its tokenizer and its card to `out`."""
        model, tokenizer, count = self._learn(data, base, work)
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
        figures, sizes = {}, {}
        for part in ("validation", "test"):
            texts, labels = self.split(data, part)
            likely = probabilities(model, tokenizer, texts, self.pieces, f"{self.name}: {part}")
            figures[part] = class_figures(likely.numpy(), labels)
            sizes[part] = len(texts)
        write_card(
            out,
            task=", ".join(self.labels),
            data=self.title,
            metric="accuracy",
            figures={**figures["test"], "validation": figures["validation"]["accuracy"]},
            parameters=sum(p.numel() for p in model.parameters()),
            story=STORY,
            name=self.name,
            title=self.title,
            blocks=BLOCKS,
            rate=RATE,
            epochs=self.epochs,
            batch=self.batch,
            pieces=self.pieces,
            count=f"{count:,}",
            tested=f"{sizes['test']:,}",
            held=f"{sizes['validation']:,}",
        )

    def samples(self, data: Path, model: Path) -> Samples:
        """The model with the test texts in a random order."""
        explainer = wherefrom.load(model)
        texts, labels = self.split(data, "test")
        order = shuffled(len(texts))
        tokenizer = AutoTokenizer.from_pretrained(model)
        chosen = clipped(tokenizer, [texts[i] for i in order], self.pieces)
        return Samples(explainer, list(zip(chosen, (labels[i] for i in order), strict=True)))

    def _learn(self, data: Path, base: str, work: Path) -> tuple[Any, Any, int]:
        """Model, tokenizer, and the number of training texts; goes on from the last checkpoint."""
        tokenizer = AutoTokenizer.from_pretrained(base, model_max_length=self.pieces)
        torch.manual_seed(0)
        names = dict(enumerate(self.labels))
        model = AutoModelForSequenceClassification.from_pretrained(
            base,
            num_hidden_layers=BLOCKS,
            num_labels=len(names),
            id2label=names,
            label2id={label: i for i, label in names.items()},
            attention_probs_dropout_prob=0.0,  # a fused attention needs no dropout
            hidden_dropout_prob=0.1,
            dtype=torch.float32,
        )
        texts, labels = self.split(data, "train")
        ids, truth = encode(tokenizer, texts, self.pieces), torch.tensor(labels)
        batches = Batches([len(row) for row in ids], size=self.batch)

        def loss_at(step: int) -> Tensor:
            rows = batches[step]
            batch = padded([ids[i] for i in rows.tolist()], tokenizer.pad_token_id)
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(**batch).logits
            return cross_entropy(logits.float(), truth[rows])

        steps = self.epochs * batches.per_epoch
        checkpoint = work / f"{self.name}.pt"
        plan = Plan(self.name, steps, RATE, checkpoint, average_last=0.1, every=500)
        fit(model, loss_at, plan)
        return model, tokenizer, len(texts)


def plain(text: str) -> str:
    """The text without line breaks, which IMDB writes as tags.

    >>> plain("Bad.<br /><br />Very  bad.")
    'Bad. Very bad.'
    """
    return " ".join(re.sub(r"<br\s*/?>", " ", text).split())


def clipped(tokenizer: Any, texts: list[str], pieces: int) -> list[str]:
    """Each text from where its last `pieces` word pieces begin, two less for [CLS] and [SEP]."""
    most = pieces - 2
    spans = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)[
        "offset_mapping"
    ]
    return [
        text[places[-most][0] :] if len(places) > most else text
        for text, places in zip(texts, spans, strict=True)
    ]


def encode(tokenizer: Any, texts: list[str], pieces: int) -> list[list[int]]:
    """Token ids of each text, clipped as `clipped` clips it."""
    ids = tokenizer(clipped(tokenizer, texts, pieces), truncation=True, max_length=pieces)
    return list(ids["input_ids"])


@torch.inference_mode()
def probabilities(model: Any, tokenizer: Any, texts: list[str], pieces: int, name: str) -> Tensor:
    """The probability of each class for each text, in bfloat16 as in training."""
    ids = encode(tokenizer, texts, pieces)
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    likely = torch.empty(len(ids), model.config.num_labels)
    with progress() as bar:
        for start in bar.track(range(0, len(order), 128), description=name):
            rows = order[start : start + 128]
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(**padded([ids[i] for i in rows], tokenizer.pad_token_id)).logits
            likely[rows] = logits.float().softmax(-1)
    return likely
