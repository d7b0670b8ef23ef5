"""Reproduces Tables 1 and 2 of Ali et al. (ICML 2022) on all nine data sets.

    python -m reproduction --data DATA [--sets imdb,sst2] [--samples 500] [--out build/reproduction]

Trains the models that `--out` does not have, evaluates every method on every set, and writes one
CSV with all numbers, the pictures, and the tables of docs/reproduction.md. It can be stopped at any
time and goes on where it stopped: first 200 samples of each set, then more up to `--samples`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
import typer

from reproduction.evaluation import PART, evaluate_set, finished
from reproduction.figures import heatmap
from reproduction.registry import SETS
from reproduction.report import report
from reproduction.sets import ReproductionSet
from wherefrom.errors import WherefromError

LEAST = 200  # samples of every set before any set gets more


@dataclass
class Estimate:
    """The time left, from what the sets took when they were measured and the pace of this run."""

    sets: Sequence[ReproductionSet]
    samples: int
    out: Path
    printed: float = 0.0
    start: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.expected = {of.name: self._expected(of) for of in self.sets}
        self.whole = sum(self.expected.values())

    def _expected(self, of: ReproductionSet) -> float:
        training = 0.0 if is_trained(self.out, of) else 60 * of.minutes
        return training + of.seconds * max(0, self.samples - finished(self.out / of.name))

    def trained(self, of: ReproductionSet) -> None:
        """A training is done, or was before."""
        self.expected[of.name] = self._expected(of)

    def evaluated(self, of: ReproductionSet, done: float, step: str) -> None:
        """So many samples of a set are done; prints a line every few seconds."""
        self.expected[of.name] = of.seconds * max(0.0, self.samples - done)
        now = time.monotonic()
        if now - self.printed < 15:
            return
        self.printed = now
        left = sum(self.expected.values())
        progress = self.whole - left
        pace = (now - self.start) / progress if progress > 0 else 1.0
        minutes = pace * left / 60
        typer.echo(f"{of.name}: {done:.0f} samples ({step}); about {minutes:.0f} min left in all")


def is_trained(out: Path, of: ReproductionSet) -> bool:
    """Whether the model of a set is there; its card is written last."""
    return (out / of.name / "model" / "card.json").exists()


def run(
    sets: Sequence[ReproductionSet], data: Path, base: str, samples: int, out: Path, results: Path
) -> bool:
    """Trains and evaluates; True if all of it was finished."""
    estimate = Estimate(sets, samples, out)
    for goal in sorted({min(LEAST, samples), samples}):
        for of in sets:
            folder = out / of.name
            if not is_trained(out, of):
                typer.echo(f"{of.name}: training")
                of.train(data, base, out / "checkpoints", folder / "model")
            estimate.trained(of)
            drawn = of.samples(data, folder / "model")
            result, whole = evaluate_set(
                of,
                drawn,
                -(-goal // PART),
                folder,
                lambda done, step, of=of: estimate.evaluated(of, done, step),
            )
            card = (folder / "model" / "card.json").read_text(encoding="utf-8")
            result.model = json.loads(card)
            result.write(results)
            heatmap(of, drawn, results / f"heatmap-{of.name}.png")
            typer.echo(f"{of.name}: {result.samples} samples evaluated")
            if not whole:
                return False
    return True


def main(
    data: Annotated[Path, typer.Option(help="The folder with the data sets.")],
    sets: Annotated[str, typer.Option(help="Comma-separated; all by default.")] = ",".join(SETS),
    samples: Annotated[int, typer.Option(help="Test inputs of a set, at most.")] = 500,
    out: Annotated[Path, typer.Option(help="Models and checkpoints.")] = Path("build/reproduction"),
    results: Annotated[Path, typer.Option(help="Numbers and pictures.")] = Path(
        "reproduction/results"
    ),
    document: Annotated[Path, typer.Option(help="Its tables are written anew.")] = Path(
        "docs/reproduction.md"
    ),
    base: Annotated[str, typer.Option(help="Pretrained encoder: a path or a hub id.")] = (
        "sentence-transformers/all-MiniLM-L6-v2"
    ),
    threads: int = 1,
) -> None:
    """Trains what is missing, evaluates, and writes numbers, pictures and tables."""
    torch.set_num_threads(threads)
    unknown = [name for name in sets.split(",") if name not in SETS]
    if unknown:
        raise typer.BadParameter(f"no set {', '.join(unknown)}. There are: {', '.join(SETS)}")
    chosen = [SETS[name] for name in SETS if name in sets.split(",")]
    try:
        whole = run(chosen, data, base, samples, out, results)
    except KeyboardInterrupt:
        whole = False
    except WherefromError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    report(results, document)
    if not whole:
        typer.echo("stopped; run the same command again to go on.")
        raise typer.Exit(130)


if __name__ == "__main__":
    typer.run(main)
