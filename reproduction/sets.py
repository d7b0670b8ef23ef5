"""What every data set of the reproduction offers, and the figures that its model gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Samples:
    """The explainer of a set's model, and its test inputs with their labels in a random order."""

    explainer: Any
    rows: list[tuple[Any, int]]


@dataclass(frozen=True)
class ReproductionSet(ABC):
    """A data set of the paper."""

    name: str
    title: str  # the column of the paper's tables
    folder: str  # under the data folder
    minutes: float  # its training took on one core, for the estimate of the time left
    seconds: float  # a sample of its evaluation took, likewise

    kind: ClassVar[str]  # text or graph

    @abstractmethod
    def train(self, data: Path, base: str, work: Path, out: Path) -> None:
        """Writes a model and its card to `out`; checkpoints go to `work`."""

    @abstractmethod
    def samples(self, data: Path, model: Path) -> Samples:
        """The test inputs for the model that `train` wrote."""


def shuffled(count: int) -> list[int]:
    """The numbers below `count` in the order in which samples are drawn."""
    order: list[int] = np.random.default_rng(0).permutation(count).tolist()
    return order


def class_figures(probabilities: NDArray[Any], labels: Sequence[int]) -> dict[str, float]:
    """Accuracy and macro-F1 of the likeliest class, and the share of the most frequent label.

    >>> class_figures(np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]), [0, 0, 1, 1])
    {'accuracy': 0.75, 'macro_f1': 0.7333333333333334, 'majority': 0.5}
    """
    truth, predicted = np.asarray(labels), probabilities.argmax(1)
    scores = []
    for label in np.unique(truth):
        right = np.sum((truth == label) & (predicted == label))
        scores.append(2 * right / (np.sum(truth == label) + np.sum(predicted == label)))
    return {
        "accuracy": float(np.mean(predicted == truth)),
        "macro_f1": float(np.mean(scores)),
        "majority": float(np.unique(truth, return_counts=True)[1].max() / len(truth)),
    }
