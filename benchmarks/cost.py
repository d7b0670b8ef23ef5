"""What methods cost, as ratios to gradient × input by plain autograd in the same run.

    python -m benchmarks.cost [--threads 1] [--only vit]

The machine may be shared: the two sides take turns, and the ratio is that of their medians. With
one thread it is processor time that counts, which what else runs does not touch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

from wherefrom.core.explanation import Unit
from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.core.target import Case, Target
from wherefrom.inputs.image import ImageReader
from wherefrom.methods import method
from wherefrom.methods.forward_graph import ForwardGraph
from wherefrom.methods.propagation import Lrp


def bert_base() -> Any:
    """BERT-base with random weights."""
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig()).eval()


def tokens(batch: int, length: int, vocabulary: int = 30_000, missing: str = "unk") -> Batch:
    """Random ids as inputs, with the root that a reader of texts would name."""
    torch.manual_seed(1)
    ids = torch.randint(5, vocabulary, (batch, length))
    return Batch(
        tensors={"input_ids": ids, "attention_mask": torch.ones_like(ids)},
        fields=("input_ids",),
        units=(tuple(map(Unit, map(str, range(length)))),) * batch,
        mask=torch.ones(batch, length, dtype=torch.bool),
        texts=(None,) * batch,
        blanks={"unk": 1},
        missing=missing,
    )


def plain(model: Any, inputs: Batch, target: Target) -> Tensor:
    """Gradient × input as anyone would write it."""
    embedded = model.get_input_embeddings()(inputs.tensors["input_ids"]).detach().requires_grad_()
    logits = model(inputs_embeds=embedded, attention_mask=inputs.tensors["attention_mask"]).logits
    (gradient,) = torch.autograd.grad(target(logits).sum(), embedded)
    return (gradient * embedded.detach()).sum(-1)


def vit_base() -> Any:
    """ViT-B/16 at 224 pixels with random weights."""
    torch.manual_seed(0)
    return ViTForImageClassification(ViTConfig()).eval()


def plain_at_pixels(model: Any, pixels: Tensor, target: Target) -> Tensor:
    """Gradient × input of an image's pixels, added up over patches of 16."""
    given = pixels.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(target(model(given).logits).sum(), given)
    whole = (gradient * pixels).sum(1)  # (B, H, W)
    return whole.unflatten(1, (-1, 16)).unflatten(3, (-1, 16)).sum((2, 4)).flatten(1)


def turns(
    sides: dict[str, Callable[[], object]],
    rounds: int,
    warm: int = 1,
    clock: Callable[[], float] | None = None,
) -> dict[str, float]:
    """The median seconds of each side, run in turn, after `warm` rounds that do not count."""
    alone = torch.get_num_threads() == 1  # then time given to others is none of ours
    clock = clock or (time.process_time if alone else time.perf_counter)
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + warm):
        for name, run in sides.items():
            start = clock()
            run()
            taken[name].append(clock() - start)
    return {name: statistics.median(values[warm:]) for name, values in taken.items()}


def main(
    threads: int = 1,
    rounds: int = 7,
    only: Annotated[str | None, typer.Option(help="bert, vit or memory.")] = None,
) -> None:
    """Prints the ratios."""
    torch.set_num_threads(threads)
    target = Target(torch.zeros(8, dtype=torch.long))
    if only in (None, "bert"):
        model, inputs = bert_base(), tokens(8, 128)
        _compare(
            f"BERT-base, 8 × 128, {threads} thread(s)",
            lambda: plain(model, inputs, target),
            ModelRunner(model),
            inputs,
            target,
            rounds,
        )
    if only in (None, "vit"):
        seer = vit_base()
        pixels = torch.randn(4, 3, 224, 224)
        reader = ImageReader(ModelRunner(seer))
        images = reader.batch([reader.read(image) for image in pixels])
        first = target.take([0, 1, 2, 3])
        _compare(
            f"ViT-B/16, 4 × 224 × 224, {threads} thread(s)",
            lambda: plain_at_pixels(seer, pixels, first),
            reader.runner,
            images,
            first,
            rounds,
        )
    if only in (None, "memory"):
        _memory_over_length()


def _compare(
    title: str,
    plainly: Callable[[], Tensor],
    runner: ModelRunner,
    inputs: Batch,
    target: Target,
    rounds: int,
) -> None:
    frozen = method("lrp", gate="frozen", attention=0, root=None)
    lrp, case = Lrp().resolved(inputs), Case(runner, inputs, target)
    found = turns(
        {
            "plain": plainly,
            "lrp without ledger": lambda: ForwardGraph.of(
                lrp.table(), case, rooted=lrp.rooted(), ledger=False
            ).scores(target),
            "lrp": lambda: lrp.scores(case),
            "lrp, rules of CP-LRP": lambda: frozen.scores(case),
            "lrp_ah_ln": lambda: method("lrp_ah_ln").scores(case),
        },
        rounds,
    )
    typer.echo(f"{title}; plain gradient × input = 1")
    for name, seconds in found.items():
        typer.echo(f"  {name:20} {seconds / found['plain']:.3f}   ({seconds:.3f} s)")
    typer.echo(f"  the ledger adds {found['lrp'] / found['lrp without ledger'] - 1:+.1%}")


def _memory_over_length() -> None:
    """Peak memory of tensors kept for the backward pass, by length, on a decoder."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=4, vocab_size=1000, max_position_embeddings=8192,
        )
    ).eval()  # fmt: skip
    typer.echo("memory kept for the backward pass of lrp on a 4-layer decoder, by length")
    for length in (1024, 2048, 4096):
        kept: dict[int, int] = {}

        def keep(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        inputs = tokens(1, length, 1000)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            method("lrp").scores(
                Case(ModelRunner(model), inputs, Target(position=torch.tensor([-1])))
            )
        size = sum(kept.values()) / 2**20
        typer.echo(
            f"  {length:5d} tokens  {size:8.1f} MiB   {1024 * size / length:.2f} KiB a token"
        )


if __name__ == "__main__":
    typer.run(main)
