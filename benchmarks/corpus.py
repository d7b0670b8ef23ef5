"""How fast a corpus is explained, relative to the bare forward pass on the same batches.

    python -m benchmarks.corpus [DATA.csv …] [--threads 1] [--rounds 5]

Without data, random sentences as long as film reviews are made from the model's vocabulary.
Explaining includes encoding, both passes, sums over words, the checkpoint files, and the views. The
forward pass gets prepared batches, under inference mode. The process keeps the memory that it has
freed, and leaves objects of modules out of garbage collections, as the command `wherefrom corpus`
does. The machine may be shared: the two take turns, time is processor time, the ratio is that of
the medians.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.cost import turns
from wherefrom import load, read_table
from wherefrom.core.memory import keep_heap, set_objects_aside
from wherefrom.corpus import explain_corpus, overview
from wherefrom.inputs.text import Encoded, batch, by_length

SIZE, TOKENS, WINDOW = 128, 4096, 1024


def sentences(tokenizer: Any, count: int = 1024, seed: int = 0) -> list[str]:
    """Random words, 2 to 52 in a sentence and 19 in the middle, as in SST-2."""
    chance = np.random.default_rng(seed)
    words = sorted(w for w in tokenizer.get_vocab() if w.isalpha() and len(w) > 2)
    lengths = np.clip(chance.normal(19, 9, count).round(), 2, 52).astype(int)
    return [" ".join(chance.choice(words, n)) for n in lengths]


def prepared_batches(explainer: Any, texts: list[str]) -> list[dict[str, Any]]:
    """The batches that explaining runs."""
    batches = []
    for start in range(0, len(texts), WINDOW):
        rows = [
            r for r in explainer.encode(texts[start : start + WINDOW]) if isinstance(r, Encoded)
        ]
        for chunk in by_length([len(row.ids) for row in rows], SIZE, TOKENS):
            inputs = batch(explainer.runner, explainer.tokenizer, [rows[i] for i in chunk], None)
            batches.append(dict(inputs.tensors))
    return batches


def main(
    data: Annotated[list[Path] | None, typer.Argument()] = None,
    threads: int = 1,
    rounds: int = 5,
    model: str = "sentiment",
) -> None:
    """Prints the rates and their ratio."""
    torch.set_num_threads(threads)
    keep_heap()
    explainer = load(model)
    set_objects_aside()
    texts = [text for path in data or [] for text in read_table(path).texts]
    texts = texts or sentences(explainer.tokenizer)
    batches = prepared_batches(explainer, texts)

    def forward() -> None:
        with torch.inference_mode():
            for tensors in batches:
                explainer.runner.model(**tensors)

    def explain() -> None:
        with tempfile.TemporaryDirectory() as out:
            overview(
                explain_corpus(
                    explainer, texts, "lrp", batch_size=SIZE, tokens=TOKENS, window=WINDOW, out=out
                )
            )

    seconds = turns({"forward": forward, "explain": explain}, rounds, clock=time.process_time)
    rates = {name: len(texts) / time_taken for name, time_taken in seconds.items()}
    typer.echo(f"{explainer.runner.name}, {len(texts)} texts in {len(batches)} batches, lrp")
    typer.echo(f"  bare forward pass   {rates['forward']:7.1f} texts/s")
    typer.echo(f"  explained           {rates['explain']:7.1f} texts/s")
    typer.echo(f"  ratio               {rates['explain'] / rates['forward']:.3f}   (goal: 0.5)")


if __name__ == "__main__":
    typer.run(main)
