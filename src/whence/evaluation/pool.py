"""Perturbed inputs of all methods and samples, each distinct one run once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whence.errors import NotFinite
from whence.subject import Subject

Item = NDArray[np.int64]
Collate = Callable[[Sequence[Item]], dict[str, Tensor]]


@dataclass
class Pool:
    """Collects items (ids of a perturbed text), runs the model on those it has not seen.

    Batches are filled with items of like length, of one length unless `pads`, to about `places`
    places. `forward_seconds` is the time in the model alone, for the efficiency of the rest.
    """

    subject: Subject
    collate: Collate
    places: int = 2048
    pads: bool = True
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

    def run(self, tick: Callable[[float], None] | None = None) -> None:
        """Runs the model on all that was asked and is not known yet.

        An item whose output is not finite has NaN for logits. `tick` hears what share is done.
        """
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
            if not self.pads:
                batch = [i for i in batch if len(waiting[i]) == len(waiting[batch[0]])]
            at += len(batch)
            for i, row in zip(batch, self._outputs([waiting[i] for i in batch]), strict=True):
                found[i] = row
            if tick is not None:
                tick(at / len(order))
        self.ran += len(order)
        self._logits.extend(row for row in found if row is not None)
        waiting.clear()

    def _outputs(self, items: Sequence[Item]) -> Sequence[NDArray[np.float32]]:
        tensors = self.collate(items)
        start = time.perf_counter()
        try:
            with self.subject.steady(), torch.inference_mode():
                logits = self.subject.run(tensors)
        except NotFinite:
            if len(items) == 1:
                return [np.full(1, np.nan, dtype=np.float32)]
            return [self._outputs([item])[0] for item in items]
        self.forward_seconds += time.perf_counter() - start
        rows: NDArray[np.float32] = logits.float().cpu().numpy()
        if rows.ndim == 2:
            return list(rows)
        return [row[len(item) - 1] for row, item in zip(rows, items, strict=True)]  # the last place

    def logits(self, numbers: Sequence[int]) -> NDArray[np.float32]:
        """The logits of what was asked under these numbers."""
        rows = [self._logits[i] for i in numbers]
        width = max(map(len, rows))
        return np.stack([row if len(row) == width else np.full(width, row[0]) for row in rows])

    def forget(self) -> None:
        """Makes room: what was run is known no longer."""
        self._known.clear()
        self._logits.clear()
