"""Studies, which measure the model itself: the base class, and the samples of a study.

attention_erasure   whether attention weights of the last layer decide the prediction
layer_profile       Σ relevance after each block and around each norm, and by unit
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from wherefrom.core.explanation import Explanation, TargetInfo
from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.core.target import Target

Record = dict[str, Any]  # JSON-serialisable values
TableRows = list[dict[str, Any]]


@dataclass(frozen=True)
class StudySamples:
    """Samples with their explanations by method label; `batch` collates the samples at indices."""

    runner: ModelRunner
    batch: Callable[[Sequence[int]], Batch]
    explanations: Mapping[str, Sequence[Explanation]]

    def __len__(self) -> int:
        return len(self._first)

    @property
    def _first(self) -> Sequence[Explanation]:
        """The explanations of one method: all methods share units and target."""
        return next(iter(self.explanations.values()))

    def target(self, sample: int) -> TargetInfo:
        """The explained target of a sample."""
        return self._first[sample].target

    def length(self, sample: int) -> int:
        """The number of units of a sample."""
        return len(self._first[sample].units)

    def targets(self, samples: Sequence[int]) -> Target:
        """The targets of these samples as a batch."""
        targets = [self.target(i) for i in samples]
        positions = [target.position for target in targets]
        device = self.runner.device
        return Target(
            torch.tensor([target.index for target in targets], device=device),
            position=None if None in positions else torch.tensor(positions, device=device),
        )


class Study(ABC):
    """Measures one record per sample, and summarises the records in tables.

    `limit` is the largest number of samples to study, or None for all.
    """

    name: ClassVar[str]
    limit: ClassVar[int | None] = None

    @abstractmethod
    def records(self, samples: StudySamples, progress: Callable[[], None]) -> list[Record]:
        """One record per sample; `progress` is called after each step."""

    @abstractmethod
    def summary(self, records: Sequence[Record]) -> Record:
        """The results over all records."""

    @abstractmethod
    def tables(self, records: Sequence[Record]) -> dict[str, TableRows]:
        """The records as tables, by name."""
