"""The result of an evaluation: values per sample, summaries, tables, files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import Any, ClassVar, Self

import numpy as np
from scipy.stats import linregress

from wherefrom.errors import MissingExtra, counted
from wherefrom.evaluation.metrics import METRICS, Floats
from wherefrom.evaluation.recommendation import Recommendation, mean_interval, recommend
from wherefrom.methods.random import Random
from wherefrom.storage.record import Displayable
from wherefrom.storage.record import Record as JsonRecord
from wherefrom.storage.tables import csv_text
from wherefrom.storage.writing import write_text
from wherefrom.studies import Record, TableRows

_ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}
_NAMED = 5  # rejected samples that the text lists
# written to JSON for other programs, but recomputed when read
_DERIVED = ("summary", "best", "recommendation", "conservation")


@dataclass(frozen=True)
class Summary:
    """The mean over samples with its 95 % interval, by the percentile bootstrap."""

    mean: float
    low: float
    high: float
    samples: int


@dataclass(frozen=True)
class Fit:
    """Σ lines against output over samples: a least-squares line, and the diagonal.

    R² is 1 − Σ error² / Σ (Σ lines − mean)² for the line, and 1 − Σ error² / Σ (output − mean)²
    for the diagonal. None if all samples have the same output.
    """

    slope: float | None
    r2: float | None
    r2_diagonal: float | None
    gap: float  # mean |Σ lines − output|
    relative_gap: float | None  # over mean |output|


@dataclass
class Evaluation(Displayable, JsonRecord):
    """Values and curves of every method and metric, as `evaluate` returns them.

    `values[method][metric]` is a list with one value per sample, `series[method][metric]` one with
    the curves. Methods are keyed by their label (`lrp`, `integrated_gradients(steps=64)`).
    Print it for a table; `recommendation` names the method to use; `summary`, `conservation`,
    `agreement` and `study_summaries` have the details; `plot` draws a figure; `plots`, `to_csvs`
    and `to_json` write files.
    """

    schema: ClassVar[str] = "wherefrom/evaluation/1"
    noun: ClassVar[str] = "evaluation"
    json_options: ClassVar[Mapping[str, Any]] = {}  # no indentation, since there are many numbers
    model: str
    methods: list[str]
    metrics: list[str]
    values: dict[str, dict[str, list[float]]]
    series: dict[str, dict[str, list[list[float]]]]
    sums: dict[str, list[tuple[float, float]]]  # Σ lines and output of each sample
    agreement: dict[str, dict[str, float]]  # mean rank correlation of two methods' scores
    seconds: dict[str, float] = field(default_factory=dict)  # per explanation, by method
    titles: dict[str, str] = field(default_factory=dict)  # of metrics, as headings
    better: dict[str, str] = field(default_factory=dict)  # "higher", "lower" or "", by metric
    skipped: dict[str, int] = field(default_factory=dict)  # number of samples by reason
    rejected: list[Record] = field(default_factory=list)  # sample, input, kind and reason of each
    settings: dict[str, Any] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)
    complete: bool = True
    studies: dict[str, list[Record]] = field(default_factory=dict)  # a record per sample
    study_summaries: dict[str, Record] = field(default_factory=dict)
    study_tables: dict[str, TableRows] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in self.metrics:
            if name in METRICS:
                self.titles.setdefault(name, METRICS[name].title)
                self.better.setdefault(name, METRICS[name].better)
        self._summaries: dict[tuple[str, str, int], Summary] = {}

    def summary(self, method: str, metric: str, seed: int = 0) -> Summary:
        """The mean of a metric over the samples with its interval, cached."""
        key = (method, metric, seed)
        if key not in self._summaries:
            self._summaries[key] = summarise(np.array(self.values[method][metric]), seed)
        return self._summaries[key]

    @property
    def samples(self) -> int:
        """The number of samples that were evaluated."""
        return max(map(len, self.sums.values()), default=0)

    @property
    def curves(self) -> dict[str, dict[str, Floats]]:
        """The mean curve by metric and method, if all samples have curves of equal length."""
        means: dict[str, dict[str, Floats]] = {}
        for metric in self.metrics:
            for method in self.methods:
                series = self.series.get(method, {}).get(metric)
                if series and len({len(curve) for curve in series}) == 1:
                    means.setdefault(metric, {})[method] = np.mean(series, axis=0)
        return means

    @property
    def conservation(self) -> dict[str, Fit]:
        """How well the scores of each method add up to the output."""
        return {method: fit(pairs) for method, pairs in self.sums.items()}

    def study(self, name: str) -> Record:
        """The summary of a study."""
        return self.study_summaries[name]

    @property
    def best(self) -> str | None:
        """The recommended method; None if the samples do not decide."""
        return None if self.recommendation is None else self.recommendation.method

    @cached_property
    def recommendation(self) -> Recommendation | None:
        """The result of `recommend`; None without metrics that have a direction.

        Uses activation and pruning if they were run, else all metrics with a direction.
        """
        ranking, candidates = self._ranking()
        if not ranking or not candidates or not self.samples:
            return None
        return recommend(
            {label: self.values[label] for label in candidates},
            {name: self.better[name] for name in ranking},
            {name: self.title(name) for name in ranking},
            self.seconds,
            {label: self.values[label] for label in self._finite(ranking) if _is_random(label)},
        )

    def _ranking(self) -> tuple[list[str], list[str]]:
        """The metrics for comparing methods, and the methods except random ones."""
        directed = [name for name in self.metrics if self.better.get(name)]
        ranking = [name for name in directed if name in ("activation", "pruning")] or directed
        return ranking, [label for label in self._finite(ranking) if not _is_random(label)]

    def _finite(self, metrics: Sequence[str]) -> list[str]:
        """The methods with only finite values of these metrics; others are never ranked."""
        return [
            label
            for label in self.methods
            if all(np.isfinite(self.values[label][metric]).all() for metric in metrics)
        ]

    def best_by(self, metric: str) -> str | None:
        """The method with the best mean of one metric; None if no method has finite values."""
        sign = 1 if self.better[metric] == "higher" else -1
        return max(
            self._finite([metric]),
            key=lambda label: sign * float(np.mean(self.values[label][metric])),
            default=None,
        )

    def title(self, metric: str) -> str:
        """The heading of a metric."""
        return self.titles.get(metric) or metric

    def meaning(self, metric: str) -> str:
        """A sentence about what a built-in metric measures; empty for other metrics."""
        lines = (METRICS[metric].__doc__ or "").split("\n\n")[0] if metric in METRICS else ""
        return " ".join(lines.split()).removeprefix(f"{self.title(metric)}: ")

    def rows(self) -> list[dict[str, Any]]:
        """One row for each method and metric."""
        return [
            {
                "method": method,
                "metric": metric,
                **vars(self.summary(method, metric)),
                "better": self.better.get(metric, ""),
            }
            for method in self.methods
            for metric in self.metrics
        ]

    def table(self, markdown: bool = False) -> str:
        """Means with intervals; the best mean of a column is marked."""
        directions = {name: self.better.get(name, "") for name in self.metrics}
        header = ["method", *(self.title(m) + _ARROWS[directions[m]] for m in self.metrics)]
        best = {name: self.best_by(name) for name, better in directions.items() if better}
        lines = []
        for method in self.methods:
            cells = [f"`{method}`" if markdown else method]
            for metric in self.metrics:
                summary = self.summary(method, metric)
                half = (summary.high - summary.low) / 2
                text = f"{summary.mean:.3g} ± {half:.1g}" if summary.mean else "0"
                if best.get(metric) == method:
                    text = f"**{text}**" if markdown else f"{text} *"
                cells.append(text)
            lines.append(cells)
        return _markdown(header, lines) if markdown else _aligned(header, lines)

    def __str__(self) -> str:
        count = counted(self.samples, "sample")
        skipped = ", ".join(f"{reason} ({n})" for reason, n in self.skipped.items())
        state = "" if self.complete else " (interrupted: partial result)"
        parts = [f"{self.model}, {count}{f'; skipped: {skipped}' if skipped else ''}{state}"]
        parts += [_named(rejection) for rejection in self.rejected[:_NAMED]]
        if len(self.rejected) > _NAMED:
            parts.append(f"  and {len(self.rejected) - _NAMED} more: see `rejected`")
        if self.metrics:
            parts.append(self.table())
            parts.append("± half of the 95 % bootstrap interval, * best mean of the column")
        if self.recommendation is not None:
            parts.append(self.recommendation.text)
        if "conservation" in self.metrics:
            parts += ["", self.conservation_table()]
        parts += ["", *map(str, self.notes)] if self.notes else []
        return "\n".join(parts)

    def conservation_table(self, markdown: bool = False) -> str:
        """Σ scores against the output: slope, R² of the fitted line and of the diagonal, gap."""
        header = ["method", "slope", "R²", "R² of the diagonal", "mean |gap|", "/ mean |output|"]
        lines = [
            [f"`{method}`" if markdown else method, *numbers]
            for method, numbers in self.conservation_cells().items()
        ]
        return _markdown(header, lines) if markdown else _aligned(header, lines)

    def conservation_cells(self) -> dict[str, list[str]]:
        """The numbers of `conservation` as text, by method."""
        return {
            method: ["–" if number is None else f"{number:.3g}" for number in vars(line).values()]
            for method, line in self.conservation.items()
        }

    # Files

    def to_csv(self, path: str | Path | None = None) -> str:
        """The table of means as CSV; with `path` also written there."""
        columns = ["method", "metric", *(f.name for f in fields(Summary)), "better"]
        text = csv_text(columns, self.rows())
        if path is not None:
            write_text(path, text)
        return text

    def to_csvs(self, folder: str | Path) -> list[Path]:
        """Writes all tables to a folder: means, conservation, rejected samples and studies."""
        conservation = [{"method": m, **vars(line)} for m, line in self.conservation.items()]
        paths = [Path(folder) / "summary.csv"]
        self.to_csv(paths[0])
        tables = {"conservation": conservation, "rejected": self.rejected, **self.study_tables}
        for name, rows in tables.items():
            if rows:
                paths.append(Path(folder) / f"{name}.csv")
                write_text(paths[-1], csv_text(list(rows[0]), rows))
        return paths

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, including derived summaries for other programs."""
        derived = {
            "summary": self.rows(),
            "best": self.best,
            "recommendation": None if self.recommendation is None else self.recommendation.text,
            "conservation": {method: vars(line) for method, line in self.conservation.items()},
        }
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"schema": self.schema, **data, **derived}

    @classmethod
    def _of_data(cls, data: dict[str, Any]) -> Self:
        values = {name: value for name, value in data.items() if name not in ("schema", *_DERIVED)}
        sums = {m: [(s, y) for s, y in pairs] for m, pairs in values["sums"].items()}
        return cls(**{**values, "sums": sums})

    def _html(self, whole_page: bool) -> str:
        """A page with plots; in a notebook only the tables."""
        render: Callable[..., str] = import_module("wherefrom.show.report").render_evaluation
        if not whole_page:
            return render(self, (), whole_page=False)
        with TemporaryDirectory() as folder:
            try:
                pictures = self.plots(folder)
            except MissingExtra:  # without matplotlib, only tables
                pictures = []
            return render(self, pictures)

    def _rows(self) -> list[dict[str, Any]]:
        return self.rows()

    def _figures(self) -> Mapping[str, Callable[..., Any]]:
        """The metrics with curves, "conservation", "agreement", "flip", and those of studies."""
        figures: Mapping[str, Callable[..., Any]]
        figures = import_module("wherefrom.show.figure").evaluation_drawings(self)
        return figures


def summarise(values: Floats, seed: int = 0) -> Summary:
    """The mean with its 95 % interval, which for a single value is the value."""
    mean, count = float(values.mean()), len(values)
    if not np.isfinite(mean):
        return Summary(mean, np.nan, np.nan, count)
    low, high = mean_interval(values, seed) if count > 1 else (mean, mean)
    return Summary(mean, low, high, count)


def fit(sums: Sequence[Sequence[float]]) -> Fit:
    """How well pairs (Σ lines, output) fit a line, and the diagonal.

    >>> fit([(1.0, 1.0), (2.0, 3.0), (3.0, 5.0)])
    Fit(slope=0.5, r2=1.0, r2_diagonal=0.375, gap=1.0, relative_gap=0.3333333333333333)
    """
    totals, outputs = np.array(sums, dtype=np.float64).T
    gaps = np.abs(totals - outputs)
    size = float(np.abs(outputs).mean())
    relative = float(gaps.mean()) / size if size else None
    spread = float(np.square(outputs - outputs.mean()).sum())
    if spread == 0:
        return Fit(None, None, None, float(gaps.mean()), relative)
    line = linregress(outputs, totals)
    # scores with a constant sum, such as attention, explain none of the output
    constant = float(np.square(totals - totals.mean()).sum()) <= 1e-12 * spread
    r2 = 0.0 if constant else float(line.rvalue) ** 2
    diagonal = 1 - float(np.square(gaps).sum()) / spread
    return Fit(float(line.slope), r2, diagonal, float(gaps.mean()), relative)


def _named(rejection: Record) -> str:
    """A line about a rejected sample, with the reason."""
    text = shorten(rejection["input"], 60, placeholder=" …")
    name = f"{rejection['sample']} “{text}”" if text else str(rejection["sample"])
    # rows that could not be read are numbered in the table, samples among those that were
    noun = "" if str(rejection["sample"]).startswith("row ") else "sample "
    return f"  left out: {noun}{name}: {rejection['reason']}"


def _is_random(label: str) -> bool:
    return label == Random.name or label.startswith(f"{Random.name}(")


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [header, *rows]
    )
