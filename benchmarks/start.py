"""How long commands take to start: processor time of whole processes, side by side.

    python -m benchmarks.start [--rounds 7] [--baseline SOURCE_FOLDER]

`explain` with the embedded model is measured as it is, and by the model class of transformers
(`--model FOLDER`). With `--baseline`, the `src` folder of another version, its commands are
measured in turn with these. The first round does not count: it fills the caches of the file system.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from wherefrom.models.embedded import HOME

SOURCE = HOME.parents[1]
TEXT = "has a lot of the virtues of eastwood at his best."
EXPLAIN = ["-m", "wherefrom", "explain", TEXT]
HELP = ["-m", "wherefrom", "--help"]


def processor_seconds(arguments: list[str], source: Path) -> float:
    """The time that a Python process spends in user and system mode, on one thread."""
    environment = {
        **os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def measure(
    baseline: Path | None = None, rounds: int = 7
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """The median of each command, and the least and most."""
    sides: dict[str, tuple[list[str], Path]] = {
        "wherefrom --help": (HELP, SOURCE),
        "wherefrom explain": (EXPLAIN, SOURCE),
        "the same, by transformers": ([*EXPLAIN, "--model", str(HOME / "sentiment")], SOURCE),
        "import torch": (["-c", "import torch"], SOURCE),
    }
    if baseline is not None:
        sides["baseline: wherefrom --help"] = (HELP, baseline)
        sides["baseline: wherefrom explain"] = (EXPLAIN, baseline)
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, (arguments, source) in sides.items():
            seconds = processor_seconds(arguments, source)
            if number:
                taken[name].append(seconds)
    medians = {name: statistics.median(values) for name, values in taken.items()}
    return medians, {name: (min(values), max(values)) for name, values in taken.items()}


def main(
    rounds: int = 7,
    baseline: Annotated[Path | None, typer.Option(help="src folder of another version.")] = None,
) -> None:
    """Prints the seconds and ratios."""
    medians, spread = measure(baseline, rounds)
    typer.echo("processor seconds: median (least to most)")
    for name, seconds in medians.items():
        least, most = spread[name]
        typer.echo(f"  {name:28} {seconds:6.2f}   ({least:.2f} to {most:.2f})")
    for other in ("the same, by transformers", "baseline: wherefrom explain"):
        if other in medians:
            ratio = medians["wherefrom explain"] / medians[other]
            typer.echo(f"  explain / {other:32} {ratio:.2f}   (goal: 0.60)")
    typer.echo(f"  --help                                     {medians['wherefrom --help']:.2f} s "
               "(goal: 0.30)")  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
