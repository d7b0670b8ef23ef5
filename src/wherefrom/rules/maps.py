"""The attention maps that a pass met, kept in the graph and replaceable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from wherefrom.errors import ModelError
from wherefrom.rules.sources import stream_of
from wherefrom.rules.tags import tag_of

Replace = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True)
class Map:
    """One attention map, and which fields of the input its rows and columns run along with."""

    weights: Tensor  # (B, heads, query, key)
    query: int
    key: int


@dataclass
class Maps:
    """Collects the maps in the order of the forward pass, and the last state that has all places.

    `replace(i, map)` gives what the model shall multiply its values with instead of map i.
    """

    batch: int
    replace: Replace | None = None
    seen: list[Map] = field(default_factory=list)
    last: Tensor | None = None
    places_first: bool = False  # of the last state

    def take(self, weights: Tensor, value: Any) -> Tensor:
        """Keeps the map, and gives back what the model shall multiply its values with."""
        shape = weights.shape
        if weights.ndim == 3 and shape[0] % self.batch == 0:
            heads = weights.reshape(self.batch, -1, *shape[1:])
        elif weights.ndim == 4 and shape[0] == self.batch:
            heads = weights
        else:
            raise ModelError(
                f"an attention map of shape {tuple(shape)} does not run from all places to all: "
                "this model attends in windows or chunks. Attention methods cannot follow it; "
                'try method="lrp".'
            )
        if self.replace is not None:
            heads = self.replace(len(self.seen), heads)
        query = stream_of(weights)
        key = tag_of(value).stream
        self.seen.append(Map(heads, query, query if key is None else key))
        return heads.reshape(shape)

    def reach(self, out: Any) -> None:
        """Notes the last tensor that still has a row for each query: what the head reads."""
        if not (isinstance(out, Tensor) and out.requires_grad and self.seen and out.ndim == 3):
            return
        samples = tag_of(out).samples
        queries = self.seen[-1].weights.shape[2]
        turned = self.batch == 1 or (samples is not None and samples.axis == 1)
        if turned and out.shape[:2] == (queries, self.batch):
            self.last, self.places_first = out, True
        elif out.shape[:2] == (self.batch, queries):
            self.last, self.places_first = out, False
