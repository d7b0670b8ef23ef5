"""Which method is most faithful, and at what cost: the evidence for the defaults.

    python -m benchmarks.faithfulness --data DATA [--split test] [--sets sentiment,digits,bace]
                                      [--encoders FOLDER] [--superpixels MODEL] [--roots]
                                      [--no-agreement] [--out FILE] [--picture FILE]

`DATA` has the folders `sst2_glue` (CSV with text and label), `mnist` (idx files) and `bace`
(`bace.csv.gz`). Any other set is a folder of `DATA` with texts; its model is the folder of the same
name in `FOLDER` (`training/encoder.py`). Choices were made on the validation splits; the tables are
of the test splits. Of MNIST both are of the test images, drawn from disjoint halves.

Each set is evaluated by activation (AUAC), pruning (AU-MSE) and the rank correlation with
leave-one-out; texts also by agreement with Shapley values of their tokens, special tokens present.
Differences are paired, against the default method, with 95 % bootstrap intervals. `--roots`
compares references of `secant` instead of methods. The ceiling is a greedy search on the metric
itself, for the first samples. Cost is the time of a method over that of gradient × input in the
same run. What `--out` has already is not run again.
"""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import typer
from torch import Tensor

import wherefrom
from training.bace import random_split
from training.bace import read as read_molecules
from training.digits import normalised
from training.mnist import read_images
from wherefrom import Batch, Method, ModelRunner, Scores
from wherefrom.core.target import Case
from wherefrom.evaluation.metrics import ShapleyAgreement
from wherefrom.evaluation.recommendation import difference
from wherefrom.inputs.graph import Graph
from wherefrom.methods import method
from wherefrom.show.plot_style import AXIS, COLORS, GRID, saved_figure
from wherefrom.storage.writing import write_text

METRICS = ("activation", "pruning", "leave_one_out")
_STATISTICS: tuple[Literal["r", "slope", "error"], ...] = ("r", "error", "slope")
SHAPLEY = tuple(ShapleyAgreement(statistic, budget=2048) for statistic in _STATISTICS)
TITLES = {"activation": "AUAC ↑", "pruning": "AU-MSE ↓", "leave_one_out": "ρ ↑"} | {
    metric.name: f"{metric.title} {arrow}"
    for metric, arrow in zip(SHAPLEY, ("↑", "↓", "→ 1"), strict=True)
}
EMBEDDED = ("sentiment", "digits", "bace")
BLANKS = {"digits": "zero", "bace": "zero", "superpixels": "mean"}  # of other sets: "unk"


def methods_for(name: str) -> list[str | Method]:
    """The default, the rules as published, and other methods; fewer of the further texts."""
    blank = BLANKS.get(name, "unk")
    path: list[str | Method] = [
        method(
            "integrated_gradients", baseline="zero" if name == "superpixels" else blank, steps=16
        ),
        method("occlusion", baseline="zero" if name == "superpixels" else blank),
    ]
    secants: list[str | Method] = [
        method("secant", root=blank),
        method("secant", root=blank, splits=1),
    ]
    if name not in (*EMBEDDED, "superpixels"):
        return [
            "gradient_x_input",
            "lrp",
            *secants,
            method("attn_lrp", root=blank),
            *path,
            "random",
        ]
    return [
        "gradient_x_input", "lrp_ah_ln", "attn_lrp", "lrp", *secants,
        method("secant", root=blank, splits=2), method("lrp", attention=0, root=None),
        method("lrp", attention=0.25, root=None), method("lrp", attention=0.25, root=blank),
        method("lrp", attention=0, root=blank), method("attn_lrp", root=blank),
        method("lrp_ah_ln", root=blank), "gae", "transformer_attribution", "gradient_rollout",
        *path, "random",
    ]  # fmt: skip


def default_of(name: str) -> str:
    """The label of the default method."""
    return "lrp" if name in BLANKS else "secant(root=unk)"


def with_roots(name: str) -> list[str | Method]:
    """`secant` with every kind of reference for these inputs."""
    texts, images = ("unk", "mask", "pad", "mean", "zero"), ("zero", "mean", "blur")
    roots = images if name == "digits" else ("zero", "mean") if name in BLANKS else texts
    return ["gradient_x_input", "lrp", *(method("secant", root=root) for root in roots)]


@dataclass(frozen=True)
class Greedy(Method):
    """The order that a greedy search on the metric itself finds: a ceiling, not an explanation."""

    name: ClassVar[str] = "greedy"
    metric: str = "activation"
    blank: str = "unk"

    def scores(self, case: Case) -> Scores:
        return Scores(torch.cat([self._one(case.take([i])) for i in range(len(case.batch))]))

    def _one(self, case: Case) -> Tensor:
        runner, inputs, target = case.runner, case.batch, case.target
        name = inputs.fields[0]
        ids = inputs.tensors[name][0]
        units = inputs.mask[0].nonzero().flatten().tolist()
        blank = inputs.token_id(self.blank)
        adds = self.metric == "activation"
        present = torch.zeros(len(ids), dtype=torch.bool)
        present[units] = not adds
        whole = self._logits(runner, inputs, ids.unsqueeze(0))
        scores = torch.zeros(1, len(ids), dtype=torch.float64)
        left = list(units)
        for step in range(len(units)):
            tries = present.repeat(len(left), 1)
            tries[range(len(left)), left] = adds
            logits = self._logits(runner, inputs, torch.where(tries, ids, blank))
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
    def _logits(runner: ModelRunner, inputs: Batch, ids: Tensor) -> Tensor:
        tensors = {
            name: tensor.expand(len(ids), *tensor.shape[1:])
            for name, tensor in inputs.tensors.items()
        }
        with runner.evaluating(), torch.no_grad():
            return runner.run({**tensors, inputs.fields[0]: ids})


def samples(
    name: str, data: Path, split: str, count: int, model: Path | None, encoders: Path | None
) -> tuple[Any, list[tuple[Any, int]]]:
    """The model and the inputs with their labels, a seeded draw of a split."""
    draw = np.random.default_rng(0)
    if name not in ("digits", "bace", "superpixels"):
        folder = data / ("sst2_glue" if name == "sentiment" else name)
        with gzip.open(folder / f"{split}.csv.gz", "rt", encoding="utf-8", newline="") as file:
            rows = [(row["text"], int(row["label"])) for row in csv.DictReader(file)]
        rows = [row for row in rows if row[0].strip()]
        drawn = draw.choice(len(rows), min(count, len(rows)), replace=False)
        if name != "sentiment" and encoders is None:
            raise typer.BadParameter(f"the set {name} needs --encoders FOLDER")
        source = name if encoders is None or name == "sentiment" else encoders / name
        return wherefrom.load(source), [rows[i] for i in drawn]
    if name == "bace":
        molecules = read_molecules(data / "bace")
        numbers = random_split(molecules.labels)["test" if split == "test" else "validation"]
        chosen = [int(i) for i in numbers][:count]
        return wherefrom.load("bace"), [
            (molecules.graphs[i], int(molecules.labels[i])) for i in chosen
        ]
    images, digits = read_images(data / "mnist", "test")
    order, half = draw.permutation(len(images)), len(images) // 2
    drawn = order[:half] if split == "test" else order[half:]  # disjoint whatever the counts
    chosen = drawn[:count].tolist()
    if name == "digits":
        pixels = normalised(images)
        return wherefrom.load("digits"), [(pixels[i], int(digits[i])) for i in chosen]
    if model is None:
        raise typer.BadParameter("the set superpixels needs --superpixels MODEL")
    return wherefrom.load(model), [
        (Graph.superpixels(images[i].numpy()), int(digits[i])) for i in chosen
    ]


def measure(
    name: str,
    explainer: Any,
    rows: list[tuple[Any, int]],
    ceiling: int,
    roots: bool,
    agreement: bool,
) -> dict[str, Any]:
    """Means, paired differences to the default, costs, and the ceiling for the first samples."""
    methods = with_roots(name) if roots else methods_for(name)
    result = wherefrom.evaluate(explainer, rows, methods, METRICS, truncate=True)
    results = dict.fromkeys(METRICS, result)
    if agreement and name not in BLANKS:
        agreeing = wherefrom.evaluate(
            explainer, rows, methods, SHAPLEY, keep_special=True, truncate=True
        )
        results |= {metric.name: agreeing for metric in SHAPLEY}
    seconds, default = result.seconds, default_of(name)
    table: dict[str, Any] = {}
    for label in result.methods:
        table[label] = {"cost": seconds[label] / seconds["gradient_x_input"]}
        for metric, found in results.items():
            values = found.values[label][metric]
            low, high = difference(values, found.values[default][metric])
            table[label][metric] = {"mean": float(np.mean(values)), "difference": [low, high]}
    assert result.recommendation is not None
    report = {"samples": result.samples, "methods": table, "use": result.recommendation.text}
    if name == "sentiment" and ceiling:
        found = wherefrom.evaluate(
            explainer,
            rows[:ceiling],
            [method("secant", root="unk"), Greedy("activation"), Greedy("pruning")],
            ("activation", "pruning"),
        )
        own = found.values["secant(root=unk)"]
        report["ceiling"] = {
            "samples": found.samples,
            "secant": {metric: float(np.mean(own[metric])) for metric in found.metrics},
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
        metrics = [metric for metric in TITLES if metric in next(iter(report["methods"].values()))]
        lines += [
            f"**{name}**, {report['samples']} samples",
            "",
            f"| method | cost | {' | '.join(TITLES[metric] for metric in metrics)} |",
            "|---" * (2 + len(metrics)) + "|",
        ]
        for label, row in report["methods"].items():
            cells = []
            for metric in metrics:
                low, high = row[metric]["difference"]
                mark = "" if low <= 0 <= high else " ▲" if low > 0 else " ▼"
                cells.append(f"{row[metric]['mean']:.3f}{mark}")
            lines.append(f"| `{label}` | {row['cost']:.1f} | {' | '.join(cells)} |")
        lines += ["", report["use"], ""]
        if "ceiling" in report:
            ceiling = report["ceiling"]
            lines += [
                f"Ceiling by greedy search, first {ceiling['samples']} samples: AUAC "
                f"{ceiling['greedy']['activation']:.3f} (`secant` "
                f"{ceiling['secant']['activation']:.3f}), AU-MSE "
                f"{ceiling['greedy']['pruning']:.2f} (`secant` "
                f"{ceiling['secant']['pruning']:.2f}).",
                "",
            ]
    return "\n".join(lines)


SHOWN = {  # in the figure: label, colour, marker
    "gradient_x_input": ("gradient × input", AXIS, "o"),
    "gae": ("GAE", AXIS, "^"),
    "gradient_rollout": ("gradient rollout", AXIS, "v"),
    "transformer_attribution": ("transformer attribution", AXIS, "s"),
    "integrated_gradients": ("integrated gradients", COLORS[4], "D"),
    "occlusion": ("occlusion", COLORS[3], "X"),
    "lrp_ah_ln": ("lrp_ah_ln", COLORS[0], "s"),
    "attn_lrp": ("attn_lrp", COLORS[0], "^"),
    "lrp(attention=0, root=None)": ("lrp, no root, no share", COLORS[0], "o"),
    "lrp": ("lrp", COLORS[1], "P"),
    "secant": ("secant", COLORS[1], "*"),
    "secant, splits": ("secant, splits=1", COLORS[2], "*"),
}


def _key(label: str) -> str:
    """The entry of `SHOWN` that a method's label belongs to, if any."""
    name = label.partition("(")[0]
    if name == "secant":
        return "secant, splits" if "splits=1" in label else label if "splits" in label else name
    return name if name in ("integrated_gradients", "occlusion") else label


def figure(reports: dict[str, dict[str, Any]], path: Path) -> None:
    """Cost against AU-MSE and AUAC, every method a point."""
    size = (3.1 * len(reports) + 2.2, 5.6)
    with saved_figure(path, figsize=size, layout="constrained") as drawing:
        axes = drawing.subplots(2, len(reports), squeeze=False, sharex=True)
        points: dict[str, Any] = {}
        for column, (name, report) in enumerate(reports.items()):
            for row, metric in enumerate(("pruning", "activation")):
                plot = axes[row][column]
                for label, numbers in report["methods"].items():
                    if _key(label) in SHOWN:
                        text, color, marker = SHOWN[_key(label)]
                        points[text] = plot.scatter(
                            numbers["cost"], numbers[metric]["mean"], color=color,
                            s=220 if marker == "*" else 60,
                            marker=marker, alpha=0.85, linewidths=0,
                        )  # fmt: skip
                plot.set_xscale("log")
                plot.grid(color=GRID)
            axes[0][column].set_title(name)
            axes[1][column].set_xlabel("cost (gradient × input = 1)")
        axes[0][0].set_ylabel("AU-MSE  ↓ lower is better")
        axes[1][0].set_ylabel("AUAC  ↑ higher is better")
        drawing.legend(points.values(), points.keys(), loc="outside right center", frameon=False)


def main(
    data: Annotated[Path | None, typer.Option(help="The folder with the data sets.")] = None,
    split: Annotated[str, typer.Option(help="validation or test.")] = "test",
    sets: Annotated[str, typer.Option(help="Comma-separated.")] = "sentiment,digits,bace",
    encoders: Annotated[Path | None, typer.Option(help="Models of further sets of texts.")] = None,
    superpixels: Annotated[Path | None, typer.Option(help="A model of superpixels.")] = None,
    roots: Annotated[bool, typer.Option(help="Compare references of secant.")] = False,
    agreement: Annotated[bool, typer.Option(help="Measure texts by Shapley values.")] = True,
    count: Annotated[int, typer.Option(help="Samples of each set.")] = 200,
    ceiling: Annotated[int, typer.Option(help="Samples of the greedy search.")] = 50,
    out: Annotated[Path | None, typer.Option(help="A JSON file for the numbers.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Where the figure goes.")] = None,
) -> None:
    """Prints a table for each set; writes the numbers and the figure where asked."""
    torch.set_num_threads(1)
    reports: dict[str, dict[str, Any]] = {}
    if out is not None and out.exists():
        reports = json.loads(out.read_text(encoding="utf-8"))
    for name in sets.split(","):
        if name not in reports:
            if data is None:
                raise typer.BadParameter(f"the set {name} needs --data")
            explainer, rows = samples(name, data, split, count, superpixels, encoders)
            reports[name] = measure(
                name, explainer, rows, 0 if roots else ceiling, roots, agreement
            )
        typer.echo(markdown({name: reports[name]}))
        if out is not None:
            write_text(out, json.dumps(reports, indent=1) + "\n")
    if picture is not None:
        figure({name: reports[name] for name in sets.split(",")}, picture)


if __name__ == "__main__":
    typer.run(main)
