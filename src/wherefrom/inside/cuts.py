"""Cuts through a traced pass: the relevance of everything that crosses a moment of the pass.

A moment is where a block begins, where attention has given its heads, and where a linear layer
reads the neurons of an MLP. A tensor that is made before a moment and used after it crosses it.
Each call conserves relevance, so what crosses a moment and the constants that are added after it
sum to the output.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn
from torch.autograd import Function

from wherefrom.core.torch_internals import (
    next_sequence_number,
    sequence_number,
    without_function_modes,
)
from wherefrom.rules.offsets import any_offset, set_offset
from wherefrom.tracing.catalogue import ELEMENTWISE, Kind, TorchCall, tensors_in
from wherefrom.tracing.observers import Observer
from wherefrom.tracing.observers.checkpointing import repeated_blocks
from wherefrom.tracing.tags import like, role_of, tag_of, widened
from wherefrom.tracing.tracer import RootActivations, Tracer

Place = Literal["block", "heads", "neurons", "end"]


class Site(NamedTuple):
    """A tensor of components: the heads of an attention call, or neurons."""

    place: Place
    layer: int
    call: int  # its number among those of its block and place
    where: str  # the running module
    heads: int | None = None  # how many, if they are known to be on the first axes
    expert: int | None = None


class Moment(NamedTuple):
    """A moment of the pass: a block begins or ends, or the tensor of a site is complete."""

    place: Place
    layer: int  # the number of the block, in the order of the pass
    where: str
    site: Site | None = None


@dataclass(eq=False)
class Crossing:
    """A tensor that is used at a later moment than it was made, and the relevance of this use."""

    made: int  # moments before it was made
    used: int  # moments before its use
    stream: int | None  # of its rows
    role: str
    site: Site | None
    shape: tuple[int, ...]
    rows: Tensor | None = None  # Σ g · x over features, in float64; None if it has no gradient
    features: Tensor | None = None  # of neurons: Σ g · x over rows

    def record(self, gradient: Tensor, value: Tensor) -> None:
        """Keeps the relevance g · x by row; of neurons also by feature."""
        products = (widened(gradient) * widened(value)).double().reshape(-1, value.shape[-1])
        self.rows = products.sum(1)
        if self.site is not None and self.site.place == "neurons":
            self.features = products.sum(0)


@dataclass(eq=False)
class Gate:
    """What the backward pass does at crossings."""

    records: bool = True
    closed: bool = False  # sites pass no relevance on


class _Tap(Function):
    """The identity; its backward pass computes the relevance of a crossing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, crossing: Crossing, gate: Gate) -> Tensor:
        ctx.save_for_backward(value)  # autograd notices if the model writes into it
        ctx.crossing, ctx.gate = crossing, gate
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        (value,), crossing, gradient = ctx.saved_tensors, ctx.crossing, gradients[0]
        if ctx.gate.records:
            crossing.record(gradient, value)
        closed = ctx.gate.closed and crossing.site is not None
        return None if closed else gradient, None, None, None


@dataclass(eq=False)
class Tap:
    """A crossing in the graph of a pass."""

    crossing: Crossing
    tensor: Tensor  # what calls use
    value: Tensor  # its value, or difference to the reference, whose relevance is g · value


_LINEAR = frozenset(
    (
        Kind.LINEAR, Kind.CONTRACTION, Kind.ADDED_CONTRACTION, Kind.EINSUM, Kind.QUANTISED_LINEAR,
        Kind.CONVOLUTION,
    )
)  # fmt: skip
_KEEPS = frozenset(
    (
        Kind.PRODUCT, Kind.QUOTIENT, Kind.NEGATION, Kind.CAST, Kind.RESHAPE, Kind.TRANSPOSE,
        Kind.SELECT, Kind.JOIN, Kind.STACK, Kind.SPLIT,
    )
)  # fmt: skip
"""Calls of what is attended or activated whose result is so too."""


class Cuts(Observer):
    """Divides a pass of one sample at its moments and taps what crosses them."""

    def __init__(self, model: nn.Module, root_activations: RootActivations | None = None) -> None:
        self.moments: list[Moment] = []
        self.taps: list[Tap] = []
        self.gate = Gate()
        self.entered: list[int] = []  # for each moment: fields of the input that entered before it
        self.attended: dict[Site, TorchCall] = {}  # attention calls, without their graph
        self._begun: list[int] = []  # for each moment the number of the graph's next node
        self._blocks = repeated_blocks(model)
        self._root = root_activations
        self._layers = 0  # blocks so far
        self._open: nn.Module | None = None  # the block that is running
        self._calls: Counter[tuple[Place, int]] = Counter()
        self._attending: list[bool] = []  # for each call that is running
        self._aliases: dict[int, tuple[Tensor, Tensor]] = {}  # by id: since the last moment

    # Moments

    def enter_module(
        self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        if self._open is None and id(module) in self._blocks:
            self._open, self._layers = module, self._layers + 1
            self._begin(tracer, Moment("block", self._layers - 1, tracer.where))
        return args

    def leave_module(
        self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...], kwargs: Any, out: Any
    ) -> Any:
        if self._open is module:
            self._open = None
            self._begin(tracer, Moment("end", self._layers - 1, tracer.where))
        return out

    def _begin(self, tracer: Tracer, moment: Moment) -> None:
        self.moments.append(moment)
        self.entered.append(len(tracer.entry_points.entered))
        with without_function_modes():
            self._begun.append(next_sequence_number())
        self._aliases.clear()
        tracer.ledger.moment = len(self.moments)

    def _begin_site(
        self,
        tracer: Tracer,
        place: Place,
        tensor: Tensor,
        heads: int | None = None,
        expert: int | None = None,
    ) -> None:
        """A new site, and the moment after which its tensor is used."""
        layer = self._layers - 1
        site = Site(place, layer, self._calls[place, layer], tracer.where, heads, expert)
        self._calls[place, layer] += 1
        tensor.wherefrom_site = site  # type: ignore[attr-defined]
        self._begin(tracer, Moment(place, layer, tracer.where, site))

    def _made(self, tensor: Tensor) -> int:
        """The number of moments before a tensor was made."""
        number = sequence_number(tensor)
        return len(self.moments) if number is None else bisect_right(self._begun, number)

    # Calls

    def before_call(self, tracer: Tracer, call: TorchCall) -> TorchCall:
        tensors = [tensor for tensor in call.tensors() if tensor.requires_grad]
        attends = _attends(call, tensors)
        self._attending.append(attends)
        if self._open is not None and not attends and _reads_neurons(call, tensors):
            self._begin_site(tracer, "neurons", tensors[0], expert=_expert(call))
        old = {id(tensor) for tensor in tensors if self._made(tensor) < len(self.moments)}
        if not old:
            return call
        with without_function_modes():
            written = call.args[0] if call.in_place else None
            if written is not None and id(written) in old:  # it is written into afterwards
                written.copy_(self._tap(written, written.detach().clone()))
            return call.mapped(lambda t: self._alias(t) if id(t) in old and t is not written else t)

    def after_call(self, tracer: Tracer, call: TorchCall, out: Any) -> Any:
        attends = self._attending.pop()
        results = [t for t in tensors_in(call.args[0] if out is None else out) if t.requires_grad]
        arguments = [tensor for tensor in call.tensors() if tensor.requires_grad]
        if attends and results and self._open is not None and not any(self._attending):
            results[0].wherefrom_attended = True  # type: ignore[attr-defined]
            self._begin_site(tracer, "heads", results[0], _heads(call, results[0]))
            site = self.moments[-1].site
            assert site is not None
            self.attended[site] = call.mapped(Tensor.detach)
        keeps = call.kind in _KEEPS or (call.kind is Kind.SUM and len(arguments) == 1)
        activated = call.kind in ELEMENTWISE or (keeps and any(map(_is_activated, arguments)))
        attended = keeps and any(hasattr(t, "wherefrom_attended") for t in arguments)
        for tensor in results:
            if activated:
                tensor.wherefrom_activated = True  # type: ignore[attr-defined]
            if attended:
                tensor.wherefrom_attended = True  # type: ignore[attr-defined]
        return out

    # Tensors

    def _alias(self, tensor: Tensor) -> Tensor:
        """What calls use in place of a tensor that crosses."""
        known = self._aliases.get(id(tensor))
        if known is not None:
            return known[1]
        alias, offset = self._tap(tensor, tensor.detach()), any_offset(tensor)
        for name in _ATTRIBUTES:
            if hasattr(tensor, name):
                setattr(alias, name, getattr(tensor, name))
        if offset is not None:
            rest = offset.rest
            if rest is not None:
                rest = self._tap(rest, tensor.detach() - offset.value)
            set_offset(alias, offset.value, rest, offset.where)
        self._aliases[id(tensor)] = (tensor, alias)
        return alias

    def _tap(self, tensor: Tensor, value: Tensor) -> Tensor:
        if self._root is not None:
            value = value - self._root.at_root("", value)[0]
        crossing = Crossing(
            self._made(tensor), len(self.moments), tag_of(tensor).stream, role_of(tensor),
            getattr(tensor, "wherefrom_site", None), value.shape,
        )  # fmt: skip
        alias: Tensor = _Tap.apply(tensor, value, crossing, self.gate)
        self.taps.append(Tap(crossing, alias, value))
        return like(alias, tensor)


_ATTRIBUTES = (
    "wherefrom_activated", "wherefrom_attended", "wherefrom_gradient_break", "wherefrom_offset",
)  # fmt: skip


def _is_activated(tensor: Tensor) -> bool:
    return role_of(tensor) == "gate" or hasattr(tensor, "wherefrom_activated")


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


def _heads(call: TorchCall, out: Tensor) -> int | None:
    """The number of heads in (1, heads, queries, d) or (heads, queries, d)."""
    rows_first = call.kind is Kind.ATTENTION or (
        call.kind is not Kind.EINSUM and role_of(call["left"]) == "softmax"
    )
    if not rows_first or out.ndim not in (3, 4) or (out.ndim == 4 and out.shape[0] != 1):
        return None
    return out.shape[-3]


def _expert(call: TorchCall) -> int | None:
    """The number of the expert whose matrix is a slice of one tensor with all experts'."""
    weight = call.get("weight")
    base = None if weight is None else weight._base
    if base is None or base.ndim != 3 or len(base) < 2 or weight.ndim != 2:
        return None
    return int((weight.storage_offset() - base.storage_offset()) // base.stride(0))
