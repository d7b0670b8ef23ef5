"""Other secants that were tried on BERT classifiers, beside the rules of `secant`.

    python -m benchmarks.variants --data DATA [--model PATH] [--count 40]

The model is written out between the points of a path, each call with its value at every point and
its difference on every part, so that a rule can be replaced in a line. Agreement with Shapley
values of the tokens, special tokens present, on validation sentences of SST-2: r is the mean over
sentences; error and slope (of Shapley values on scores, through 0) are of all tokens together. The
gap is the mean of |Σ scores − (f(x) − f(x′))|.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor
from torch.nn import functional as F

import wherefrom
from wherefrom.core.shapley import shapley_values
from wherefrom.rules.secant_softmax import logarithmic_mean

BUDGET = 2048


@dataclass(frozen=True)
class Between:
    """Values at the points of a path, and differences on its parts, one fewer."""

    values: Tensor
    way: Tensor

    def map(self, f: Callable[[Tensor], Tensor]) -> Between:
        """A linear function."""
        return Between(f(self.values), f(self.way))

    def __add__(self, other: Between) -> Between:
        return Between(self.values + other.values, self.way + other.way)


def middle(values: Tensor) -> Tensor:
    """The mean of the two ends of each part."""
    return (values[1:] + values[:-1]) / 2


@dataclass(frozen=True)
class Rules:
    """The rules of `secant`, with what is tried instead."""

    attention: float = 1.0  # the share of a softmax's difference that is passed on
    frozen_scale: bool = False  # norms with the mean scale of both points
    slope_in_middle: bool = False  # activations with f′ in the middle

    def linear(self, x: Between, layer: Any) -> Between:
        """A linear layer."""
        return Between(layer(x.values), F.linear(x.way, layer.weight))

    def product(self, a: Between, b: Between, multiply: Any = torch.mul) -> Between:
        """Each factor's Shapley value."""
        way = multiply(a.way, middle(b.values)) + multiply(middle(a.values), b.way)
        return Between(multiply(a.values, b.values), way)

    def function(self, x: Between, f: Callable[[Tensor], Tensor]) -> Between:
        """An element-wise function."""
        y, between = f(x.values), middle(x.values).requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(f(between).sum(), between)
        if not self.slope_in_middle:
            way = x.values.diff(dim=0)
            far = way.abs() > 1e-6 * (x.values[1:].abs() + x.values[:-1].abs()) + 1e-12
            slope = torch.where(far, y.diff(dim=0) / torch.where(far, way, 1.0), slope)
        return Between(y, x.way * slope)

    def norm(self, x: Between, layer: Any) -> Between:
        """A norm by its parts."""
        x = x.map(lambda t: t - t.mean(-1, keepdim=True))
        if self.frozen_scale:
            scale = (x.values.square().mean(-1, keepdim=True) + layer.eps).rsqrt()
            out = Between(x.values * scale, x.way * middle(scale))
        else:
            square = self.product(x, x).map(lambda t: t.mean(-1, keepdim=True))
            out = self.product(x, self.function(square, lambda v: (v + layer.eps).rsqrt()))
        return Between(out.values * layer.weight + layer.bias, out.way * layer.weight)

    def softmax(self, z: Between) -> Between:
        """The secant by logarithmic means."""
        logs = z.values.log_softmax(-1)
        mean = logarithmic_mean(logs[1:], logs[:-1])
        centre = (mean * z.way).sum(-1, keepdim=True) / mean.sum(-1, keepdim=True)
        return Between(logs.exp(), self.attention * mean * (z.way - centre))


def scores(model: Any, points: Tensor, target: int, rules: Rules) -> tuple[Tensor, float]:
    """The score of each token, from word embeddings at the points, and the gap of their sum."""
    bert, length = model.bert, points.shape[1]
    table = bert.embeddings
    places = table.position_embeddings.weight[:length] + table.token_type_embeddings.weight[0]
    start = points.diff(dim=0).requires_grad_()
    x = rules.norm(Between(points + places, start), table.LayerNorm)
    for layer in bert.encoder.layer:
        own = layer.attention.self
        heads = getattr(own, "num_attention_heads", None) or own.heads

        def split(t: Tensor, heads: int = heads) -> Tensor:
            parts: Tensor = t.unflatten(-1, (heads, -1))
            return parts.transpose(-2, -3)

        query, key, value = (
            rules.linear(x, part).map(split) for part in (own.query, own.key, own.value)
        )
        logits = rules.product(query, key.map(lambda t: t.mT), torch.matmul)
        width = math.sqrt(query.values.shape[-1])
        weights = rules.softmax(logits.map(lambda t, width=width: t / width))  # type: ignore[misc]
        mixed = rules.product(weights, value, torch.matmul)
        mixed = mixed.map(lambda t: t.transpose(-2, -3).flatten(-2))
        output = layer.attention.output
        x = rules.norm(rules.linear(mixed, output.dense) + x, output.LayerNorm)
        inner = rules.function(rules.linear(x, layer.intermediate.dense), F.gelu)
        x = rules.norm(rules.linear(inner, layer.output.dense) + x, layer.output.LayerNorm)
    first = rules.linear(x.map(lambda t: t[:, 0]), bert.pooler.dense)
    logit = rules.linear(rules.function(first, torch.tanh), model.classifier)
    (gradient,) = torch.autograd.grad(logit.way[:, target].sum(), start)
    found = (gradient * start.detach()).sum((0, 2))
    rise = logit.values[-1, target] - logit.values[0, target]
    return found, abs(float(found.sum() - rise))


VARIANTS = {
    "the rules of secant": Rules(),
    "half of the softmax's difference": Rules(attention=0.5),
    "attention weights as constants": Rules(attention=0.0),
    "norms with the mean scale": Rules(frozen_scale=True),
    "activations with f′ in the middle": Rules(slope_in_middle=True),
}
PATHS = {"two parts": [0, 0.5, 1.0], "four parts": [0, 0.25, 0.5, 0.75, 1.0]}


Result = tuple[Tensor, Tensor, float]  # scores and Shapley values of the tokens, and the gap


def of_text(explainer: Any, text: str) -> dict[str, Result]:
    """The scores of every variant for one text."""
    model = explainer.runner.model.requires_grad_(False)
    table = model.bert.embeddings.word_embeddings.weight
    unknown = explainer.encode(["[UNK]"])[0].ids[1]
    encoded = explainer.encode([text])[0]
    ids = torch.tensor(encoded.ids)
    units = torch.tensor([i for i, unit in enumerate(encoded.units) if not unit.special])

    def masked(present: Tensor, missing: int = unknown) -> Tensor:
        rows = ids.repeat(len(present), 1)
        rows[:, units] = torch.where(present, ids[units], missing)
        return rows

    @torch.no_grad()
    def logits(rows: Tensor) -> Tensor:
        out = model(input_ids=rows)
        chosen: Tensor = out if isinstance(out, Tensor) else out.logits
        return chosen

    target = int(logits(ids[None])[0].argmax())

    def value(present: Tensor) -> Tensor:
        return torch.cat([logits(masked(part))[:, target] for part in present.split(256)])

    true = shapley_values(value, len(units), BUDGET).values
    none = torch.zeros(1, len(units), dtype=torch.bool)
    low, high = table[masked(none)], table[ids][None]
    found = {
        name: scores(model, torch.cat([low, high]), target, rules)
        for name, rules in VARIANTS.items()
    }
    for name, shares in PATHS.items():
        path = torch.cat([low + share * (high - low) for share in shares])
        found[name] = scores(model, path, target, Rules())
    mask = table[masked(none, explainer.encode(["[MASK]"])[0].ids[1])]
    of_mask, _ = scores(model, torch.cat([mask, high]), target, Rules())
    own, gap = found["the rules of secant"]
    found["mean of [UNK] and [MASK] as references"] = (own + of_mask) / 2, gap
    half = torch.arange(len(units)) % 2 == 0
    (one, gap), (other, _) = (
        scores(model, torch.cat([low, table[masked(side[None])], high]), target, Rules())
        for side in (half, ~half)
    )
    found["by halves, every second token first"] = (one + other) / 2, gap
    return {name: (own[units].double(), true, gap) for name, (own, gap) in found.items()}


def main(
    data: Annotated[Path, typer.Option(help="The folder with sst2_sentences.")],
    model: Annotated[str, typer.Option(help="sentiment, or a BERT classifier.")] = "sentiment",
    count: Annotated[int, typer.Option(help="Sentences.")] = 40,
) -> None:
    """Prints a line for each variant, each path, and every second token first."""
    torch.set_num_threads(1)
    explainer = wherefrom.load(model)
    with gzip.open(data / "sst2_sentences" / "validation.csv.gz", "rt", encoding="utf-8") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    drawn = np.random.default_rng(0).choice(len(texts), count, replace=False)
    results = [of_text(explainer, texts[i]) for i in drawn]
    for name in results[0]:
        rows = [result[name] for result in results]
        own, true = (torch.cat([row[k] for row in rows]) for k in (0, 1))  # type: ignore[misc]
        r = np.mean([np.corrcoef(a, b)[0, 1] for a, b, _ in rows])
        error = float((own - true).abs().sum() / true.abs().sum())
        slope = float((own * true).sum() / (own * own).sum())
        gap = np.mean([row[2] for row in rows])
        typer.echo(f"| {name} | {r:.3f} | {error:.3f} | {slope:.2f} | {gap:.3f} |")


if __name__ == "__main__":
    typer.run(main)
