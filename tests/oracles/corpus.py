"""A second, slow version of what a corpus is asked: one text, one word, one draw at a time."""

import itertools
import math

import numpy as np


def relevance_of(explanation, start, end):
    """The scores of all tokens that overlap a span."""
    return math.fsum(
        float(score)
        for unit, score in zip(explanation.units, explanation.scores, strict=True)
        if unit.start is not None and unit.start < end and unit.end > start
    )


def mann_whitney_exact(a, b):
    """The two-sided p-value by counting all divisions of the pooled values."""
    pooled = [*a, *b]

    def above(chosen):
        rest = [v for i, v in enumerate(pooled) if i not in chosen]
        return sum((pooled[i] > v) + 0.5 * (pooled[i] == v) for i in chosen for v in rest)

    middle = len(a) * len(b) / 2
    seen = abs(above(range(len(a))) - middle)
    ways = list(itertools.combinations(range(len(pooled)), len(a)))
    return sum(abs(above(way) - middle) >= seen - 1e-12 for way in ways) / len(ways)


def pearson(x, y):
    """The correlation, written out."""
    x, y = np.array(x, dtype=float), np.array(y, dtype=float)
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum()))
