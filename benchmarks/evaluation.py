"""The cost of an evaluation, compared with bare forward passes and with a plain loop.

    python -m benchmarks.evaluation [--data reviews.csv] [--sample 32] [--values 60000]

On the embedded model. Efficiency is the time of the bare model on the same batches over the time
of the evaluation without its explanations. Two loops run each perturbed input of each sample and
method alone: one like the code published with Ali et al. 2022 (autograd on, a loss computed, the
whole text run again for each method and metric), the other in inference mode. All take turns with
the evaluation, and medians are compared. At last, time and memory of one bootstrap interval.
"""

from __future__ import annotations

import itertools
import statistics
import time
import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor
from torch.nn.functional import cross_entropy

import wherefrom
from wherefrom.core.runner import ModelRunner
from wherefrom.evaluation.metrics import METRICS, Sample
from wherefrom.evaluation.results import summarise
from wherefrom.explainer import Explainer

# those that the paper compares
METHODS = (
    "random", "attention_last", "attention_rollout", "gae", "gradient_x_input", "lrp_ah",
    "lrp_ah_ln",
)  # fmt: skip
TESTS = ("activation", "pruning")


@dataclass(frozen=True)
class Recorded(ModelRunner):
    """Records the batches that run without gradients: those of the perturbed inputs."""

    batches: list[Mapping[str, Tensor]] = field(default_factory=list)

    def run(self, tensors: Mapping[str, Tensor], positions: Tensor | None = None) -> Tensor:
        if torch.is_inference_mode_enabled():
            self.batches.append(tensors)
        return super().run(tensors, positions)


def sentences(count: int) -> list[str]:
    """Made-up reviews of four to forty words."""
    openings = ("the film", "this long and winding story", "a cast of old friends", "the script")
    verbs = ("is", "never was", "tries hard to be", "turns out to be")
    praise = ("charming", "dull", "a small wonder", "tired and hollow", "sharp , funny and warm")
    links = (", and yet", "; still ,", ", though for once", "because in the end")
    every = list(itertools.product(openings, verbs, praise, links))
    chance = np.random.default_rng(0)
    texts = []
    for number in chance.permutation(len(every) * 4)[:count]:
        parts = [every[(number * step) % len(every)] for step in (1, 7, 13, 29)]
        clauses = [f"{a} {b} {c} {d}" for a, b, c, d in parts[: 1 + number % 4]]
        texts.append(" ".join(clauses).rpartition(" ")[0] + " .")
    return texts


def alone(
    explainer: Explainer, by_method: dict[str, list[wherefrom.Explanation]], original: bool
) -> dict[str, list[float]]:
    """The values of all metrics, every perturbed input run by itself."""
    model, blank = explainer.runner.model, explainer.tokenizer.unk_token_id
    values: dict[str, list[float]] = {}
    with torch.inference_mode(not original):
        for name, explanations in by_method.items():
            for explanation in explanations:
                ids = explainer.tokenizer(explanation.text, return_tensors="pt")["input_ids"]
                erasable = np.ones(ids.shape[1], dtype=bool)
                target = explanation.target.index
                sample = Sample(explanation, erasable, target, every=False)
                for test in TESTS:
                    if original:
                        model(input_ids=ids)
                    rows = []
                    for mask in METRICS[test].masks(sample):
                        erased = torch.where(torch.from_numpy(mask), ids, blank)
                        logits = model(input_ids=erased).logits
                        if original:
                            cross_entropy(logits, torch.tensor([target]))
                        rows.append(logits[0].detach().double().numpy())
                    value, _ = METRICS[test].value(sample, np.stack(rows))
                    values.setdefault(f"{name} {test}", []).append(value)
    return values


def interval_cost(count: int) -> tuple[float, int]:
    """Seconds and peak bytes of one bootstrap interval."""
    numbers = np.random.default_rng(0).random(count)
    start = time.perf_counter()
    summarise(numbers)
    taken = time.perf_counter() - start
    tracemalloc.start()
    summarise(numbers)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return taken, peak


def main(
    data: Annotated[Path | None, typer.Option(help="Table of texts; default: generated.")] = None,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = torch.get_num_threads(),
    sample: Annotated[int, typer.Option(help="Number of texts.")] = 32,
    rounds: Annotated[int, typer.Option(help="Number of runs.")] = 3,
    values: Annotated[int, typer.Option(help="Values of the interval.")] = 60_000,
) -> None:
    """Prints the times and their ratios."""
    torch.set_num_threads(threads)
    explainer = wherefrom.load("sentiment")
    explainer.runner = Recorded(explainer.runner.model)
    batches = explainer.runner.batches
    texts = sentences(sample) if data is None else wherefrom.read_table(data).texts[:sample]
    by_method = {name: explainer(texts, name) for name in METHODS}
    seconds: dict[str, list[float]] = {
        "evaluation": [],
        "bare": [],
        "original": [],
        "inference": [],
    }
    for _ in range(rounds):
        batches.clear()
        result = wherefrom.evaluate(explainer, texts, METHODS, TESTS)
        seconds["evaluation"].append(result.timing["seconds"] - result.timing["explaining"])
        start = time.perf_counter()
        with torch.inference_mode():
            for tensors in batches:
                explainer.runner.model(**tensors)
        seconds["bare"].append(time.perf_counter() - start)
        for name in ("original", "inference"):
            start = time.perf_counter()
            areas = alone(explainer, by_method, original=name == "original")
            seconds[name].append(time.perf_counter() - start)
    whole, bare, original, inference = (statistics.median(runs) for runs in seconds.values())
    gaps = [
        np.abs(np.array(areas[f"{name} {test}"]) - result.values[name][test]).max()
        for name in METHODS
        for test in TESTS
    ]
    timing = result.timing
    typer.echo(
        f"{len(texts)} texts × {len(METHODS)} methods × {len(TESTS)} metrics, embedded model, "
        f"{threads} thread(s): {timing['requested']:.0f} perturbed inputs requested, "
        f"{timing['computed']:.0f} distinct"
    )
    typer.echo(f"  evaluation without explanations {whole:8.2f} s")
    typer.echo(f"  bare forward on its batches     {bare:8.2f} s   efficiency {bare / whole:.2f}")
    typer.echo(f"  one by one, as published        {original:8.2f} s   {original / whole:.1f} ×")
    typer.echo(f"  one by one, in inference mode   {inference:8.2f} s   {inference / whole:.1f} ×")
    typer.echo(f"  largest difference of a value from the loop's: {max(gaps):.1e}")
    taken, peak = interval_cost(values)
    typer.echo(f"  interval of {values:,} values: {taken:.2f} s, {peak / 2**20:.0f} MB")


if __name__ == "__main__":
    typer.run(main)
