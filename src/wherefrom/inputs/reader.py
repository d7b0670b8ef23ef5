"""What every kind of input has in common: it is read, batched, and has units that can be erased."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.errors import InputError, TargetError
from wherefrom.explanation import Unit
from wherefrom.subject import Inputs, Subject

Item = TypeVar("Item")
Form = TypeVar("Form")
Present = NDArray[np.bool_]  # (K, units): which units are there


class Reader(ABC, Generic[Item, Form]):
    """Turns what a person gives into batches that the model takes.

    An item is one input, read but not yet in a batch. A form is an item with some of its units
    erased, as evaluations run by the thousand: light until it is collated.
    """

    subject: Subject
    pads: bool = True  # whether items of several sizes may share a batch
    alone: bool = False  # whether each must be run by itself

    @abstractmethod
    def read(self, given: Any, truncate: bool = False) -> Item:
        """One input."""

    @abstractmethod
    def listed(self, given: Any) -> tuple[list[Any], bool]:
        """What was given as a list of inputs, and whether it was a single one."""

    @abstractmethod
    def batch(self, items: Sequence[Item]) -> Inputs:
        """Items as one batch."""

    @abstractmethod
    def size(self, item: Item) -> int:
        """Its number of units."""

    @abstractmethod
    def units_of(self, item: Item) -> tuple[Unit, ...]:
        """What its units are called."""

    # For evaluation.

    @abstractmethod
    def erased(self, item: Item, present: Present, blank: str | int | None) -> list[Form]:
        """The item with only some of its units left, once for each row of `present`."""

    @abstractmethod
    def key(self, form: Form) -> bytes:
        """Equal for forms that are the same to the model."""

    @abstractmethod
    def length(self, form: Form) -> int:
        """The number of its units."""

    def batch_shape(self, form: Form) -> Hashable:
        """Forms may share a batch if this is equal; by default any, or those of one length."""
        return None if self.pads else self.length(form)

    @abstractmethod
    def collate(self, forms: Sequence[Form]) -> dict[str, Tensor]:
        """What the model takes for these."""

    def read_all(self, given: Sequence[Any], truncate: bool = False) -> list[Item]:
        """Each input; the first that cannot be read is an error."""
        return [self.read(one, truncate) for one in given]

    def read_each(self, given: Sequence[Any], truncate: bool = False) -> list[Item | InputError]:
        """Each input, or the reason why it cannot be one of this model's."""
        found: list[Item | InputError] = []
        for one in given:
            try:
                found.append(self.read(one, truncate))
            except InputError as error:
                found.append(error)
        return found

    def chunks(self, items: Sequence[Item], size: int) -> list[list[int]]:
        """Which items go into a batch together: those of one size."""
        order = sorted(range(len(items)), key=lambda i: self.size(items[i]))
        chunks: list[list[int]] = []
        for i in order:
            last = chunks[-1] if chunks else []
            if last and len(last) < size and self.size(items[last[0]]) == self.size(items[i]):
                last.append(i)
            else:
                chunks.append([i])
        return chunks

    def positions(self, inputs: Inputs, position: int | None) -> Tensor:
        """The row of the logits that is asked about, where they have one for each place."""
        lengths = inputs.mask.sum(1)
        return lengths - 1 if position is None else placed(lengths, position)


def placed(lengths: Tensor, position: int) -> Tensor:
    """A position as each sample's own number, counted from the end if negative."""
    shortest = int(lengths.min())
    if not -shortest <= position < shortest:
        raise TargetError(f"there is no position {position}: the input has {shortest} tokens.")
    return lengths + position if position < 0 else torch.full_like(lengths, position)
