"""The graph of a model's latest forward pass, kept for further backward passes."""

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
    """Holds the graph of one forward pass, until another pass of the model needs its memory.

    A graph is given back only while the model's weights are as they were. Copies hold none.
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
        """The graph of the method with this label; what `run` gives unless it is there."""
        if self._graph is None or (label, _weights(model)) != (self._label, self._weights):
            release_graph(model)
            self._graph, self._label, self._weights = run(), label, _weights(model)
            _LATEST[model] = weakref.ref(self)
        return self._graph

    def release(self) -> None:
        """Gives the graph up, and with it its memory."""
        self._graph = None


def release_graph(model: nn.Module) -> None:
    """Gives up the graph that is kept of a model: the pass that begins may need its memory."""
    latest = _LATEST.pop(model, None)
    kept = None if latest is None else latest()
    if kept is not None:
        kept.release()


Weights = tuple[tuple[int, int], ...]


def _weights(model: nn.Module) -> Weights:
    """Which tensors a model consists of, and how often each was written into."""
    tensors = (*model.parameters(), *model.buffers())
    return tuple((id(tensor), version_of(tensor)) for tensor in tensors)
