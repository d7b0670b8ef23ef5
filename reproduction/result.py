"""What was measured on a set, sample by sample, and its file."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import wherefrom
from wherefrom.storage.writing import replacing

MEASURES = {"activation": "AUAC", "pruning": "AU-MSE"}  # the paper's names of the metrics
SUFFIX = ".json.gz"


@dataclass
class SetResult:
    """The numbers of a set by row of the tables; lists have one entry for each sample."""

    name: str
    model: dict[str, Any] = field(default_factory=dict)  # its card
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # by row and measure
    curves: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # their means
    sums: dict[str, list[list[float]]] = field(default_factory=dict)  # Σ scores and output
    seconds: dict[str, float] = field(default_factory=dict)  # an explanation took
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    norms: dict[str, Any] = field(default_factory=dict)  # shares around each norm, by method
    failed: dict[str, str] = field(default_factory=dict)  # methods that do not work on the model
    skipped: dict[str, int] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """The number of samples that were evaluated."""
        return max(map(len, self.sums.values()), default=0)

    def add(self, part: wherefrom.Evaluation, rows: dict[str, str]) -> None:
        """Adds the samples of one part; `rows` has the row of each method's label."""
        share = part.samples / (self.samples + part.samples)
        self.failed |= {rows.get(k, k): reason for k, reason in part.settings["failed"].items()}
        for reason, count in part.skipped.items():
            self.skipped[reason] = self.skipped.get(reason, 0) + count
        for label in part.methods:
            row = rows[label]
            self.settings[row] = part.settings["methods"][label]
            self.sums.setdefault(row, []).extend(map(list, part.sums[label]))
            before = self.seconds.get(row, part.seconds[label])
            self.seconds[row] = before + share * (part.seconds[label] - before)
            for metric, measure in MEASURES.items():
                values = self.values.setdefault(row, {}).setdefault(measure, [])
                values.extend(part.values[label][metric])
                curve = np.mean(part.series[label][metric], axis=0)
                earlier = np.array(self.curves.setdefault(row, {}).get(measure, curve))
                self.curves[row][measure] = (earlier + share * (curve - earlier)).tolist()

    def write(self, folder: Path) -> None:
        """Writes `<name>.json.gz`, the same bytes for the same numbers."""
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(_rounded(asdict(self)))
        with replacing(folder / f"{self.name}{SUFFIX}") as file:
            file.write(gzip.compress(text.encode(), mtime=0))

    @classmethod
    def read(cls, path: Path) -> SetResult:
        """The result that `write` wrote."""
        return cls(**json.loads(gzip.decompress(path.read_bytes())))


def _rounded(value: Any) -> Any:
    """All floats at seven digits, as float32 has them."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, (list, tuple)) else value
