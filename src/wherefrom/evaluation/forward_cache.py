"""Perturbed inputs of all methods and samples, each distinct one run once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wherefrom.errors import NotFinite
from wherefrom.inputs.reader import Reader


@dataclass
class Pool:
    """Collects forms (inputs with units erased), runs the model on those it has not seen.

    Batches are filled with forms of like length, of one length where the reader cannot pad, to
    about `places` places. `forward_seconds` is the time in the model alone, for the efficiency of
    the rest.
    """

    reader: Reader[Any, Any]
    places: int = 2048
    asked: int = 0
    ran: int = 0
    forward_seconds: float = 0.0
    _known: dict[bytes, int] = field(default_factory=dict)
    _waiting: list[Any] = field(default_factory=list)
    _logits: list[NDArray[np.float32]] = field(default_factory=list)

    def ask(self, forms: Sequence[Any]) -> list[int]:
        """Numbers under which the logits of these forms will be found after `run`."""
        numbers = []
        known, waiting = self._known, self._waiting
        offset = len(self._logits)
        for form in forms:
            key = self.reader.key(form)
            number = known.get(key)
            if number is None:
                number = known[key] = offset + len(waiting)
                waiting.append(form)
            numbers.append(number)
        self.asked += len(numbers)
        return numbers

    def run(self, tick: Callable[[float], None] | None = None) -> None:
        """Runs the model on all that was asked and is not known yet.

        A form whose output is not finite has NaN for logits. `tick` hears what share is done.
        """
        waiting = self._waiting
        sizes = [self.reader.length(form) for form in waiting]
        places = 1 if self.reader.alone else self.places
        order = sorted(range(len(waiting)), key=lambda i: sizes[i])
        found: list[NDArray[np.float32] | None] = [None] * len(waiting)
        at = 0
        while at < len(order):
            # lengths rise, so the longest of a batch is its last: fill up to it
            count = max(1, places // max(1, sizes[order[at]]))
            batch = order[at : at + count]
            batch = batch[: max(1, places // max(1, sizes[batch[-1]]))]
            if not self.reader.pads:
                batch = [i for i in batch if sizes[i] == sizes[batch[0]]]
            at += len(batch)
            for i, row in zip(batch, self._outputs([waiting[i] for i in batch]), strict=True):
                found[i] = row
            if tick is not None:
                tick(at / len(order))
        self.ran += len(order)
        self._logits.extend(row for row in found if row is not None)
        waiting.clear()

    def _outputs(self, forms: Sequence[Any]) -> Sequence[NDArray[np.float32]]:
        tensors = self.reader.collate(forms)
        subject = self.reader.subject
        start = time.perf_counter()
        try:
            with subject.evaluating(), torch.inference_mode():
                logits = subject.run(tensors)
        except NotFinite:
            if len(forms) == 1:
                return [np.full(1, np.nan, dtype=np.float32)]
            return [self._outputs([form])[0] for form in forms]
        self.forward_seconds += time.perf_counter() - start
        rows: NDArray[np.float32] = logits.float().cpu().numpy()
        if rows.ndim == 2:
            return list(rows)
        ends = [self.reader.length(form) - 1 for form in forms]
        return [row[end] for row, end in zip(rows, ends, strict=True)]

    def logits(self, numbers: Sequence[int]) -> NDArray[np.float32]:
        """The logits of what was asked under these numbers."""
        rows = [self._logits[i] for i in numbers]
        width = max(map(len, rows))
        return np.stack([row if len(row) == width else np.full(width, row[0]) for row in rows])

    def forget(self) -> None:
        """Makes room: what was run is known no longer."""
        self._known.clear()
        self._logits.clear()
