"""The layer that makes the logits: found by what it gives, then run for the rows that count."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor, nn

from wherefrom.core.torch_internals import without_function_modes
from wherefrom.rules.needed_rows import Weight, rows_at, weight_key
from wherefrom.tracing.catalogue import TorchCall

_PROJECTIONS: weakref.WeakKeyDictionary[nn.Module, Weight] = weakref.WeakKeyDictionary()


@dataclass
class Projection:
    """Narrows what enters the output projection of a model that gives logits for every place.

    A first pass finds the layer: the model's output is its result, and no other layer has its
    weight. From then on it gets only the rows at these `positions`, one or several of a sample.
    """

    model: nn.Module
    positions: Tensor  # (B,) or (B, R)
    places: int  # of a sample
    _uses: Counter[Weight] = field(default_factory=Counter)
    _last: tuple[Weight, Tensor] | None = None

    def narrowed(self, call: TorchCall) -> TorchCall:
        """The call of a linear layer, on the rows that count if it is the output projection."""
        x = call["input"]
        if (
            _PROJECTIONS.get(self.model) != weight_key(call["weight"])
            or x.ndim != 3
            or x.shape[:2] != (len(self.positions), self.places)
        ):
            return call
        with without_function_modes():  # no call of the model
            rows = rows_at(x, self.positions.reshape(len(x), -1))
        return call if rows is None else call.with_(input=rows)

    def note(self, call: TorchCall, out: Tensor) -> None:
        """Notes the result of a linear layer, which may be the output projection."""
        if out.ndim == 3 and out.shape[1] == self.places:
            self._last = (weight_key(call["weight"]), out)
            self._uses[self._last[0]] += 1

    def learn(self, logits: Tensor) -> None:
        """Remembers the last layer if the logits are what it gave."""
        if self._last is not None and self._last[1] is logits and self._uses[self._last[0]] == 1:
            _PROJECTIONS[self.model] = self._last[0]
