"""Runs each distinct perturbed input of all methods and samples once."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wherefrom.core.runner import Rejected, split_on_failure
from wherefrom.core.scope import restores_state
from wherefrom.inputs.reader import Reader

Logits = NDArray[np.floating[Any]]


@dataclass
class ForwardCache:
    """Collects forms (inputs with units erased) and runs the model on each distinct one once.

    A batch has forms of similar length, up to about `positions` positions; forms that the reader
    cannot pad share a batch only if they have the same shape. `forward_seconds` is the time spent
    in the model.
    """

    reader: Reader[Any, Any]
    positions: int = 2048
    requested: int = 0
    computed: int = 0
    forward_seconds: float = 0.0
    _ids: dict[bytes, int] = field(default_factory=dict)
    _waiting: list[Any] = field(default_factory=list)
    _outcomes: list[Logits | Rejected] = field(default_factory=list)

    def request(self, forms: Sequence[Any]) -> list[int]:
        """Requests the outputs of forms; returns ids for `logits`, to call after `run`."""
        ids = []
        known, waiting = self._ids, self._waiting
        for form in forms:
            key = self.reader.key(form)
            if key not in known:
                known[key] = len(self._outcomes) + len(waiting)
                waiting.append(form)
            ids.append(known[key])
        self.requested += len(ids)
        return ids

    def run(self, progress: Callable[[float], None] | None = None) -> None:
        """Runs the model on all waiting forms; `progress` receives the finished share."""
        waiting = self._waiting
        outputs: dict[int, Logits | Rejected] = {}
        device = self.reader.runner.device
        for batch in self._batches(waiting):
            outputs.update(
                split_on_failure(
                    batch,
                    lambda indices: self._outputs([waiting[i] for i in indices]),
                    reject=True,
                    device=device,
                )
            )
            if progress is not None:
                progress(len(outputs) / len(waiting))
        self.computed += len(waiting)
        self._outcomes.extend(outputs[i] for i in range(len(waiting)))
        waiting.clear()

    def _batches(self, forms: Sequence[Any]) -> Iterator[list[int]]:
        """Indices of forms that may share a batch, the shortest first."""
        positions = 1 if self.reader.alone else self.positions
        groups: dict[Hashable, list[int]] = {}
        for i, form in enumerate(forms):
            groups.setdefault(self.reader.batch_shape(form), []).append(i)
        for group in groups.values():
            lengths = {i: max(1, self.reader.length(forms[i])) for i in group}
            order = sorted(group, key=lambda i: lengths[i])
            while order:
                # sorted by length, so the last form of a batch is the longest and limits its size
                batch = order[: max(1, positions // lengths[order[0]])]
                batch = batch[: max(1, positions // lengths[batch[-1]])]
                yield batch
                order = order[len(batch) :]

    @restores_state
    def _outputs(self, forms: Sequence[Any]) -> Sequence[Logits]:
        tensors = self.reader.collate(forms)
        runner = self.reader.runner
        start = time.perf_counter()
        with runner.evaluating(inference=True):
            logits = runner.run(tensors)
        self.forward_seconds += time.perf_counter() - start
        # NumPy has no bfloat16; float64 is kept
        rows: Logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).cpu().numpy()
        if rows.ndim == 2:
            return list(rows)
        return [row[self.reader.length(form) - 1] for row, form in zip(rows, forms, strict=True)]

    def logits(self, ids: Sequence[int]) -> Logits:
        """The logits of the forms with these ids; raises the error of a failed form."""
        outcomes = [self._outcomes[i] for i in ids]
        for outcome in outcomes:
            if isinstance(outcome, Rejected):
                raise outcome.error
        return np.stack([outcome for outcome in outcomes if not isinstance(outcome, Rejected)])

    def clear(self) -> None:
        """Drops all outputs."""
        self._ids.clear()
        self._outcomes.clear()
