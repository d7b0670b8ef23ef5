"""How well do estimates of patching agree with real patching?

    python -m benchmarks.patching --model smollm2 --prompts 51 --summary docs/data/patching.json

Prompts of three templates name two people; the model must complete the one who is not the giver
(indirect objects). The corrupted prompt has the other giver. For a sample of components (residual
stream, attention and MLP, each at one layer and token from the first changed token on) the effect
of patching the corrupted value into the clean run, on the difference of both names' logits, is
estimated by several rules and measured. Pearson's r is over all sampled components.
"""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

import wherefrom
from wherefrom.core.target import Case
from wherefrom.inside.component import Component, ComponentKind
from wherefrom.inside.cuts import Cuts
from wherefrom.inside.patching import KINDS, estimated, traced
from wherefrom.methods.embedded_inputs import EmbeddedInputs
from wherefrom.methods.forward_pass import intercepted_forward
from wherefrom.methods.propagation import AH_LN, CONSERVATIVE, PLAIN
from wherefrom.rules.secants import TWO_POINTS
from wherefrom.tracing.observers.entry_points import EmbeddedInput
from wherefrom.tracing.tracer import RootActivations

NAMES = "Mary John Tom James Paul Anna Kate Mark Alice David Sarah Peter".split()
TEMPLATES = (
    "When {a} and {b} went to the store, {giver} gave a drink to",
    "Then {a} and {b} had a long talk at the office. Afterwards {giver} said goodbye to",
    "After {a} and {b} met at the park, {giver} handed a book to",
)
STEPS = 5  # of integrated gradients
RAW = Path("build/patching.json")


def prompts(explainer: wherefrom.Explainer, count: int) -> list[tuple[str, str, str, str]]:
    """Clean and corrupted prompts, and the completions of both, each a single token."""
    lengths = {name: len(explainer.tokenizer(f"a {name}")["input_ids"]) for name in NAMES}
    names = [name for name in NAMES if lengths[name] == min(lengths.values())]
    draw = random.Random(0)
    found = []
    for number in range(count):
        a, b = draw.sample(names, 2)
        template = TEMPLATES[number % len(TEMPLATES)]
        clean, corrupted = (template.format(a=a, b=b, giver=giver) for giver in (b, a))
        found.append((clean, corrupted, f" {a}", f" {b}"))
    return found


def rules(clean: Case, corrupted: Case, units: int) -> dict[str, dict[ComponentKind, Any]]:
    """The estimates of each rule."""
    found = {
        name: estimated(traced(table, clean, traced(table, corrupted)), units)
        for name, table in (("gradient", PLAIN), ("AH+LN", AH_LN), ("lrp frozen", CONSERVATIVE))
    }
    root = RootActivations()
    start = traced(TWO_POINTS, corrupted, root_activations=root)
    root.finish_root()
    found["secant"] = estimated(traced(TWO_POINTS, clean, start, root_activations=root), units)
    differences = [tap.value for tap in traced(PLAIN, clean, traced(PLAIN, corrupted)).taps]
    found["integrated gradients"] = path(clean, corrupted, differences, units)
    return found


PASSES = {
    "gradient": "2 forward, 1 backward",
    "AH+LN": "2 forward, 1 backward",
    "lrp frozen": "2 forward, 1 backward",
    "secant": "2 forward, 1 backward",
    "wherefrom": "4 forward, 2 backward",
    "integrated gradients": f"{2 + STEPS} forward, {STEPS} backward",
}


def path(
    clean: Case, corrupted: Case, differences: list[torch.Tensor], units: int
) -> dict[ComponentKind, Any]:
    """The mean gradient between both prompts' embeddings, times the difference of the values."""
    start = EmbeddedInputs.capture(corrupted).values[0]
    points = []
    for step in range(STEPS):
        share = (step + 0.5) / STEPS

        def change(entering: EmbeddedInput, share: float = share) -> torch.Tensor:
            return start.to(entering.rows) * (1 - share) + entering.rows * share

        cuts = Cuts(clean.runner.model)
        with intercepted_forward(PLAIN, clean, change=change, observers=[cuts]) as forward:
            pass
        gradients = forward.gradients([tap.tensor for tap in cuts.taps])
        for tap, gradient, difference in zip(cuts.taps, gradients, differences, strict=True):
            tap.crossing.rows = (gradient * difference).sum(-1, dtype=torch.float64).flatten()
        points.append(estimated(cuts, units))
    return {kind: sum(point[kind] for point in points) / STEPS for kind in KINDS}


def measure(explainer: wherefrom.Explainer, prompt: tuple[str, ...], samples: int) -> list[Any]:
    """For a sample of components: kind, layer, token, real effect and estimates."""
    clean, corrupted, target, against = prompt
    patching = explainer.patching(clean, corrupted, target, against)
    texts = [[unit.text for unit in units] for units in (patching.units, patching.corrupted_units)]
    first = next(i for i, (a, b) in enumerate(zip(*texts, strict=True)) if a != b)
    layers, units = patching.estimates["stream"].shape
    draw = random.Random(clean)
    components = [
        Component(draw.randrange(layers), kind, unit=draw.randrange(first, units))
        for kind in KINDS
        for _ in range(samples)
    ]
    found = rules(patching.clean, patching.corrupted, units)
    found["wherefrom"] = patching.estimates
    rows = []
    for patched in patching.verify(components):
        own = patched.component
        estimates = {name: float(by[own.kind][own.layer, own.unit]) for name, by in found.items()}
        rows.append([own.kind, own.layer, own.unit, patched.effect, estimates])
    return rows


def summary(rows: list[Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Pearson's r with a bootstrap interval, and the slope, of each rule and kind."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    draw = np.random.default_rng(0)
    for name in PASSES:
        for kind in KINDS:
            pairs = np.array([(row[4][name], row[3]) for row in rows if row[0] == kind])
            drawn = [
                np.corrcoef(pairs[draw.integers(len(pairs), size=len(pairs))].T)[0, 1]
                for _ in range(1000)
            ]
            low, high = np.quantile(drawn, (0.025, 0.975))
            result.setdefault(name, {})[kind] = {
                "r": float(np.corrcoef(pairs.T)[0, 1]),
                "low": float(low),
                "high": float(high),
                "slope": float(np.polyfit(pairs[:, 0], pairs[:, 1], 1)[0]),
            }
    return result


def main(
    model: Annotated[str, typer.Option(help="A language model.")] = "smollm2",
    count: Annotated[int, typer.Option("--prompts", help="How many prompts.")] = 51,
    samples: Annotated[int, typer.Option(help="Components of each kind and prompt.")] = 16,
    out: Annotated[Path, typer.Option(help="Results by prompt; a run resumes.")] = RAW,
    summarised: Annotated[
        Path | None, typer.Option("--summary", help="Write the agreement here.")
    ] = None,
) -> None:
    """Prints the agreement of each rule with real patching."""
    warnings.simplefilter("ignore")
    explainer = wherefrom.load(model)
    known = json.loads(out.read_text("utf-8")) if out.exists() else {}
    done: dict[str, list[Any]] = known.get(model, {}).get("prompts", {})
    for prompt in prompts(explainer, count):
        if prompt[0] not in done:
            done[prompt[0]] = measure(explainer, prompt, samples)
            rows = [row for part in done.values() for row in part]
            known[model] = {"summary": summary(rows), "prompts": done}
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(known), encoding="utf-8")
    if summarised is not None:
        figures = {
            name: {"prompts": len(found["prompts"]), "rules": found["summary"]}
            for name, found in known.items()
        }
        summarised.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for name, kinds in known[model]["summary"].items():
        cells = ", ".join(
            f"{kind} {v['r']:.3f} ({v['low']:.3f} to {v['high']:.3f}), slope {v['slope']:.2f}"
            for kind, v in kinds.items()
        )
        typer.echo(f"{name} [{PASSES[name]}]: {cells}")


if __name__ == "__main__":
    typer.run(main)
