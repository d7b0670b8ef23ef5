"""What an evaluation found: per sample, per method, per metric."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.errors import FileError
from wherefrom.evaluation.fit import Fit, fit
from wherefrom.evaluation.metrics import METRICS, Metric
from wherefrom.studies.registry import STUDIES

SCHEMA = "wherefrom/evaluation/1"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """A mean over samples with its bootstrap interval of 95 %."""

    mean: float
    low: float
    high: float
    samples: int


@dataclass
class Evaluation:
    """Values and curves of every method and metric, and how they came about.

    `values[method][metric]` is a list over samples; `series` the curves likewise.
    """

    model: str
    methods: list[str]
    metrics: list[str]
    values: dict[str, dict[str, list[float]]]
    series: dict[str, dict[str, list[list[float]]]]
    sums: dict[str, list[tuple[float, float]]]  # Σ lines and output of each sample
    agreement: dict[str, dict[str, float]]
    skipped: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)
    complete: bool = True
    studies: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # a record a sample
    notes: list[str] = field(default_factory=list)

    def summary(self, method: str, metric: str, seed: int = 0) -> Summary:
        """The mean of a metric over the samples."""
        values = np.array(self.values[method][metric])
        chance = np.random.default_rng(seed)
        draws = values[chance.integers(0, len(values), (1000, len(values)))].mean(1)
        low, high = np.quantile(draws, [0.025, 0.975])
        return Summary(float(values.mean()), float(low), float(high), len(values))

    @property
    def curves(self) -> dict[str, dict[str, Floats]]:
        """The mean curve of each method, by metric; with ten steps all samples share a grid."""
        found: dict[str, dict[str, Floats]] = {}
        for metric in self.metrics:
            for method in self.methods:
                series = self.series.get(method, {}).get(metric)
                if series and len({len(each) for each in series}) == 1:
                    found.setdefault(metric, {})[method] = np.mean(series, axis=0)
        return found

    @property
    def conservation(self) -> dict[str, Fit]:
        """How well the scores of each method add up to the output."""
        return {method: fit(pairs) for method, pairs in self.sums.items()}

    def study(self, name: str) -> dict[str, Any]:
        """What a study found, in sum."""
        return STUDIES[name].summary(self.studies[name])

    @property
    def best(self) -> str | None:
        """The method with the best mean rank over the perturbation metrics that were run."""
        if not any(METRICS[m].better for m in self.metrics):
            return None
        named: list[str] = [m for m in ("activation", "pruning") if m in self.metrics]
        faithful = named or [m for m in self.metrics if METRICS[m].better]
        candidates = [m for m in self.methods if m != "random"] or self.methods
        ranks = dict.fromkeys(candidates, 0.0)
        for name in faithful:
            sign = -1 if METRICS[name].better == "higher" else 1
            ordered = sorted(candidates, key=lambda m: sign * float(np.mean(self.values[m][name])))
            for rank, method in enumerate(ordered):
                ranks[method] += rank
        return min(candidates, key=lambda m: ranks[m])

    def leaders(self, name: str) -> str:
        """The method that is best by one metric."""
        metric: Metric = METRICS[name]
        sign = -1 if metric.better == "higher" else 1
        return min(self.methods, key=lambda m: sign * float(np.mean(self.values[m][name])))

    def rows(self) -> list[dict[str, Any]]:
        """One row for each method and metric."""
        return [
            {
                "method": method,
                "metric": metric,
                "mean": (found := self.summary(method, metric)).mean,
                "low": found.low,
                "high": found.high,
                "samples": found.samples,
                "better": METRICS[metric].better,
            }
            for method in self.methods
            for metric in self.metrics
        ]

    def table(self, markdown: bool = False) -> str:
        """Means with intervals; the best of a column is marked."""
        arrows = {"higher": " ↑", "lower": " ↓", "": ""}
        header = ["method"] + [METRICS[m].title + arrows[METRICS[m].better] for m in self.metrics]
        leaders = {m: self.leaders(m) for m in self.metrics if METRICS[m].better}
        lines = []
        for method in self.methods:
            cells = [f"`{method}`" if markdown else method]
            for metric in self.metrics:
                found = self.summary(method, metric)
                half = (found.high - found.low) / 2
                text = f"{found.mean:.3g} ± {half:.1g}" if found.mean else "0"
                if leaders.get(metric) == method:
                    text = f"**{text}**" if markdown else f"{text} *"
                cells.append(text)
            lines.append(cells)
        return _markdown(header, lines) if markdown else _aligned(header, lines)

    def __str__(self) -> str:
        count = max(map(len, self.sums.values()), default=0)
        skipped = ", ".join(f"{n} {why}" for why, n in self.skipped.items())
        note = f"; skipped: {skipped}" if skipped else ""
        state = "" if self.complete else " (interrupted: what was done until then)"
        parts = [f"{self.model}, {count} samples{note}{state}"]
        if self.metrics:
            parts.append(self.table())
            parts.append("± is half of the 95 % bootstrap interval; * is best.")
        if self.best is not None:
            parts[-1] += f" Use here: {self.best}"
        if "conservation" in self.metrics:
            parts += ["", self.conservation_table()]
        parts += ["", *map(str, self.notes)] if self.notes else []
        return "\n".join(parts)

    def conservation_table(self, markdown: bool = False) -> str:
        """Σ scores against the output: slope, R² of the fitted line and of the diagonal, gap."""
        header = ["method", "slope", "R²", "R² to the diagonal", "mean |gap|", "of mean |output|"]
        lines = []
        for method, found in self.conservation.items():
            values = list(vars(found).values())
            cells = ["–" if value is None else f"{value:.3g}" for value in values]
            lines.append([f"`{method}`" if markdown else method, *cells])
        return _markdown(header, lines) if markdown else _aligned(header, lines)

    # In and out.

    def to_csv(self, path: str | Path | None = None) -> str:
        """The table of means, also written to `path` when one is given."""
        columns = ["method", "metric", "mean", "low", "high", "samples", "better"]
        text = _csv(columns, self.rows())
        if path is not None:
            _write(Path(path), text)
        return text

    def to_csvs(self, folder: str | Path) -> list[Path]:
        """Every table as a file in a folder: means, conservation, and those of the studies."""
        tables: dict[str, list[dict[str, Any]]] = {
            "conservation": [{"method": m, **vars(f)} for m, f in self.conservation.items()]
        }
        for name, records in self.studies.items():
            tables |= STUDIES[name].tables(records)
        made = [Path(folder) / "summary.csv"]
        self.to_csv(made[0])
        for name, rows in tables.items():
            if rows:
                made.append(Path(folder) / f"{name}.csv")
                _write(made[-1], _csv(list(rows[0]), rows))
        return made

    def to_json(self, path: str | Path | None = None) -> str:
        """Everything, also written to `path` when one is given."""
        told = {
            "summary": self.rows(),
            "best": self.best,
            "conservation": {method: vars(found) for method, found in self.conservation.items()},
            "found": {name: self.study(name) for name in self.studies},
        }
        text = json.dumps({"schema": SCHEMA, **vars(self), **told})
        if path is not None:
            _write(Path(path), text)
        return text

    @classmethod
    def from_json(cls, path: str | Path) -> Evaluation:
        """Back from `to_json`."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if data.pop("schema") != SCHEMA:
                raise ValueError("another schema")
            for told in ("summary", "best", "conservation", "found"):
                data.pop(told, None)
            data["sums"] = {m: [(s, y) for s, y in pairs] for m, pairs in data["sums"].items()}
            return cls(**data)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FileError(f"{path} is no evaluation: {error}") from error

    def plot(self, path: str | Path) -> list[Path]:
        """Curves, conservation and the rest as pictures in the folder `path`."""
        draw: Callable[[Evaluation, Path], list[Path]]
        draw = import_module("wherefrom.show.figure").plot_evaluation
        return draw(self, Path(path))


def _csv(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from error


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [header, *rows]
    )
