"""Finds the blocks of a model, its attention heads and its neurons from the calls of a pass."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from wherefrom.core.torch_internals import view_base
from wherefrom.tracing.catalogue import Kind, TorchCall, tensors_in
from wherefrom.tracing.observers import Observer
from wherefrom.tracing.observers.checkpointing import repeated_blocks
from wherefrom.tracing.tags import role_of
from wherefrom.tracing.tracer import Tracer, is_activation


class Site(NamedTuple):
    """A tensor of components: the heads of an attention call, or neurons."""

    place: Literal["heads", "neurons"]
    layer: int  # the number of the block, in the order of the pass
    call: int  # its number among those of its block and place
    where: str  # the running module
    heads: int | None = None  # how many, if they are known to be on the axis before the queries
    first_head: int = 0  # heads of the block's earlier calls
    expert: int | None = None


_LINEAR = frozenset(
    (
        Kind.LINEAR, Kind.CONTRACTION, Kind.ADDED_CONTRACTION, Kind.EINSUM, Kind.QUANTISED_LINEAR,
        Kind.CONVOLUTION,
    )
)  # fmt: skip
_ACTIVATES = frozenset((Kind.ACTIVATION, Kind.HOMOGENEOUS))
_KEEPS = frozenset(
    (
        Kind.PRODUCT, Kind.QUOTIENT, Kind.NEGATION, Kind.CAST, Kind.RESHAPE, Kind.TRANSPOSE,
        Kind.SELECT, Kind.JOIN, Kind.STACK, Kind.SPLIT,
    )
)  # fmt: skip
"""Calls whose result is attended or activated if an argument is."""
MARKS = ("wherefrom_activated", "wherefrom_attended")


class SiteObserver(Observer):
    """Notifies of blocks and sites; subclasses override what they need.

    Neurons are what a linear call of a block reads of an activation, unless it comes from
    attention, as a gated output does.
    """

    late: ClassVar[bool] = True

    def __init__(self, model: nn.Module) -> None:
        self.layers = 0  # blocks so far
        self._blocks = repeated_blocks(model)
        self._open: nn.Module | None = None  # the block that is running
        self._calls: Counter[tuple[str, int]] = Counter()
        self._heads: Counter[int] = Counter()  # of each layer
        self._attending: list[bool] = []  # for each call that is running

    def on_block(self, tracer: Tracer, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """A block begins; returns its arguments."""
        return args

    def on_block_end(self, tracer: Tracer) -> None:
        """A block ends."""

    def on_site(self, tracer: Tracer, site: Site, call: TorchCall, tensor: Tensor) -> Tensor:
        """The heads that a call returns, or the neurons that it reads; returns them."""
        return tensor

    def enter_module(
        self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        if self._open is None and id(module) in self._blocks:
            self._open, self.layers = module, self.layers + 1
            return self.on_block(tracer, args)
        return args

    def leave_module(
        self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...], kwargs: Any, out: Any
    ) -> Any:
        if self._open is module:
            self._open = None
            self.on_block_end(tracer)
        if is_activation(module):  # the tracer has replaced its result
            for tensor in tensors_in(out):
                tensor.wherefrom_activated = True  # type: ignore[attr-defined]
        return out

    def before_call(self, tracer: Tracer, call: TorchCall) -> TorchCall:
        tensors = [tensor for tensor in call.tensors() if tensor.requires_grad]
        attends = _attends(call, tensors)
        self._attending.append(attends)
        if self._open is None or attends or not _reads_neurons(call, tensors):
            return call
        (neurons,) = tensors
        changed = self._found(tracer, "neurons", call, neurons)
        return call if changed is neurons else call.mapped(lambda t: changed if t is neurons else t)

    def after_call(self, tracer: Tracer, call: TorchCall, out: Any) -> Any:
        attends = self._attending.pop()
        results = [t for t in tensors_in(call.args[0] if out is None else out) if t.requires_grad]
        arguments = [tensor for tensor in call.tensors() if tensor.requires_grad]
        keeps = call.kind in _KEEPS or (call.kind is Kind.SUM and len(arguments) == 1)
        activated = call.kind in _ACTIVATES or (keeps and any(map(_is_activated, arguments)))
        attended = keeps and any(hasattr(t, "wherefrom_attended") for t in arguments)
        for mark, applies in zip(MARKS, (activated, attended or attends), strict=True):
            for tensor in results if applies else ():
                setattr(tensor, mark, True)
        if attends and results and self._open is not None and not any(self._attending):
            return self._found(tracer, "heads", call, out)
        return out

    def _found(
        self, tracer: Tracer, place: Literal["heads", "neurons"], call: TorchCall, tensor: Tensor
    ) -> Tensor:
        layer = self.layers - 1
        number, first = self._calls[place, layer], self._heads[layer]
        self._calls[place, layer] += 1
        if place == "neurons":
            site = Site(place, layer, number, tracer.where, expert=_expert(call))
        else:
            heads = _heads(call, tensor, tracer.entry_points.batch)
            self._heads[layer] += heads or 0
            site = Site(place, layer, number, tracer.where, heads, first)
        return self.on_site(tracer, site, call, tensor)


def _is_activated(tensor: Tensor) -> bool:
    return hasattr(tensor, "wherefrom_activated")


def _reads_neurons(call: TorchCall, tensors: list[Tensor]) -> bool:
    if call.kind not in _LINEAR or len(tensors) != 1:
        return False
    return _is_activated(tensors[0]) and not hasattr(tensors[0], "wherefrom_attended")


def _attends(call: TorchCall, tensors: list[Tensor]) -> bool:
    if call.kind is Kind.ATTENTION:
        return bool(tensors)
    if call.kind not in (Kind.CONTRACTION, Kind.ADDED_CONTRACTION, Kind.EINSUM):
        return False
    return any(role_of(tensor) == "softmax" for tensor in tensors)


def _heads(call: TorchCall, out: Tensor, batch: int) -> int | None:
    """The number of heads in (batch, heads, queries, d) or (batch · heads, queries, d)."""
    is_left = call.kind is not Kind.EINSUM and (
        call.kind is Kind.ATTENTION or role_of(call["left"]) == "softmax"
    )
    if is_left and out.ndim == 4 and out.shape[0] == batch:
        return out.shape[1]
    return out.shape[0] // batch if is_left and out.ndim == 3 else None


def _expert(call: TorchCall) -> int | None:
    """The number of the expert whose matrix is a slice of one tensor with all experts'."""
    weight = call.get("weight")
    base = view_base(weight) if isinstance(weight, Tensor) else None
    if base is None or base.ndim != 3 or len(base) < 2 or weight.ndim != 2:
        return None
    return int((weight.storage_offset() - base.storage_offset()) // base.stride(0))
