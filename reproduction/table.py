"""All numbers as one CSV: `results.csv`, a row for each number with its interval and settings."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from reproduction.result import MEASURES, SetResult
from wherefrom.evaluation.recommendation import difference
from wherefrom.evaluation.results import fit, summarise
from wherefrom.storage.tables import csv_text
from wherefrom.storage.writing import write_text

FILE = "results.csv"
MODEL = ("accuracy", "macro_f1", "majority", "roc_auc", "validation")
PAPER = Path(__file__).with_name("ali2022.csv")


@dataclass(frozen=True)
class Number:
    """One measured number.

    `quantity` is a measure of a method, `seconds` a sample takes, `slope` and `gap` of Σ scores
    against the output, or a figure of the model (then `method` is empty). With `against` it is the
    mean difference of the two methods on the same samples.
    """

    set: str
    quantity: str
    method: str
    against: str
    value: float
    low: float | None
    high: float | None
    samples: int
    settings: str


def numbers_of(result: SetResult) -> Iterator[Number]:
    """All numbers of a set."""
    name, count = result.name, result.samples
    for quantity in MODEL:
        if quantity in result.model["figures"]:
            value = result.model["figures"][quantity]
            about = json.dumps({k: result.model[k] for k in ("data", "parameters", "sha256")})
            yield Number(name, quantity, "", "", value, None, None, 0, about)
    for method, values in result.values.items():
        settings = json.dumps(result.settings[method])
        for measure in MEASURES.values():
            s = summarise(np.array(values[measure]))
            yield Number(name, measure, method, "", s.mean, s.low, s.high, s.samples, settings)
        seconds = result.seconds[method]
        yield Number(name, "seconds", method, "", seconds, None, None, count, settings)
        line = fit(result.sums[method])
        for quantity, value in (("slope", line.slope), ("gap", line.relative_gap)):
            if value is not None:
                yield Number(name, quantity, method, "", value, None, None, count, settings)
    for one, other in combinations(result.values, 2):
        for measure in MEASURES.values():
            pair = np.array(result.values[one][measure]), np.array(result.values[other][measure])
            mean = float((pair[0] - pair[1]).mean())
            low, high = difference(*pair)
            yield Number(name, measure, one, other, mean, low, high, count, "")


def write_numbers(sets: Sequence[SetResult], results: Path) -> None:
    """Writes the CSV with the numbers of these sets."""
    numbers = [number for result in sets for number in numbers_of(result)]
    columns = [column.name for column in fields(Number)]
    rows = [asdict(number) | _shown(number) for number in numbers]
    results.mkdir(parents=True, exist_ok=True)
    write_text(results / FILE, csv_text(columns, rows))


def _shown(number: Number) -> dict[str, Any]:
    """The numbers with as many digits as mean something."""
    three = {"value": number.value, "low": number.low, "high": number.high}
    return {name: None if value is None else float(f"{value:.6g}") for name, value in three.items()}


def read_numbers(results: Path) -> list[Number]:
    """The rows of the CSV that `write_numbers` wrote."""
    with (results / FILE).open(encoding="utf-8", newline="") as file:
        return [_number(row) for row in csv.DictReader(file)]


def _number(row: dict[str, str]) -> Number:
    low, high = (float(row[bound]) if row[bound] else None for bound in ("low", "high"))
    return Number(
        row["set"],
        row["quantity"],
        row["method"],
        row["against"],
        float(row["value"]),
        low,
        high,
        int(row["samples"]),
        row["settings"],
    )


def paper_figures() -> dict[tuple[str, str, str], float]:
    """The figures of the paper by measure, method and title of the set; A-Flow has gaps."""
    with PAPER.open(encoding="utf-8", newline="") as file:
        return {
            (row["table"], row["method"], title): float(value)
            for row in csv.DictReader(file)
            for title, value in row.items()
            if title not in ("table", "method") and value
        }


class Numbers:
    """Looks up the rows of the CSV."""

    def __init__(self, numbers: Iterable[Number]) -> None:
        self._rows = {(n.set, n.quantity, n.method, n.against): n for n in numbers}
        self.sets = list(dict.fromkeys(key[0] for key in self._rows))

    def get(self, of: str, quantity: str, method: str = "") -> Number | None:
        """A number of a method, or of the model."""
        return self._rows.get((of, quantity, method, ""))

    def value(self, of: str, quantity: str, method: str = "") -> float:
        """The same, where it is known to be there."""
        return self._rows[of, quantity, method, ""].value

    def difference(self, of: str, quantity: str, one: str, other: str) -> Difference:
        """The paired difference one − other; each pair is stored once."""
        row = self._rows.get((of, quantity, one, other))
        sign = 1.0
        if row is None:
            row, sign = self._rows[of, quantity, other, one], -1.0
        bounds = sorted(sign * bound for bound in (row.low, row.high) if bound is not None)
        return Difference(sign * row.value, bounds[0], bounds[1])


@dataclass(frozen=True)
class Difference:
    """A mean paired difference with its 95 % interval."""

    mean: float
    low: float
    high: float

    def verdict(self, measure: str) -> int:
        """1 if the first is better beyond the interval, −1 if it is worse, 0 if level."""
        sign = 1 if measure == "AUAC" else -1
        if self.low <= 0 <= self.high:
            return 0
        return sign if self.low > 0 else -sign
