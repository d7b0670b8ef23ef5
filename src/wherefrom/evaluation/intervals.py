"""Intervals of means over samples."""

from __future__ import annotations

import numpy as np
from scipy.stats import bootstrap

from wherefrom.evaluation.metrics import Floats

RESAMPLES = 1000
_AT_A_TIME = 1 << 20  # numbers that the bootstrap draws at a time: 8 MB of indices


def mean_interval(values: Floats, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the mean of two or more values: percentiles of 1,000 resampled means.

    Percentile and not BCa, whose jackknife would take n² numbers. The same seed draws the same
    samples of any values, so that intervals can be compared.
    """
    interval = bootstrap(
        (values,),
        np.mean,
        n_resamples=RESAMPLES,
        batch=max(1, _AT_A_TIME // len(values)),
        confidence_level=0.95,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(interval.low), float(interval.high)
