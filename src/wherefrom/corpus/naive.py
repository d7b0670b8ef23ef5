"""The view to beware of: how a name's occurrence goes together with the prediction."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from wherefrom.corpus.corpus import Corpus


@dataclass(frozen=True)
class Naive:
    """Of the texts with a name: their mean output, less that of all, and the correlation.

    It tells what company a name keeps, not what the model makes of it: a name that stands in
    praise is correlated with praise also where the model gives it no weight.
    """

    texts: int
    lift: float
    correlation: float


def naive(corpus: Corpus, texts: Collection[int]) -> Naive:
    """Correlates being one of these texts with the output that was explained."""
    inside = np.zeros(len(corpus), dtype=bool)
    inside[list(texts)] = True
    outputs = corpus.outputs
    lift = float(outputs[inside].mean() - outputs.mean()) if inside.any() else 0.0
    spread = float(outputs.std() * inside.std())
    if spread == 0:
        return Naive(int(inside.sum()), lift, 0.0)
    together = float(((outputs - outputs.mean()) * (inside - inside.mean())).mean())
    return Naive(int(inside.sum()), lift, together / spread)
