"""Collects the attention maps of a pass, with their graph; they can be replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from wherefrom.errors import ModelError, use_method
from wherefrom.tracing.catalogue import TorchCall
from wherefrom.tracing.observers import Observer
from wherefrom.tracing.observers.entry_points import stream_of
from wherefrom.tracing.tags import tag_of

if TYPE_CHECKING:
    from wherefrom.tracing.tracer import Tracer

Replace = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True)
class Map:
    """The attention map of one layer, and the streams of its queries and keys.

    A layer that computes its heads one by one has a tensor for each of them.
    """

    heads: list[Tensor]  # each (B, heads, query, key)
    query: int
    key: int

    @property
    def weights(self) -> Tensor:
        """All heads, (B, heads, query, key)."""
        return self.heads[0] if len(self.heads) == 1 else torch.cat(self.heads, 1)

    @property
    def size(self) -> tuple[int, int]:
        """The numbers of queries and keys."""
        return self.heads[0].shape[2], self.heads[0].shape[3]


@dataclass
class Maps(Observer):
    """Collects the maps in the order of the forward pass, and the last state with all positions.

    Maps that do not depend on each other are heads of one layer. `replace(i, map)` returns what
    the model multiplies its values by instead of map i.
    """

    batch: int
    replace: Replace | None = None
    seen: list[Map] = field(default_factory=list)
    last: Tensor | None = None
    places_first: bool = False  # of the last state
    _layers: dict[tuple[int, ...], int] = field(default_factory=dict)  # their numbers
    _depths: dict[Any, int] = field(
        default_factory=dict
    )  # of a node: the most maps on a path before it
    _taken: dict[Any, int] = field(default_factory=dict)  # nodes of maps: their depths

    def take(self, weights: Tensor, value: Any) -> Tensor:
        """Records a map and returns what the model multiplies its values by."""
        shape = weights.shape
        if weights.ndim == 3 and shape[0] % self.batch == 0:
            heads = weights.reshape(self.batch, -1, *shape[1:])
        elif weights.ndim == 4 and shape[0] == self.batch:
            heads = weights
        else:
            raise ModelError(
                f"an attention map has shape {tuple(shape)}, which is not all positions by all "
                "positions: this model attends in windows or chunks. Attention methods do not "
                "support this.",
                **use_method("lrp", verb="Try"),
            )
        query, key = stream_of(weights), tag_of(value).stream
        key = query if key is None else key
        depth = self._depth_of(weights)
        layer = (depth, query, key, *heads.shape[2:])
        number = self._layers.setdefault(layer, len(self.seen))
        if number == len(self.seen):
            self.seen.append(Map([], query, key))
        own = self.seen[number]
        if self.replace is not None:
            before = sum(part.shape[1] for part in own.heads)
            count = heads.shape[1]
            heads = self.replace(number, heads)
            if heads.shape[1] != count:  # the replacement has all heads of the layer
                heads = heads[:, before : before + count]
        own.heads.append(heads)
        if heads.requires_grad:
            self._taken[get_gradient_edge(heads).node] = depth
        return heads.reshape(shape)

    def _depth_of(self, weights: Tensor) -> int:
        """The number of maps on the longest path to this one, including itself."""
        first = weights.grad_fn
        if first is None:
            return 1
        if first in self._taken:  # the same map is used again
            return self._taken[first]
        stack: list[Any] = [first]
        while stack:
            node = stack[-1]
            before = [after for after, _ in node.next_functions if after is not None]
            unknown = [
                after for after in before if after not in self._depths and after not in self._taken
            ]
            if unknown and node not in self._depths:
                stack.extend(unknown)
                continue
            stack.pop()
            depths = [self._taken.get(after, self._depths.get(after, 0)) for after in before]
            self._depths[node] = max(depths, default=0)
        return 1 + self._depths[first]

    def after_call(self, tracer: Tracer, call: TorchCall, out: Any) -> Any:
        """Keeps the last tensor with a row for each query: what the head of the model reads."""
        if isinstance(out, Tensor) and out.requires_grad and self.seen and out.ndim == 3:
            queries = self.seen[-1].size[0]
            if out.shape[:2] in ((queries, self.batch), (self.batch, queries)):
                turned = out.shape[0] != self.batch or tracer.entry_points.places_first
                self.last, self.places_first = out, turned and out.shape[0] == queries
        return out
