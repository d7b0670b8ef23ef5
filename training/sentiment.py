"""Trains the embedded model `sentiment`: a small BERT distilled from a fine-tuned MiniLM on SST-2.

    python -m training.sentiment --data SST2_FOLDER --teacher PATH_OR_ID

Four stages, each resumable: (1) the teacher is fine-tuned on the phrases, (2) it labels them and
copies of them in which words were replaced by [UNK], (3) the student learns those logits, (4) it
learns the teacher's logits on sentences of film reviews without labels as well (--extra). The
copies teach both what a sentence with holes means, so that erasing words, as the evaluation
protocols do, stays within what the model has seen.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
import re
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

from training.card import write_card
from training.loop import Batches, Plan, fit, progress

LABELS = {0: "NEGATIVE", 1: "POSITIVE"}
STORY = """---
license: apache-2.0
language: en
base_model: sentence-transformers/all-MiniLM-L6-v2
tags: [sentiment, explainability]
---
# sentiment

A BERT of 4 layers (width 192, 6 heads, 10,500 word pieces, 128 positions; $parameters parameters,
$megabytes MB as float16) that classifies sentences about films as positive or negative. It comes
with wherefrom so that examples and tests run on a real model, without a network.

| SST-2 split | accuracy |
|---|---|
| validation (872 sentences) | $validation |
| test (1,821 sentences) | $test |

## Training

`make -C training sentiment DATA=… EXTRA=…` (`training/sentiment.py`, seeded): the teacher,
all-MiniLM-L6-v2 (Apache-2.0), was fine-tuned on the 67,349 phrases of SST-2 ($teacher on the
validation sentences). The student was distilled from the teacher's logits on the phrases and on
copies of them with words replaced by [UNK] (copies of each phrase: $copies; passes: $passes), then
also on $sentences sentences of IMDB reviews, without their labels (passes: $extra_passes). Its word
and position vectors were initialised with the teacher's, reduced by PCA.

The validation figure is not from unseen data: after the first stages, on phrases alone, the student
had 81.8 % on the validation sentences, below the goal of 82 %, and the IMDB stage was added for
that reason. Nothing else was tuned. The same runs printed test figures; no choice was based
on them, but they had been seen.

## Limits

It is made for short English sentences about films, in lower case. It has the biases of its
data. It is an example to explain, not a classifier to rely on.

Data: Socher et al., Recursive Deep Models for Semantic Compositionality Over a Sentiment Treebank,
EMNLP 2013; Maas et al., Learning Word Vectors for Sentiment Analysis, ACL 2011. Teacher: Wang et
al., MiniLM, NeurIPS 2020; Reimers & Gurevych, Sentence-BERT, EMNLP 2019.
"""
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def read(path: Path) -> tuple[list[str], list[int]]:
    """Texts and labels of a `text,label` gzip CSV."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["text"] for row in rows], [int(row["label"]) for row in rows]


def with_holes(texts: list[str], seed: int) -> list[str]:
    """Each text with a share of its words, drawn anew for each text, replaced by [UNK]."""
    chance = random.Random(seed)

    def holes(text: str) -> str:
        rate = chance.uniform(0.0, 0.9)
        words = ["[UNK]" if chance.random() < rate else word for word in text.split()]
        return " ".join(words)

    return [holes(text) for text in texts]


def encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Token ids of each text, special tokens included."""
    ids: list[list[int]] = tokenizer(texts, truncation=True, max_length=128)["input_ids"]
    return ids


def padded(ids: list[list[int]], pad: int) -> dict[str, Tensor]:
    """A batch of id lists as tensors."""
    width = max(len(row) for row in ids)
    tokens = torch.tensor([row + [pad] * (width - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids])
    return {"input_ids": tokens, "attention_mask": mask}


@torch.inference_mode()
def logits_of(model: Any, ids: list[list[int]], pad: int, name: str) -> Tensor:
    """The model's logits on every row, batched by length."""
    model.eval()
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    out = torch.empty(len(ids), model.config.num_labels)
    with progress() as bar:
        for start in bar.track(range(0, len(order), 256), description=name):
            rows = order[start : start + 256]
            out[rows] = model(**padded([ids[i] for i in rows], pad)).logits.float()
    return out


def accuracy(model: Any, tokenizer: Any, texts: list[str], labels: list[int]) -> float:
    """Share of the texts whose most likely class is the label."""
    logits = logits_of(model, encode(tokenizer, texts), tokenizer.pad_token_id, "accuracy")
    return (logits.argmax(-1) == torch.tensor(labels)).float().mean().item()


def teach(data: Path, source: str, work: Path) -> Path:
    """Stage 1: fine-tunes the pretrained teacher on the phrases, some of them with holes."""
    done = work / "teacher"
    if (done / "config.json").exists():
        return done
    tokenizer = AutoTokenizer.from_pretrained(source)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=2)
    texts, labels = read(data / "train.csv.gz")
    holed = with_holes(texts, seed=1)
    chance = random.Random(2)
    texts = [b if chance.random() < 0.2 else a for a, b in zip(texts, holed, strict=True)]
    ids, truth = encode(tokenizer, texts), torch.tensor(labels)
    batches = Batches([len(row) for row in ids], size=64)

    def loss_at(step: int) -> Tensor:
        rows = batches[step]
        batch = padded([ids[i] for i in rows.tolist()], tokenizer.pad_token_id)
        return cross_entropy(model(**batch).logits, truth[rows])

    fit(
        model,
        loss_at,
        Plan("teacher", 2 * batches.per_epoch, 8e-5, work / "teacher.pt"),
    )
    share = accuracy(model, tokenizer, *read(data / "validation.csv.gz"))
    typer.echo(f"teacher: {share:.4f} on the validation sentences")
    model.save_pretrained(done)
    tokenizer.save_pretrained(done)
    (done / "accuracy.json").write_text(json.dumps({"validation": share}))
    return done


def label(data: Path, teacher: Path, work: Path, copies: int) -> tuple[list[str], Tensor]:
    """Stage 2: the teacher's logits on the phrases and on `copies` holed versions of them."""
    texts, _ = read(data / "train.csv.gz")
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    model = AutoModelForSequenceClassification.from_pretrained(teacher)
    every_text: list[str] = []
    every_logit: list[Tensor] = []
    for copy in range(copies + 1):
        version = texts if copy == 0 else with_holes(texts, seed=10 + copy)
        kept = work / f"labels-{copy}.safetensors"
        if not kept.exists():
            ids = encode(tokenizer, version)
            logits = logits_of(model, ids, tokenizer.pad_token_id, f"labels {copy}/{copies}")
            save_file({"logits": logits}, kept)
        every_text += version
        every_logit.append(load_file(kept)["logits"])
    return every_text, torch.cat(every_logit)


def more_sentences(path: Path, count: int) -> list[str]:
    """So many sentences of 4 to 35 words, drawn from the texts of a `text` gzip CSV."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    found: dict[str, None] = {}
    for text in texts:
        for sentence in re.split(r"(?<=[.!?])\s+|<br\s*/?>", text):
            # as SST-2 writes: lower case, marks apart from words
            plain = re.sub(r"([^\w\s'-])", r" \1 ", sentence.lower())
            if 4 <= len(plain.split()) <= 35:
                found.setdefault(" ".join(plain.split()))
    return random.Random(3).sample(list(found), min(count, len(found)))


def vocabulary(tokenizer: Any, texts: list[str], size: int) -> list[str]:
    """The teacher's word pieces that the student keeps: characters, the data's, common English.

    The pieces of a BERT vocabulary stand in order of frequency, which is what "common" reads.
    """
    counts: dict[str, int] = {}
    for text in texts:
        for piece in tokenizer.tokenize(text):
            counts[piece] = counts.get(piece, 0) + 1
    by_rank = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    printable = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    letters = printable + ["##" + char for char in printable if char.isalnum()]
    common = [piece for piece in by_rank if piece.removeprefix("##").isascii()]
    common = [piece for piece in common if not piece.startswith("[")]
    frequent = [piece for piece in sorted(counts, key=lambda p: -counts[p]) if counts[piece] > 2]
    kept = dict.fromkeys(SPECIAL + letters + frequent[: int(size * 0.85)])
    for piece in common:
        if len(kept) >= size:
            break
        kept.setdefault(piece)
    return list(kept)


def student_tokenizer(vocab: list[str]) -> PreTrainedTokenizerFast:
    """A BERT word-piece tokenizer over the kept pieces."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    ids = {piece: i for i, piece in enumerate(vocab)}
    core = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=128,
    )


def student_model(teacher: Path, vocab: list[str]) -> BertForSequenceClassification:
    """A small BERT whose word and position vectors are the teacher's, reduced by PCA."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(vocab),
            hidden_size=192,
            num_hidden_layers=4,
            num_attention_heads=6,
            intermediate_size=512,
            max_position_embeddings=128,
            hidden_dropout_prob=0.1,
            attention_probs_dropout_prob=0.1,
            id2label=LABELS,
            label2id={name: i for i, name in LABELS.items()},
            pad_token_id=0,
        )
    )
    weights = load_file(teacher / "model.safetensors")
    ranks = AutoTokenizer.from_pretrained(teacher).get_vocab()
    words = weights["bert.embeddings.word_embeddings.weight"][[ranks[piece] for piece in vocab]]
    places = weights["bert.embeddings.position_embeddings.weight"][:128]
    mean = words.mean(0)
    axes = torch.linalg.svd(words - mean, full_matrices=False).Vh[:192]
    scale = 0.05 / ((words - mean) @ axes.T).std()
    with torch.no_grad():
        own = model.bert.embeddings
        own.word_embeddings.weight.copy_((words - mean) @ axes.T * scale)
        own.position_embeddings.weight.copy_((places - places.mean(0)) @ axes.T * scale)
    return model


def distil(data: Path, teacher: Path, work: Path, copies: int, passes: int) -> tuple[Any, Any]:
    """Stage 3: the student learns the teacher's logits."""
    texts, logits = label(data, teacher, work, copies)
    original, truth = read(data / "train.csv.gz")
    vocab = vocabulary(AutoTokenizer.from_pretrained(teacher), original, size=10_500)
    tokenizer = student_tokenizer(vocab)
    model = student_model(teacher, vocab)
    ids = encode(tokenizer, texts)
    labels = torch.tensor(truth)
    batches = Batches([len(row) for row in ids], size=128)

    def loss_at(step: int) -> Tensor:
        rows = batches[step]
        batch = padded([ids[i] for i in rows.tolist()], 0)
        output = model(**batch).logits
        loss = mse_loss(output, logits[rows])
        whole = rows < len(labels)
        if whole.any():
            loss = loss + 0.2 * cross_entropy(output[whole], labels[rows[whole]])
        return loss

    steps = passes * batches.per_epoch
    fit(
        model,
        loss_at,
        Plan("student", steps, 1e-3, work / "student.pt", average_last=0.1),
    )
    return model, tokenizer


def widen(
    data: Path, teacher: Path, work: Path, extra: Path, count: int, passes: int, student: Any
) -> None:
    """Stage 4: the student goes on with sentences that only the teacher has labelled."""
    model, tokenizer = student
    sentences = more_sentences(extra, count)
    kept = work / "labels-extra.safetensors"
    if not kept.exists():
        reader = AutoTokenizer.from_pretrained(teacher)
        judge = AutoModelForSequenceClassification.from_pretrained(teacher)
        ids = encode(reader, sentences)
        save_file({"logits": logits_of(judge, ids, reader.pad_token_id, "labels extra")}, kept)
    phrases, logits = label(data, teacher, work, copies=1)
    texts = phrases + sentences
    logits = torch.cat([logits, load_file(kept)["logits"]])
    ids = encode(tokenizer, texts)
    batches = Batches([len(row) for row in ids], size=128, seed=1)

    def loss_at(step: int) -> Tensor:
        rows = batches[step]
        batch = padded([ids[i] for i in rows.tolist()], 0)
        return mse_loss(model(**batch).logits, logits[rows])

    steps = passes * batches.per_epoch
    fit(model, loss_at, Plan("student, more", steps, 5e-4, work / "wider.pt", average_last=0.1))


def main(
    data: Annotated[Path, typer.Option(help="Folder with train, validation, test .csv.gz.")],
    teacher: Annotated[str, typer.Option(help="Pretrained encoder: a path or a hub id.")] = (
        "sentence-transformers/all-MiniLM-L6-v2"
    ),
    work: Annotated[Path, typer.Option(help="Where checkpoints go.")] = Path("build/sentiment"),
    out: Annotated[Path, typer.Option(help="Where the model goes.")] = Path(
        "src/wherefrom/models/sentiment"
    ),
    extra: Annotated[Path | None, typer.Option(help="A .csv.gz of reviews, no labels.")] = None,
    sentences: Annotated[int, typer.Option(help="How many of their sentences.")] = 80_000,
    copies: int = 1,
    passes: int = 6,
    extra_passes: int = 1,
    threads: int = 0,
) -> None:
    """Trains, measures and writes the model with its card."""
    if threads:
        torch.set_num_threads(threads)
    work.mkdir(parents=True, exist_ok=True)
    taught = teach(data, teacher, work)
    model, tokenizer = distil(data, taught, work, copies, passes)
    if extra is not None:
        widen(data, taught, work, extra, sentences, extra_passes, (model, tokenizer))
    full = accuracy(model, tokenizer, *read(data / "validation.csv.gz"))
    out.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    path = out / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # known to transformers 4 and 5
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    kept = AutoModelForSequenceClassification.from_pretrained(out, dtype=torch.float32)
    figures = {
        split: accuracy(kept, tokenizer, *read(data / f"{split}.csv.gz"))
        for split in ("validation", "test")
    }
    typer.echo(f"student: float32 {full:.4f}; as stored {figures}")
    learned = json.loads((taught / "accuracy.json").read_text())["validation"]
    write_card(
        out,
        task="sentiment of a sentence (NEGATIVE, POSITIVE)",
        data="SST-2" if extra is None else "SST-2, IMDB without labels",
        metric="accuracy",
        figures=figures,
        parameters=sum(p.numel() for p in kept.parameters()),
        story=STORY,
        teacher=f"{100 * learned:.1f} %",
        copies=copies,
        passes=passes,
        sentences=f"{sentences if extra is not None else 0:,}",
        extra_passes=extra_passes,
    )


if __name__ == "__main__":
    typer.run(main)
