"""How well sums of scores match outputs, in four numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Fit:
    """Σ lines against output over samples: a line fitted by least squares, and the diagonal.

    R² is 1 − Σ error² / Σ (Σ lines − mean)² for the line, and 1 − Σ error² / Σ (output − mean)²
    for the diagonal, on which nothing is lost. None where all samples have the same output.
    """

    slope: float | None
    r2: float | None
    r2_diagonal: float | None
    gap: float  # mean |Σ lines − output|
    relative_gap: float | None  # over mean |output|


def fit(sums: Sequence[Sequence[float]]) -> Fit:
    """The numbers of pairs (Σ lines, output).

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
    slope = float(((outputs - outputs.mean()) * (totals - totals.mean())).sum()) / spread
    left = totals - totals.mean() - slope * (outputs - outputs.mean())
    own = float(np.square(totals - totals.mean()).sum())
    # scores that add up to the same for any output, as attention does, fit nothing
    explained = 1 - float(np.square(left).sum()) / own if own > 1e-12 * spread else 0.0
    diagonal = 1 - float(np.square(gaps).sum()) / spread
    return Fit(slope, explained, diagonal, float(gaps.mean()), relative)
