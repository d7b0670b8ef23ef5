"""Where the input enters the model: lookups on its ids, or a tensor of floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from wherefrom.core.runner import RowsUnclear
from wherefrom.tracing.catalogue import Kind, TorchCall, depends_on_input
from wherefrom.tracing.observers import Observer
from wherefrom.tracing.tags import Role, Tag, mark, set_tag, tag_of, widened

if TYPE_CHECKING:
    from wherefrom.tracing.observers.first_block import FirstBlock
    from wherefrom.tracing.tracer import Tracer

Place = Literal["embeddings", "first_block"]
"""Where an input is read: at its embeddings, or as the state that enters the first block."""


@dataclass(frozen=True)
class Span:
    """The units of one field of the input, and the rows of a tensor that hold them.

    Row r of the tensor holds the unit r − shift + start, for `width` rows. Rows before them are
    a class token or a decoder's start token; rows after them are padding that the model adds.
    `order`, for rows in another order, is the unit of each row from `shift` on, or −1.
    """

    field: int
    start: int
    shift: int
    width: int
    order: tuple[int, ...] | None = None

    @staticmethod
    def of(units: Tensor, fields: Sequence[Span]) -> Span:
        """The span of the rows that hold these units, (R,); −1 is no unit."""
        held = (units >= 0).nonzero()[:, 0]
        first, last = int(held[0]), int(held[-1])
        start = int(units[held].min())
        number = next(s.field for s in fields if start < s.start + s.width)
        rows = units[first : last + 1]
        if torch.equal(rows, torch.arange(start, start + len(rows)).to(rows)):
            return Span(number, start, first, len(rows))
        return Span(number, start, 0, len(units), tuple(units.tolist()))

    @property
    def stream(self) -> int:
        """The number of the stream; a shifted copy of a field is the next stream.

        It is negative if units are in another order, as for rows of no field.
        """
        in_order = self.order is None or [unit for unit, _ in groupby(self.order)] == list(
            range(self.start, max(self.order) + 1)
        )
        return self.field + self.shift if in_order else -self.width

    def behind(self, rows: int) -> Span:
        """The same units in a tensor with more rows in front."""
        return replace(self, shift=self.shift + rows)

    def row_of(self, unit: int) -> int | None:
        """The first row that holds a unit; None for a unit of another field."""
        if self.order is not None:
            return self.order.index(unit) + self.shift if unit in self.order else None
        inside = self.start <= unit < self.start + self.width
        return unit - self.start + self.shift if inside else None

    def _held(self) -> tuple[Tensor, Tensor]:
        """The rows that hold units, and their units."""
        units = torch.tensor(self.order)
        rows = (units >= 0).nonzero()[:, 0]
        return rows + self.shift, units[rows]

    def of_rows(self, rows: Tensor) -> Tensor:
        """The rows (B, T, …) that hold units, (B, units of the field at most, …)."""
        return rows[:, self.shift : self.shift + self.width]

    def add_to(self, units: Tensor, rows: Tensor) -> Tensor:
        """Adds values of rows, (B, T), to those of their units, (B, all units); returns them."""
        if self.order is not None:
            held, own_units = self._held()
            own = rows[:, held.to(rows.device)].to(units)
            units.index_add_(1, own_units.to(units.device), own)
            return own
        own = self.of_rows(rows).to(units)
        units[:, self.start : self.start + own.shape[1]] += own
        return own

    def rows_of(self, units: Tensor, rows: Tensor) -> Tensor:
        """Writes values of units, (B, all units), into their rows, (B, T)."""
        if self.order is not None:
            held, own_units = self._held()
            rows[:, held] = units[:, own_units].to(rows)
            return rows
        own = units[:, self.start : self.start + self.width]
        rows[:, self.shift : self.shift + self.width] = own[:, : rows.shape[1] - self.shift]
        return rows


@dataclass(frozen=True)
class EmbeddedInput:
    """The embedded input where it enters, before it becomes a leaf of the graph."""

    rows: Tensor  # (B, T, D)
    span: Span
    table: Tensor | None = None  # of the lookup, if it is one on the input's own ids


Change = Callable[[EmbeddedInput], Tensor]
"""Returns the rows that enter instead."""


@dataclass(frozen=True)
class EntryPoint:
    """An entry point: a leaf of the graph that holds the units of one span."""

    leaf: Tensor  # (B, T, D), or (T, B, D) where positions come first
    span: Span
    places_first: bool = False
    bias: Tensor | None = None  # of the norm whose result the leaf is
    table: Tensor | None = None  # of the lookup, if it is one on the input's own ids

    def by_sample(self, tensor: Tensor, batch: int) -> Tensor:
        """The leaf, or its gradient, as (B, T, D)."""
        if self.places_first:
            tensor = tensor.transpose(0, 1)
        return tensor.reshape(batch, -1, tensor.shape[-1])


@dataclass(frozen=True)
class Relevance:
    """Gradient × (input − root) in float64.

    Rows of no unit are a decoder's start token, or padding that the model itself adds.
    """

    units: Tensor  # (B, units)
    others: Tensor  # (B,): of rows of no unit
    biases: Tensor  # (B, units): the part of a norm's bias, if the leaf is the result of a norm
    summed: Tensor  # (B, units): Σ |gradient · input|
    root: Tensor  # (B,): gradient × root


@dataclass
class EntryPoints(Observer):
    """Makes the leaves at which the gradient is taken.

    `fields` are the id tensors (or the float tensors) of the input, in the order of their units.
    `change` replaces the embedded input, for methods that move it along a path. `first_block`
    moves the leaves to the state that enters the first block.
    """

    fields: list[Tensor]
    change: Change | None = None
    first_block: FirstBlock | None = None
    entered: list[EntryPoint] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)  # all that were made
    extent: int = 0  # rows of one sample's first field, padding by the model included
    rows_ahead: dict[int, int] = field(default_factory=dict)  # put in front of a stream's first

    def __post_init__(self) -> None:
        self.extent = self.length
        units = torch.arange(self.batch * self.units).view(self.batch, -1)
        for number, ids in enumerate(self.fields):
            if not ids.is_floating_point():
                span = self.span_of(number)
                own = units[:, span.start : span.start + span.width].to(ids.device)
                set_tag(ids, Tag("ids", units=own))

    def for_second_run(self) -> EntryPoints:
        """A copy for a block that runs a second time: it records into the copy only."""
        sources = copy(self)
        sources.entered, sources.first_block = list(self.entered), None
        sources.rows_ahead = dict(self.rows_ahead)
        return sources

    def after_call(self, tracer: Tracer, call: TorchCall, out: Any) -> Any:
        if call.kind is Kind.JOIN and depends_on_input(out) and out.ndim == 3:
            self._join(call)
        return out

    @property
    def places_first(self) -> bool:
        """Whether positions lie on the first axis of the embedded input."""
        return any(source.places_first for source in self.entered)

    @property
    def batch(self) -> int:
        """The number of samples."""
        return self.fields[0].shape[0]

    @property
    def length(self) -> int:
        """The number of units of the first field."""
        return self.fields[0].shape[1]

    @property
    def units(self) -> int:
        """The number of units of all fields."""
        return sum(ids.shape[1] for ids in self.fields)

    def span_of(self, number: int) -> Span:
        """The units of a field, in a tensor with a row for each of them."""
        start = sum(ids.shape[1] for ids in self.fields[:number])
        return Span(number, start, 0, self.fields[number].shape[1])

    def span_in(self, stream: int) -> Span | None:
        """The units of a stream in a state of the model's body; None for a stream of no unit."""
        for source in self.entered:
            if source.span.stream == stream and source.span.order is None:
                return source.span.behind(self.rows_ahead.get(stream, 0))
        return None

    def enter(
        self, value: Tensor, span: Span, places_first: bool = False, table: Tensor | None = None
    ) -> Tensor:
        """Makes the embedded input a leaf and returns what the model uses in its place."""
        entered = self.make_leaf(value, span, places_first, self.change, table)
        set_tag(entered, Tag(stream=span.stream))
        return entered

    def make_leaf(
        self,
        value: Tensor,
        span: Span,
        places_first: bool,
        change: Change | None,
        table: Tensor | None = None,
    ) -> Tensor:
        """Adds an entry point for a tensor, changed if asked, and returns a copy in the graph."""
        value = value.detach()
        if change is not None:
            rows = value.transpose(0, 1) if places_first else value
            entering = EmbeddedInput(rows.reshape(self.batch, -1, rows.shape[-1]), span, table)
            moved = change(entering).reshape(rows.shape)
            value = moved.transpose(0, 1) if places_first else moved
        # a tensor that already has a graph (Captum differentiates by it) stays in it
        leaf = value if value.requires_grad else value.detach().requires_grad_()
        self.entered.append(EntryPoint(leaf, span, places_first, table=table))
        self.leaves.append(leaf)
        # a copy: the model may write into what it gets, and a leaf forbids that
        return leaf.clone()

    def begin(self, value: Tensor, span: Span) -> Tensor:
        """Tells `first_block` what the model gets for the field that entered last."""
        return value if self.first_block is None else self.first_block.begin(self, value, span)

    def _join(self, call: TorchCall) -> None:
        """Counts the constant rows, such as a class token, that a model puts in front of a field.

        Registers can follow a class token that was put in front before.
        """
        if call.get("dim", 0) not in (1, -2):
            return
        parts = call["tensors"]
        stream = next((tag_of(part).stream for part in parts if part.requires_grad), None) or 0
        count = self.rows_ahead.get(stream, 0)
        for part in parts:
            if part.ndim < 2:  # torch.cat accepts an empty 1-D tensor with any other
                continue
            if not part.requires_grad:
                count += part.shape[1]
            elif part.shape[1] > count:
                break
        self.rows_ahead[stream] = count

    def lookup(self, ids: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        """Makes a lookup on the input's ids an entry point; any other is of positions or types.

        Tags say which units the ids were made of.
        """
        layout = self._layout(ids)
        if layout is None:
            mark(out, _role_of_lookup(ids))
            return out
        span, places_first = layout
        if span.stream == 0:
            self.extent = ids.numel() // self.batch
        table = weight if tag_of(ids).role == "ids" else None
        return self.begin(self.enter(out, span, places_first, table), span)

    def _layout(self, ids: Tensor) -> tuple[Span, bool] | None:
        """The units of ids, and whether positions come before samples; None for ids of no unit."""
        units = tag_of(ids).units
        if units is None or bool((units < 0).all()):
            return None
        units = units.cpu()
        turned = units.ndim == 2 and units.shape[1] == self.batch
        layouts = [(units.T, True)] if turned else []
        if units.numel() % self.batch == 0:
            layouts.insert(len(units) != self.batch, (units.reshape(self.batch, -1), False))
        for rows, places_first in layouts:
            ahead = self.units * torch.arange(self.batch)[:, None]
            own = torch.where(rows < 0, -1, rows - ahead)
            if bool((own == own[0]).all()) and int(own.max()) < self.units:
                spans = [self.span_of(number) for number in range(len(self.fields))]
                return Span.of(own[0], spans), places_first
        raise RowsUnclear("the ids of the inputs of a batch are looked up in several orders")

    def rows_of_prompt(self, ids: Tensor) -> int:
        """The number of its own ids that the model put in front of the input's."""
        layout = self._layout(ids)
        if layout is None or ids.ndim != 2 or len(ids) != self.batch:
            return 0
        span, _ = layout
        is_behind = span == Span(0, 0, ids.shape[1] - self.length, self.length)
        return span.shift if is_behind else 0

    def relevance(
        self, gradients: list[Tensor], roots: Sequence[Tensor] | None = None
    ) -> Relevance:
        """Gradient × (input − root), with gradients and roots as (B, T, D)."""
        units = torch.zeros(self.batch, self.units, dtype=torch.float64)
        biases, summed = torch.zeros_like(units), torch.zeros_like(units)
        others, root = (torch.zeros(self.batch, dtype=torch.float64) for _ in range(2))
        for k, (source, gradient) in enumerate(zip(self.entered, gradients, strict=True)):
            gradient = widened(gradient)
            products = gradient * source.by_sample(source.leaf.detach(), self.batch)
            if roots is not None:
                from_root = gradient * roots[k]
                products = products - from_root
                root += from_root.sum((1, 2), dtype=torch.float64).cpu()
            rows = products.sum(2, dtype=torch.float64).cpu()
            others += rows.sum(1) - source.span.add_to(units, rows).sum(1)
            source.span.add_to(summed, products.abs().sum(2, dtype=torch.float64).cpu())
            if source.bias is not None and roots is None:
                bias = (gradient * source.bias.detach()).sum(2, dtype=torch.float64).cpu()
                source.span.add_to(biases, bias)
        return Relevance(units, others, biases, summed, root)


def stream_of(value: object) -> int:
    """The stream of a tensor; 0 if unknown."""
    return tag_of(value).stream or 0


def _role_of_lookup(ids: Tensor) -> Role:
    """Positions increase by one along the last axis, apart from padding; types repeat."""
    if ids.shape[-1:] == (1,):
        return "position"
    follow = (ids[..., 1:] - ids[..., :-1] == 1).float().mean(-1)
    return "position" if float(follow.max()) > 0.5 else "type"
