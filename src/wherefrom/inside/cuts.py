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
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from wherefrom.core.torch_internals import (
    next_sequence_number,
    sequence_number,
    without_function_modes,
)
from wherefrom.errors import MethodError
from wherefrom.inside.sites import MARKS, Site, SiteObserver
from wherefrom.rules.offsets import any_offset, set_offset
from wherefrom.tracing.catalogue import TorchCall
from wherefrom.tracing.tags import like, tag_of, widened
from wherefrom.tracing.tracer import Tracer

Place = Literal["block", "heads", "neurons", "end"]


class Moment(NamedTuple):
    """A moment of the pass: a block begins or ends, or the tensor of a site is complete."""

    place: Place
    layer: int  # the number of the block, in the order of the pass
    where: str
    site: Site | None = None


@dataclass(eq=False)
class Gate:
    """What the backward pass does at crossings."""

    records: bool = True
    closed: bool = False  # sites pass no relevance on
    passing: frozenset[Crossing] = frozenset()  # but these


@dataclass(eq=False)
class Crossing:
    """A tensor that is used at a later moment than it was made, and the relevance of this use."""

    made: int  # moments before it was made
    used: int  # moments before its use
    stream: int | None  # of its rows
    site: Site | None
    value: Tensor  # its value, or difference to the reference
    rows: Tensor | None = None  # Σ g · value over features, in float64; None without a gradient
    features: Tensor | None = None  # of neurons: Σ g · value over rows

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor."""
        return self.value.shape

    def record(self, gradient: Tensor) -> None:
        """Keeps the relevance g · value by row; of neurons also by feature."""
        products = (widened(gradient) * widened(self.value)).double().reshape(-1, self.shape[-1])
        self.rows = products.sum(1)
        if self.site is not None and self.site.place == "neurons":
            self.features = products.sum(0)

    def receive(self, gate: Gate, gradient: Tensor) -> Tensor | None:
        """The hook of the use: what goes on instead of the gradient, None for the gradient."""
        if gate.records:
            with torch.no_grad(), without_function_modes():
                self.record(gradient)
        closed = gate.closed and self.site is not None and self not in gate.passing
        return torch.zeros_like(gradient) if closed else None


class Tap(NamedTuple):
    """A crossing in the graph of a pass."""

    crossing: Crossing
    tensor: Tensor  # what calls use

    @property
    def value(self) -> Tensor:
        """What crosses."""
        return self.crossing.value


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
        if call.in_place and isinstance(call.args[0], Tensor):
            with without_function_modes():
                self._keep_values(call.args[0])
        old = {id(t) for t in call.tensors() if t.requires_grad and self._made(t) < now}
        if not old:
            return call
        with without_function_modes():
            written = call.args[0] if call.in_place else None
            if written is not None and id(written) in old:
                written.copy_(self._tap(written, written.detach().clone()).clone())
            return call.mapped(lambda t: self._alias(t) if id(t) in old and t is not written else t)

    def _keep_values(self, written: Tensor) -> None:
        """Copies what crossed, before the model writes into it."""
        storage = written.untyped_storage().data_ptr()
        for tap in self.taps:
            if tap.value.untyped_storage().data_ptr() == storage:
                tap.crossing.value = tap.value.clone()

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
            self._made(tensor), len(self.moments), tag_of(tensor).stream,
            getattr(tensor, "wherefrom_site", None), value,
        )  # fmt: skip
        alias = like(tensor.view_as(tensor), tensor)
        # a cycle through the graph would never be freed: the hook knows the value alone
        alias.register_hook(partial(crossing.receive, self.gate))
        self.taps.append(Tap(crossing, alias))
        return alias

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
