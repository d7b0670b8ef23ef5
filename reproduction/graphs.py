"""The two sets of graphs: molecules of BACE, and digits of MNIST as superpixels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import wherefrom
from reproduction.sets import ReproductionSet, Samples, class_figures, shuffled
from training import bace, superpixels
from training.card import write_card
from training.mnist import read_images
from wherefrom.inputs.graph import Graph
from wherefrom.models.graphormer import Graphormer

STORY = """---
tags: [graphormer, explainability]
---
# $name

A Graphormer of 2 layers ($parameters parameters) for $title. $made

| $tested test graphs | |
|---|---|
| accuracy | $accuracy |
| macro-F1 | $macro_f1 |
| majority class | $majority |
$more
"""


@dataclass(frozen=True)
class Molecules(ReproductionSet):
    """BACE, split at random by class: 80 % for training, 10 % for validation and for the test."""

    settings: tuple[bace.Setting, ...] = bace.SETTINGS

    kind = "graph"

    def train(self, data: Path, base: str, work: Path, out: Path) -> None:
        molecules = bace.read(data / self.folder)
        parts = bace.random_split(molecules.labels)
        work = work / self.name
        work.mkdir(parents=True, exist_ok=True)
        setting, tried = bace.choose(molecules, parts, work, self.settings)
        checkpoint = work / f"random-{self.settings.index(setting)}.pt"
        model = bace.train(molecules, parts["train"], setting, checkpoint)
        model.save(out)
        auc = {part: bace.measure(model, molecules, parts[part])[0] for part in parts}
        likely = bace.logits(model, molecules, parts["test"]).softmax(-1)
        figures = class_figures(likely.numpy(), molecules.labels[parts["test"]].tolist())
        listed = "; ".join(f"{name}: {value:.3f}" for name, value in tried.items())
        write_card(
            out,
            task=", ".join(bace.LABELS),
            data=self.title,
            metric="ROC-AUC",
            figures={**figures, "roc_auc": auc["test"], "validation": auc["validation"]},
            parameters=sum(p.numel() for p in model.parameters()),
            story=STORY,
            name=self.name,
            title=self.title,
            tested=len(parts["test"]),
            made=f"The ROC-AUC on the validation molecules chose among these settings: {listed}.",
            more=f"| ROC-AUC | {auc['test']:.3f} |\n| its validation | {auc['validation']:.3f} |",
        )

    def samples(self, data: Path, model: Path) -> Samples:
        molecules = bace.read(data / self.folder)
        rows = bace.random_split(molecules.labels)["test"]
        chosen = [rows[i] for i in shuffled(len(rows))]
        pairs = [(molecules.graphs[i], int(molecules.labels[i])) for i in chosen]
        return Samples(wherefrom.load(model), pairs)


@dataclass(frozen=True)
class Superpixels(ReproductionSet):
    """MNIST as graphs of about 75 superpixels."""

    epochs: int = 6
    rate: float = 2e-3
    drawn: int = 1_000  # test images that become graphs to evaluate, at most

    kind = "graph"

    def train(self, data: Path, base: str, work: Path, out: Path) -> None:
        cache = work / self.name
        graphs = superpixels.cut(data / self.folder, "train", cache)
        rows = torch.arange(len(graphs["labels"]))
        seen, held = rows[: -superpixels.HELD], rows[-superpixels.HELD :]
        model = superpixels.train(graphs, seen, self.epochs, self.rate, cache)
        model.save(out)
        unseen = superpixels.cut(data / self.folder, "test", cache)
        likely = _probabilities(model, unseen)
        figures = class_figures(likely.numpy(), unseen["labels"].tolist())
        write_card(
            out,
            task="the digit in an image",
            data=self.title,
            metric="accuracy",
            figures={**figures, "validation": superpixels.accuracy(model, graphs, held)},
            parameters=sum(p.numel() for p in model.parameters()),
            story=STORY,
            name=self.name,
            title=self.title,
            tested=f"{len(likely):,}",
            made=f"It saw {len(seen):,} images in {self.epochs} epochs.",
            more="",
        )

    def samples(self, data: Path, model: Path) -> Samples:
        images, digits = read_images(data / self.folder, "test")
        chosen = shuffled(len(images))[: self.drawn]
        pairs = [(Graph.superpixels(images[i].numpy()), int(digits[i])) for i in chosen]
        return Samples(wherefrom.load(model), pairs)


@torch.inference_mode()
def _probabilities(model: Graphormer, data: dict[str, Tensor]) -> Tensor:
    rows = torch.arange(len(data["labels"])).split(200)
    logits = torch.cat([model(**superpixels.take(data, part)) for part in rows])
    return logits.softmax(-1)
