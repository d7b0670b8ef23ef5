"""What an evaluation costs beside the model's bare forward passes, and beside a plain loop.

    python -m benchmarks.evaluation [--data reviews.csv] [--sample 32]

On the embedded model, one thread. Efficiency is the time of the bare model on the very batches that
the evaluation made, over the time of the evaluation without its explanations. Two loops run each
perturbed input of each sample and method alone: the one as the code published with Ali et al. 2022
does (autograd on, a loss computed, the whole text run anew for each method and metric), the other
in inference mode. All take turns with the evaluation, and medians are compared.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor

import wherefrom
from wherefrom.evaluation.metrics import METRICS, Sample
from wherefrom.explain import Explainer
from wherefrom.subject import Subject

# those that the paper compares
METHODS = (
    "random", "attention_last", "attention_rollout", "gae", "gradient_x_input", "lrp_ah",
    "lrp_ah_ln",
)  # fmt: skip
TESTS = ("activation", "pruning")


@dataclass(frozen=True)
class Recorded(Subject):
    """Keeps the batches that are run without gradients: those of the perturbed inputs."""

    batches: list[Mapping[str, Tensor]] = field(default_factory=list)

    def run(self, tensors: Mapping[str, Tensor]) -> Tensor:
        if torch.is_inference_mode_enabled():
            self.batches.append(tensors)
        return super().run(tensors)


def sentences(count: int) -> list[str]:
    """Made-up reviews of four to forty words."""
    openings = ("the film", "this long and winding story", "a cast of old friends", "the script")
    verbs = ("is", "never was", "tries hard to be", "turns out to be")
    praise = ("charming", "dull", "a small wonder", "tired and hollow", "sharp , funny and warm")
    links = (", and yet", "; still ,", ", though for once", "because in the end")
    every = list(itertools.product(openings, verbs, praise, links))
    chance = np.random.default_rng(0)
    made = []
    for number in chance.permutation(len(every) * 4)[:count]:
        parts = [every[(number * step) % len(every)] for step in (1, 7, 13, 29)]
        clauses = [f"{a} {b} {c} {d}" for a, b, c, d in parts[: 1 + number % 4]]
        made.append(" ".join(clauses).rpartition(" ")[0] + " .")
    return made


def alone(
    explainer: Explainer, found: dict[str, list[wherefrom.Explanation]], original: bool
) -> dict[str, list[float]]:
    """The values of all metrics, every perturbed input run by itself."""
    model, blank = explainer.subject.model, explainer.tokenizer.unk_token_id
    values: dict[str, list[float]] = {}
    with torch.inference_mode(not original):
        for name, explanations in found.items():
            for explanation in explanations:
                ids = explainer.tokenizer(explanation.text, return_tensors="pt")["input_ids"]
                free = np.ones(ids.shape[1], dtype=bool)
                target = explanation.target.index
                sample = Sample(explanation, free, target, every=False)
                more = {"labels": torch.tensor([target])} if original else {}
                for test in TESTS:
                    if original:
                        model(input_ids=ids)
                    rows = [
                        model(input_ids=torch.where(torch.from_numpy(mask), ids, blank), **more)
                        .logits[0]
                        .detach()
                        .double()
                        .numpy()
                        for mask in METRICS[test].masks(sample)
                    ]
                    value, _ = METRICS[test].value(sample, np.stack(rows))
                    values.setdefault(f"{name} {test}", []).append(value)
    return values


def main(
    data: Annotated[Path | None, typer.Option(help="Texts in a table; default: made up.")] = None,
    threads: Annotated[int, typer.Option(help="Of torch.")] = torch.get_num_threads(),
    sample: Annotated[int, typer.Option(help="Texts of the run.")] = 32,
    rounds: int = 3,
) -> None:
    """Prints both ratios."""
    torch.set_num_threads(threads)
    explainer = wherefrom.load("sentiment")
    explainer.subject = Recorded(explainer.subject.model)
    batches = explainer.subject.batches
    texts = sentences(sample) if data is None else wherefrom.read_table(data).texts[:sample]
    found = {name: explainer(texts, name) for name in METHODS}
    taken: dict[str, list[float]] = {"pooled": [], "bare": [], "original": [], "inference": []}
    for _ in range(rounds):
        batches.clear()
        result = wherefrom.evaluate(explainer, texts, METHODS, TESTS)
        taken["pooled"].append(result.timing["seconds"] - result.timing["explaining"])
        start = time.perf_counter()
        with torch.inference_mode():
            for tensors in batches:
                explainer.subject.model(**tensors)
        taken["bare"].append(time.perf_counter() - start)
        for name in ("original", "inference"):
            start = time.perf_counter()
            values = alone(explainer, found, original=name == "original")
            taken[name].append(time.perf_counter() - start)
    pooled, bare, original, inference = (statistics.median(each) for each in taken.values())
    gaps = [
        np.abs(np.array(values[f"{name} {test}"]) - result.values[name][test]).max()
        for name in METHODS
        for test in TESTS
    ]
    timing = result.timing
    typer.echo(
        f"{len(texts)} texts × {len(METHODS)} methods × {len(TESTS)} metrics, embedded model, "
        f"{threads} thread(s): {timing['requested']:.0f} perturbed inputs requested, "
        f"{timing['computed']:.0f} distinct"
    )
    typer.echo(f"  evaluation without explanations {pooled:8.2f} s")
    typer.echo(f"  bare forward on its batches     {bare:8.2f} s   efficiency {bare / pooled:.2f}")
    typer.echo(f"  one by one, as published        {original:8.2f} s   {original / pooled:.1f} ×")
    typer.echo(f"  one by one, in inference mode   {inference:8.2f} s   {inference / pooled:.1f} ×")
    typer.echo(f"  largest difference of a value from the loop's: {max(gaps):.1e}")


if __name__ == "__main__":
    typer.run(main)
