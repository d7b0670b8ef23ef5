"""What a study is: a look into the model on some samples, beside the metrics of explanations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from wherefrom.explanation import Explanation, TargetInfo
from wherefrom.subject import Inputs, Subject
from wherefrom.target import Target

Record = dict[str, Any]  # what JSON can hold
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Group:
    """Some samples with their explanations: `make` gives some of them as one batch."""

    subject: Subject
    make: Callable[[Sequence[int]], Inputs]
    found: Mapping[str, Sequence[Explanation]]

    def __len__(self) -> int:
        return len(next(iter(self.found.values())))

    def target(self, sample: int) -> TargetInfo:
        """What the explanations of a sample are about, the same for all methods."""
        return next(iter(self.found.values()))[sample].target

    def length(self, sample: int) -> int:
        """Units of a sample."""
        return len(next(iter(self.found.values()))[sample].units)

    def asked(self, samples: Sequence[int]) -> Target:
        """The targets of these samples, for a batch of them."""
        targets = [self.target(i) for i in samples]
        places = [each.position for each in targets]
        return Target(
            torch.tensor([each.index for each in targets]),
            position=None if None in places else torch.tensor(places),
        )


class Study(ABC):
    """One record for each sample; tables and a summary of all of them.

    `limit` is the number of samples it is made on, or None for all.
    """

    name: ClassVar[str]
    limit: ClassVar[int | None] = None

    @abstractmethod
    def records(self, group: Group, tick: Callable[[], None]) -> list[Record]:
        """A record for each sample of the group; `tick` is called whenever some work is done."""

    @abstractmethod
    def summary(self, records: Sequence[Record]) -> Record:
        """What the records say together."""

    @abstractmethod
    def tables(self, records: Sequence[Record]) -> dict[str, Rows]:
        """The records as tables, by name."""
