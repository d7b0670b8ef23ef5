"""Which method is most faithful, and at what cost: the evidence for the default.

    python -m benchmarks.faithfulness --data DATA [--split test] [--sets sentiment,digits,bace]
                                      [--superpixels MODEL] [--out FOLDER] [--picture FILE]

`DATA` has the folders `sst2_glue` (CSV with text and label), `mnist` (idx files) and `bace`
(`bace.csv.gz`). Choices were made on the validation splits; the tables are of the test splits. Of
MNIST, which has no validation split, the two are disjoint draws of the test images.

Each set is evaluated by activation (AUAC), pruning (AU-MSE) and the rank correlation with
leave-one-out. Differences are paired, against `lrp` without a root, with 95 % bootstrap intervals.
The ceiling is a greedy search on the metric itself, for the first samples. Cost is the time of a
method over that of gradient × input in the same run.
"""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import typer
from torch import Tensor

import wherefrom
from training.bace import random_split
from training.bace import read as read_molecules
from training.digits import normalised
from training.mnist import read_images
from wherefrom import Inputs, Method, Scores, Subject, Target
from wherefrom.evaluation.recommendation import difference
from wherefrom.inputs.graph import Graph
from wherefrom.methods import method
from wherefrom.show.plot_style import AXIS, COLORS, GRID, saved_figure

METRICS = ("activation", "pruning", "leave_one_out")
ROOTS = {"sentiment": "unk", "digits": "zero", "bace": "zero", "superpixels": "mean"}


def methods_for(name: str) -> list[str | Method]:
    """Today's methods, and those with a root that fits the kind of input."""
    root = ROOTS[name]
    blank = root if name == "sentiment" else "zero"
    rooted: list[str | Method] = [
        method("lrp", root=root),
        method("lrp", root=root, secants="root"),
        method("attn_lrp", root=root),
        method("lrp_ah_ln", root=root),
    ]
    return [
        "gradient_x_input", "lrp_ah_ln", "lrp", "attn_lrp", *rooted, "gae",
        "transformer_attribution", "gradient_rollout",
        method("integrated_gradients", baseline=blank, steps=16),
        method("occlusion", baseline=blank), "random",
    ]  # fmt: skip


@dataclass(frozen=True)
class Greedy(Method):
    """The order that a greedy search on the metric itself finds: a ceiling, not an explanation."""

    name: ClassVar[str] = "greedy"
    metric: str = "activation"
    blank: str = "unk"

    def scores(self, subject: Subject, inputs: Inputs, target: Target) -> Scores:
        rows = [self._one(subject, inputs.take([i]), target.take([i])) for i in range(len(inputs))]
        return Scores(torch.cat(rows))

    def _one(self, subject: Subject, inputs: Inputs, target: Target) -> Tensor:
        name = inputs.fields[0]
        ids = inputs.tensors[name][0]
        units = inputs.mask[0].nonzero().flatten().tolist()
        blank = inputs.token_id(self.blank)
        adds = self.metric == "activation"
        present = torch.zeros(len(ids), dtype=torch.bool)
        present[units] = not adds
        whole = self._logits(subject, inputs, ids.unsqueeze(0))
        scores = torch.zeros(1, len(ids), dtype=torch.float64)
        left = list(units)
        for step in range(len(units)):
            tries = present.repeat(len(left), 1)
            tries[range(len(left)), left] = adds
            logits = self._logits(subject, inputs, torch.where(tries, ids, blank))
            if adds:
                gain = target.take([0] * len(left)).row(logits).softmax(-1)
                index = target.resolved(whole).index
                assert index is not None
                gain = gain[:, int(index[0])]
            else:
                gain = -(logits - whole).square().sum(-1)
            best = left.pop(int(gain.argmax()))
            present[best] = adds
            # put back first: the highest score; erased first: the lowest
            scores[0, best] = len(units) - step if adds else step + 1
        return scores

    @staticmethod
    def _logits(subject: Subject, inputs: Inputs, ids: Tensor) -> Tensor:
        tensors = {
            name: tensor.expand(len(ids), *tensor.shape[1:])
            for name, tensor in inputs.tensors.items()
        }
        with subject.evaluating(), torch.no_grad():
            return subject.run({**tensors, inputs.fields[0]: ids})


def samples(
    name: str, data: Path, split: str, count: int, model: Path | None
) -> tuple[Any, list[tuple[Any, int]]]:
    """The model and the inputs with their labels, a seeded draw of a split."""
    draw = np.random.default_rng(0)
    if name == "sentiment":
        with gzip.open(data / "sst2_glue" / f"{split}.csv.gz", "rt", encoding="utf-8") as file:
            rows = [(row["text"], int(row["label"])) for row in csv.DictReader(file)]
        drawn = draw.choice(len(rows), min(count, len(rows)), replace=False)
        return wherefrom.load("sentiment"), [rows[i] for i in drawn]
    if name == "bace":
        molecules = read_molecules(data / "bace")
        numbers = random_split(molecules.labels)["test" if split == "test" else "validation"]
        chosen = [int(i) for i in numbers][:count]
        return wherefrom.load("bace"), [
            (molecules.graphs[i], int(molecules.labels[i])) for i in chosen
        ]
    images, digits = read_images(data / "mnist", "test")
    both = draw.choice(len(images), 2 * count, replace=False)
    chosen = (both[:count] if split == "test" else both[count:]).tolist()
    if name == "digits":
        pixels = normalised(images)
        return wherefrom.load("digits"), [(pixels[i], int(digits[i])) for i in chosen]
    if model is None:
        raise typer.BadParameter("the set superpixels needs --superpixels MODEL")
    return wherefrom.load(model), [
        (Graph.superpixels(images[i].numpy()), int(digits[i])) for i in chosen
    ]


def measure(name: str, explainer: Any, rows: list[tuple[Any, int]], ceiling: int) -> dict[str, Any]:
    """Means, paired differences to `lrp`, costs, and the ceiling for the first samples."""
    result = wherefrom.evaluate(explainer, rows, methods_for(name), METRICS)
    seconds = result.seconds
    table: dict[str, Any] = {}
    for label in result.methods:
        table[label] = {"cost": seconds[label] / seconds["gradient_x_input"]}
        for metric in METRICS:
            values = result.values[label][metric]
            low, high = difference(values, result.values["lrp"][metric])
            table[label][metric] = {"mean": float(np.mean(values)), "difference": [low, high]}
    report = {"samples": result.samples, "methods": table, "use": result.recommendation.text}
    if name == "sentiment" and ceiling:
        found = wherefrom.evaluate(
            explainer,
            rows[:ceiling],
            ["lrp", Greedy("activation"), Greedy("pruning")],
            ("activation", "pruning"),
        )
        report["ceiling"] = {
            "samples": found.samples,
            "lrp": {m: float(np.mean(found.values["lrp"][m])) for m in found.metrics},
            "greedy": {
                "activation": float(np.mean(found.values["greedy"]["activation"])),
                "pruning": float(np.mean(found.values["greedy(metric=pruning)"]["pruning"])),
            },
        }
    return report


def markdown(reports: dict[str, dict[str, Any]]) -> str:
    """A table for each set."""
    lines = []
    for name, report in reports.items():
        lines += [
            f"**{name}**, {report['samples']} samples",
            "",
            "| method | cost | AUAC ↑ | AU-MSE ↓ | ρ ↑ |",
            "|---|---|---|---|---|",
        ]
        for label, row in report["methods"].items():
            cells = []
            for metric in METRICS:
                low, high = row[metric]["difference"]
                mark = "" if low <= 0 <= high else " ▲" if low > 0 else " ▼"
                cells.append(f"{row[metric]['mean']:.3f}{mark}")
            lines.append(f"| `{label}` | {row['cost']:.1f} | {' | '.join(cells)} |")
        lines += ["", report["use"], ""]
        if "ceiling" in report:
            ceiling = report["ceiling"]
            lines += [
                f"Ceiling by greedy search, first {ceiling['samples']} samples: AUAC "
                f"{ceiling['greedy']['activation']:.3f} (`lrp` {ceiling['lrp']['activation']:.3f})"
                f", AU-MSE {ceiling['greedy']['pruning']:.2f} (`lrp` "
                f"{ceiling['lrp']['pruning']:.2f}).",
                "",
            ]
    return "\n".join(lines)


SHORT = {
    "integrated_gradients": "IG",
    "transformer_attribution": "Chefer 2021",
    "gradient_x_input": "gradient × input",
    "gradient_rollout": "gradient rollout",
}


def _short(label: str) -> str:
    """A label that fits beside a point: only the settings that tell variants of `lrp` apart."""
    name, _, settings = label.partition("(")
    if "secants=root" in settings:
        return f"{name}, root + secants"
    return f"{name}, root" if "root=" in settings else SHORT.get(name, name)


def figure(reports: dict[str, dict[str, Any]], path: Path) -> None:
    """Cost against AU-MSE and AUAC, every method a point; the best are bottom and top left."""
    sizes = {"squeeze": False, "sharex": True}
    with saved_figure(path, figsize=(4.6 * len(reports), 6.4), layout="constrained") as drawing:
        axes = drawing.subplots(2, len(reports), **sizes)
        for column, (name, report) in enumerate(reports.items()):
            for row, metric in enumerate(("pruning", "activation")):
                plot = axes[row][column]
                for label, numbers in report["methods"].items():
                    if label == "random":
                        continue
                    mean, cost = numbers[metric]["mean"], max(numbers["cost"], 0.3)
                    ours = label.startswith("lrp(")
                    plot.scatter(cost, mean, s=36, color=COLORS[1] if ours else COLORS[0])
                    plot.annotate(
                        _short(label), (cost, mean), xytext=(4, 3), textcoords="offset points",
                        fontsize=7, color=COLORS[1] if ours else AXIS,
                    )  # fmt: skip
                plot.set_xscale("log")
                plot.set_ylabel(
                    "AU-MSE (lower is better)" if row == 0 else "AUAC (higher is better)"
                )
                plot.grid(color=GRID)
            axes[0][column].set_title(f"{name}, {report['samples']} samples")
            axes[1][column].set_xlabel("cost, gradient × input = 1")


def main(
    data: Annotated[Path, typer.Option(help="The folder with the data sets.")],
    split: Annotated[str, typer.Option(help="validation or test.")] = "test",
    sets: Annotated[str, typer.Option(help="Comma-separated.")] = "sentiment,digits,bace",
    superpixels: Annotated[Path | None, typer.Option(help="A model of superpixels.")] = None,
    count: Annotated[int, typer.Option(help="Samples of each set.")] = 200,
    ceiling: Annotated[int, typer.Option(help="Samples of the greedy search.")] = 50,
    out: Annotated[Path | None, typer.Option(help="Where the numbers go, as JSON.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Where the figure goes.")] = None,
) -> None:
    """Prints a table for each set; writes the numbers and the figure where asked."""
    torch.set_num_threads(1)
    reports: dict[str, dict[str, Any]] = {}
    for name in sets.split(","):
        explainer, rows = samples(name, data, split, count, superpixels)
        reports[name] = measure(name, explainer, rows, ceiling)
        typer.echo(markdown({name: reports[name]}))
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            (out / f"{split}.json").write_text(json.dumps(reports, indent=1) + "\n")
    if picture is not None:
        figure(reports, picture)


if __name__ == "__main__":
    typer.run(main)
