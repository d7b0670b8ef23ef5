"""Cuts through a traced pass: the relevance of everything that crosses a moment of the pass.

A moment is where a block begins, where attention has given its heads, and where a linear layer
reads the neurons of an MLP. A tensor that is made before a moment and used after it crosses it.
Each call conserves relevance, so what crosses a moment and the constants that are added after it
sum to the output.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn
from torch.autograd import Function

from wherefrom.core.torch_internals import (
    next_sequence_number,
    sequence_number,
    without_function_modes,
)
from wherefrom.errors import MethodError
from wherefrom.inside.sites import MARKS, Site, SiteObserver
from wherefrom.rules.offsets import any_offset, set_offset
from wherefrom.tracing.catalogue import TorchCall
from wherefrom.tracing.tags import like, role_of, tag_of, widened
from wherefrom.tracing.tracer import Tracer

Place = Literal["block", "heads", "neurons", "end"]


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
    passing: frozenset[Crossing] = frozenset()  # but these


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
        closed = ctx.gate.closed and crossing.site and crossing not in ctx.gate.passing
        return None if closed else gradient, None, None, None


@dataclass(eq=False)
class Tap:
    """A crossing in the graph of a pass."""

    crossing: Crossing
    tensor: Tensor  # what calls use
    value: Tensor  # its value, or difference to the reference, whose relevance is g · value


class Cuts(SiteObserver):
    """Divides a pass of one sample at its moments and taps what crosses them.

    `reference` has the taps of a pass at another point, with which values are compared.
    """

    def __init__(self, model: nn.Module, reference: Sequence[Tap] | None = None) -> None:
        super().__init__(model)
        self.moments: list[Moment] = []
        self.taps: list[Tap] = []
        self.gate = Gate()
        self.entered: list[int] = []  # for each moment: fields of the input that entered before it
        self.attended: dict[Site, TorchCall] = {}  # attention calls, without their graph
        self._begun: list[int] = []  # for each moment the number of the graph's next node
        self._reference = reference
        self._aliases: dict[int, tuple[Tensor, Tensor]] = {}  # by id: since the last moment

    def on_block(self, tracer: Tracer, args: tuple[Any, ...]) -> tuple[Any, ...]:
        self._begin(tracer, "block")
        return args

    def on_block_end(self, tracer: Tracer) -> None:
        self._begin(tracer, "end")

    def on_site(self, tracer: Tracer, site: Site, call: TorchCall, tensor: Tensor) -> Tensor:
        tensor.wherefrom_site = site  # type: ignore[attr-defined]
        if site.place == "heads":
            self.attended[site] = call.mapped(Tensor.detach)
        self._begin(tracer, site.place, site)
        return tensor

    def _begin(self, tracer: Tracer, place: Place, site: Site | None = None) -> None:
        """What is made until now and used from now on crosses this moment."""
        self.moments.append(Moment(place, self.layers - 1, tracer.where, site))
        self.entered.append(len(tracer.entry_points.entered))
        with without_function_modes():
            self._begun.append(next_sequence_number())
        self._aliases.clear()
        tracer.ledger.moment = len(self.moments)

    def _made(self, tensor: Tensor) -> int:
        """The number of moments before a tensor was made."""
        number = sequence_number(tensor)
        return len(self.moments) if number is None else bisect_right(self._begun, number)

    def before_call(self, tracer: Tracer, call: TorchCall) -> TorchCall:
        call, now = super().before_call(tracer, call), len(self.moments)
        old = {id(t) for t in call.tensors() if t.requires_grad and self._made(t) < now}
        if not old:
            return call
        with without_function_modes():
            written = call.args[0] if call.in_place else None
            if written is not None and id(written) in old:  # it is written into afterwards
                written.copy_(self._tap(written, written.detach().clone()))
            return call.mapped(lambda t: self._alias(t) if id(t) in old and t is not written else t)

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
        if self._reference is not None:
            value = value - self._at_reference(value)
        crossing = Crossing(
            self._made(tensor), len(self.moments), tag_of(tensor).stream, role_of(tensor),
            getattr(tensor, "wherefrom_site", None), value.shape,
        )  # fmt: skip
        alias: Tensor = _Tap.apply(tensor, value, crossing, self.gate)
        self.taps.append(Tap(crossing, alias, value))
        return like(alias, tensor)

    def _at_reference(self, value: Tensor) -> Tensor:
        assert self._reference is not None
        number = len(self.taps)
        at_reference = self._reference[number].value if number < len(self._reference) else None
        if at_reference is None or at_reference.shape != value.shape:
            raise MethodError(
                "the model does not make the same calls at the reference as at the input: compare "
                "inputs of one length, which take the same route."
            )
        return at_reference


_ATTRIBUTES = (*MARKS, "wherefrom_gradient_break", "wherefrom_offset")
