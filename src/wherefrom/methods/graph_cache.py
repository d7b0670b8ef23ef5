"""Keeps the graph of a model's latest forward pass for further backward passes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from wherefrom.core.torch_internals import version_of

if TYPE_CHECKING:
    from wherefrom.methods.forward_graph import ForwardGraph

_LATEST: weakref.WeakKeyDictionary[nn.Module, weakref.ref[GraphCache]] = weakref.WeakKeyDictionary()


class GraphCache:
    """Keeps the graph of one forward pass until the next pass of the model.

    A graph is valid only while the model's weights are unchanged. Copies of a cache are empty.
    """

    def __init__(self) -> None:
        self._graph: ForwardGraph | None = None
        self._label = ""
        self._weights: Weights = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphCache, ()

    def graph(
        self, model: nn.Module, label: str, run: Callable[[], ForwardGraph | None]
    ) -> ForwardGraph | None:
        """The cached graph of the method with this label, else the result of `run`."""
        if self._graph is None or (label, _weights(model)) != (self._label, self._weights):
            release_graph(model)
            self._graph, self._label, self._weights = run(), label, _weights(model)
            _LATEST[model] = weakref.ref(self)
        return self._graph

    def release(self) -> None:
        """Drops the graph and frees its memory."""
        self._graph = None


def release_graph(model: nn.Module) -> None:
    """Drops the graph that is kept of a model: the next pass may need its memory."""
    latest = _LATEST.pop(model, None)
    cache = None if latest is None else latest()
    if cache is not None:
        cache.release()


Weights = tuple[tuple[int, int], ...]


def _weights(model: nn.Module) -> Weights:
    """The tensors of a model by id, and how often each was written into."""
    tensors = (*model.parameters(), *model.buffers())
    return tuple((id(tensor), version_of(tensor)) for tensor in tensors)
