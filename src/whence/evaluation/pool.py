"""Perturbed inputs of all methods and samples, each distinct one run once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whence.subject import Subject

Item = NDArray[np.int64]
Collate = Callable[[Sequence[Item]], dict[str, Tensor]]


@dataclass
class Pool:
    """Collects items (ids of a perturbed text), runs the model on those it has not seen.

    Batches are filled with items of like length to about `places` places. `forward_seconds` is the
    time in the model alone, for the efficiency of the rest.
    """

    subject: Subject
    collate: Collate
    places: int = 4096
    asked: int = 0
    ran: int = 0
    forward_seconds: float = 0.0
    _known: dict[bytes, int] = field(default_factory=dict)
    _waiting: list[Item] = field(default_factory=list)
    _logits: list[NDArray[np.float32]] = field(default_factory=list)

    def ask(self, items: Sequence[Item]) -> list[int]:
        """Numbers under which the logits of these items will be found after `run`."""
        numbers = []
        known, waiting = self._known, self._waiting
        offset = len(self._logits)
        for item in items:
            key = item.tobytes()
            number = known.get(key)
            if number is None:
                number = known[key] = offset + len(waiting)
                waiting.append(item)
            numbers.append(number)
        self.asked += len(numbers)
        return numbers

    def run(self) -> None:
        """Runs the model on all that was asked and is not known yet."""
        waiting = self._waiting
        order = sorted(range(len(waiting)), key=lambda i: len(waiting[i]))
        found: list[NDArray[np.float32] | None] = [None] * len(waiting)
        at = 0
        while at < len(order):
            # lengths rise, so the longest of a batch is its last: fill up to it
            count = max(1, self.places // len(waiting[order[at]]))
            batch = order[at : at + count]
            longest = len(waiting[batch[-1]])
            batch = batch[: max(1, self.places // longest)]
            at += len(batch)
            tensors = self.collate([waiting[i] for i in batch])
            start = time.perf_counter()
            with self.subject.steady(), torch.inference_mode():
                logits = self.subject.run(tensors)
            self.forward_seconds += time.perf_counter() - start
            rows = logits.float().cpu().numpy()
            for i, row in zip(batch, rows, strict=True):
                found[i] = row
        self.ran += len(order)
        self._logits.extend(row for row in found if row is not None)
        waiting.clear()

    def logits(self, numbers: Sequence[int]) -> NDArray[np.float32]:
        """The logits of what was asked under these numbers."""
        return np.stack([self._logits[i] for i in numbers])

    def forget(self) -> None:
        """Makes room: what was run is known no longer."""
        self._known.clear()
        self._logits.clear()
