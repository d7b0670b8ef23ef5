"""What every method costs, each as a ratio in one run.

    python -m benchmarks.methods [--threads 2]

BERT-base with random weights, 8 × 128 tokens. The sides take turns; the ratio is that of medians.
"""

from __future__ import annotations

import time

import networkx
import torch
import typer
from captum.attr import LayerIntegratedGradients
from torch import Tensor

from benchmarks.cost import bert_base, plain, tokens, turns
from wherefrom.core.runner import ModelRunner
from wherefrom.core.target import Case, Target
from wherefrom.methods import method
from wherefrom.methods.attention import flows
from wherefrom.methods.attention_maps import capture

BARS = {
    "lrp": 0.95,
    "gae": 1.5,
    "gradient_rollout": 1.5,
    "transformer_attribution": 5.0,
    "dix": 26.0,
    "integrated_gradients": 32 * 1.05,
}


def main(threads: int = 2, rounds: int = 3, flow: bool = True) -> None:
    """Prints the table."""
    torch.set_num_threads(threads)
    model, inputs = bert_base(), tokens(8, 128)
    runner, target = ModelRunner(model), Target(torch.zeros(8, dtype=torch.long))
    typer.echo(f"BERT-base, 8 × 128, {threads} thread(s); gradient × input by plain autograd = 1")
    typer.echo("| method | ratio | bar |\n|---|---|---|")
    for name, bar in BARS.items():
        # one plain pass for each passage of a long method, so that both see the same machine
        repeat = 4 if bar > 10 else 1
        taken = turns(
            {
                "plain": lambda: plain(model, inputs, target),
                name: lambda name=name: method(name).scores(Case(runner, inputs, target)),  # type: ignore[misc]
                "plain again": lambda repeat=repeat: [  # type: ignore[misc]
                    plain(model, inputs, target) for _ in range(repeat)
                ],
            },
            1 if bar > 10 else rounds,
            warm=0 if bar > 10 else 1,
        )
        base = (taken["plain"] + taken["plain again"]) / (1 + repeat)
        typer.echo(f"| {name} | {taken[name] / base:.2f} | ≤ {bar:.2f} |")
    beside_captum(runner, target)
    if flow:
        beside_networkx(runner, target)


def beside_captum(runner: ModelRunner, target: Target) -> None:
    """Integrated gradients at equal steps and batch, beside Captum's on the embedding layer."""
    inputs, steps = tokens(8, 128), 8
    ids, mask = inputs.tensors["input_ids"], inputs.tensors["attention_mask"]
    model = runner.model

    def forward(ids: Tensor, mask: Tensor) -> Tensor:
        return model(input_ids=ids, attention_mask=mask).logits[:, 0]

    layer = LayerIntegratedGradients(forward, model.get_input_embeddings())
    taken = turns(
        {
            "captum": lambda: layer.attribute(
                ids, baselines=torch.zeros_like(ids), additional_forward_args=(mask,),
                n_steps=steps, internal_batch_size=8,
            ),
            "wherefrom": lambda: method("integrated_gradients", steps=steps).scores(
                Case(runner, inputs, target)
            ),
        },
        1,
        warm=0,
    )  # fmt: skip
    ratio = taken["wherefrom"] / taken["captum"]
    typer.echo(f"| integrated_gradients, {steps} steps, of Captum's time | {ratio:.2f} | ≤ 1.00 |")


def beside_networkx(runner: ModelRunner, target: Target) -> None:
    """Attention flow of one sentence, readout to all inputs, beside networkx for one pair."""
    seen = capture(
        Case(runner, tokens(1, 128), Target(torch.zeros(1, dtype=torch.long))), gradients=False
    )
    steps = [each.mean(1)[0].double() for each in seen.maps]
    start = {n: s[0].double() for n, s in seen.start("auto").items()}
    began = time.perf_counter()
    flows(steps, seen.streams, start)
    each = (time.perf_counter() - began) / 128
    graph = networkx.DiGraph()
    for level, step in enumerate(steps):
        share = (step + torch.eye(128, dtype=step.dtype)) / (1 + step.sum(-1, keepdim=True))
        for i, row in enumerate(share.tolist()):
            for j, room in enumerate(row):
                graph.add_edge((level + 1, i), (level, j), capacity=room)
    top = int(start[0].argmax())
    began = time.perf_counter()
    networkx.maximum_flow_value(graph, (len(steps), top), (0, 5))
    theirs = time.perf_counter() - began
    typer.echo(
        f"| attention_flow, a pair in {1000 * each:.1f} ms; networkx is slower by | "
        f"{theirs / each:.0f} × | ≥ 100 |"
    )


if __name__ == "__main__":
    typer.run(main)
