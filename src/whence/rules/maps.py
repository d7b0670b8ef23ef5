"""The attention maps that a pass met, kept in the graph and replaceable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

Replace = Callable[[int, Tensor], Tensor]


@dataclass
class Maps:
    """Collects each map as (batch, heads, query, key), in the order of the forward pass."""

    batch: int
    replace: Replace | None = None
    found: list[Tensor] = field(default_factory=list)

    def take(self, weights: Tensor) -> Tensor:
        """Keeps the map, and gives back what the model shall multiply its values with."""
        shape = weights.shape
        if weights.ndim == 3 and shape[0] % self.batch == 0:
            heads = weights.reshape(self.batch, shape[0] // self.batch, *shape[1:])
        elif weights.ndim == 4:
            heads = weights
        else:
            heads = weights
        if self.replace is not None:
            heads = self.replace(len(self.found), heads)
        self.found.append(heads)
        return heads.reshape(shape)
