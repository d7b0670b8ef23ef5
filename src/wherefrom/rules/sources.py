"""Where the input enters the model: the lookups on its ids, or the tensor itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from wherefrom.rules.tags import Meaning, Samples, Tag, mark, meaning_of, set_tag, tag_of

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Span:
    """The units of one field of the input, and the rows of a tensor that hold them.

    Row r of the tensor holds the unit r − shift + start, for `width` rows. Rows in front are a
    class token or a decoder's start; rows behind are padding that the model adds.
    """

    field: int
    start: int
    shift: int
    width: int

    @property
    def stream(self) -> int:
        """The number of the stream: a shifted copy of a field is the stream after it."""
        return self.field + self.shift

    def behind(self, rows: int) -> Span:
        """The same units in a tensor with some rows put in front."""
        return Span(self.field, self.start, self.shift + rows, self.width)

    def row_of(self, unit: int) -> int | None:
        """The row that holds a unit, or None if the unit is of another field."""
        inside = self.start <= unit < self.start + self.width
        return unit - self.start + self.shift if inside else None

    def of_rows(self, rows: Tensor) -> Tensor:
        """The rows (B, T, …) that hold units, (B, units of the field at most, …)."""
        return rows[:, self.shift : self.shift + self.width]

    def add_to(self, units: Tensor, rows: Tensor) -> Tensor:
        """Adds numbers of rows, (B, T), to those of their units, (B, all units)."""
        own = self.of_rows(rows).to(units)
        units[:, self.start : self.start + own.shape[1]] += own
        return own

    def rows_of(self, units: Tensor, rows: Tensor) -> Tensor:
        """Writes numbers of units, (B, all units), into the rows that hold them, (B, T)."""
        own = units[:, self.start : self.start + self.width]
        rows[:, self.shift : self.shift + self.width] = own[:, : rows.shape[1] - self.shift]
        return rows


@dataclass(frozen=True)
class Source:
    """A leaf of the graph where the units of one span enter."""

    leaf: Tensor  # (B, T, D), or (T, B, D) where the model puts places first
    span: Span
    places_first: bool = False

    def by_sample(self, tensor: Tensor, batch: int) -> Tensor:
        """The leaf, or its gradient, as (B, T, D)."""
        if self.places_first:
            tensor = tensor.transpose(0, 1)
        return tensor.reshape(batch, -1, tensor.shape[-1])


@dataclass
class Sources:
    """Makes the leaves at which the gradient is taken.

    `fields` are the id tensors (or the float tensors) of the input, in the order of their units.
    `change` replaces the embedded input, for methods that move it along a path.
    """

    fields: list[Tensor]
    change: Change | None = None
    entered: list[Source] = field(default_factory=list)
    extent: int = 0
    rows_ahead: dict[int, int] = field(default_factory=dict)  # put in front of a stream's first
    _tables: dict[int, Span] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.extent = self.length
        self.sample_ids = torch.arange(self.batch)
        for ids in self.fields:
            if not ids.is_floating_point():
                mark(ids, "ids")

    @property
    def batch(self) -> int:
        """Samples in the batch."""
        return self.fields[0].shape[0]

    @property
    def length(self) -> int:
        """Units of the first field: the extent that tells a position from a bias."""
        return self.fields[0].shape[1]

    @property
    def units(self) -> int:
        """Units of all fields."""
        return sum(ids.shape[1] for ids in self.fields)

    def span_of(self, number: int) -> Span:
        """The units of a field, where a tensor has a row for each of them."""
        start = sum(ids.shape[1] for ids in self.fields[:number])
        return Span(number, start, 0, self.fields[number].shape[1])

    def span_in(self, stream: int) -> Span | None:
        """The units of the field that a stream runs along with, in a tensor of the model's body."""
        for source in self.entered:
            if source.span.stream == stream:
                return source.span.behind(self.rows_ahead.get(stream, 0))
        return None

    def enter(self, value: Tensor, span: Span, places_first: bool = False) -> Tensor:
        """Makes the embedded input a leaf and gives the model its like."""
        value = value.detach()
        if self.change is not None:
            rows = value.transpose(0, 1) if places_first else value
            moved = self.change(rows.reshape(self.batch, -1, rows.shape[-1])).reshape(rows.shape)
            value = moved.transpose(0, 1) if places_first else moved
        # a tensor that someone else differentiates by stays in their graph
        leaf = value if value.requires_grad else value.detach().requires_grad_()
        self.entered.append(Source(leaf, span, places_first))
        # a copy: the model may write into what it gets, and a leaf forbids that
        entered = leaf.clone()
        set_tag(entered, Tag(stream=span.stream, samples=self._samples(leaf, places_first)))
        return entered

    def _samples(self, leaf: Tensor, places_first: bool) -> Samples | None:
        if places_first:
            return Samples(1, self.sample_ids)
        rows, rest = divmod(leaf.shape[0], self.batch)  # several where the model flattens its ids
        return None if rest else Samples(0, self.sample_ids.repeat_interleave(rows))

    def join(self, parts: Sequence[Tensor], stream: int) -> None:
        """Counts the constant rows, such as a class token, that are put in front of a field.

        What was put in front before may come first, as where registers follow the class token.
        """
        count = self.rows_ahead.get(stream, 0)
        for part in parts:
            if not part.requires_grad:
                count += part.shape[1]
            elif part.shape[1] > count:
                break
        self.rows_ahead[stream] = count

    def lookup(self, ids: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        """Tells a lookup on the input from one of positions or types, by its ids."""
        if meaning_of(ids) == "ids":
            for number, own_ids in enumerate(self.fields):
                span = self.span_of(number)
                if _begins_with(ids, own_ids):
                    self._tables[weight.data_ptr()] = span
                    if number == 0:
                        self.extent = ids.numel() // self.batch
                    return self.enter(out, span)
                if ids.ndim == 2 and torch.equal(ids.T, own_ids):
                    return self.enter(out, span, places_first=True)
        shifted = self._tables.get(weight.data_ptr())
        if shifted is not None and self._is_shifted(ids):
            return self.enter(out, shifted.behind(1))
        mark(out, _meaning_of_lookup(ids))
        return out

    def _is_shifted(self, ids: Tensor) -> bool:
        """Whether these are the input's ids moved one place to the right, a decoder's start."""
        first = self.fields[0]
        return ids.shape == first.shape and torch.equal(ids[:, 1:], first[:, :-1].to(ids.dtype))

    def relevance(self, gradients: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Gradient × input of each unit, (B, units), and of rows of no unit, (B,), in float64.

        `gradients` are as `by_sample` gives them. A row of no unit is a decoder's start token, or
        padding that the model itself puts behind.
        """
        units = torch.zeros(self.batch, self.units, dtype=torch.float64)
        others = torch.zeros(self.batch, dtype=torch.float64)
        for source, gradient in zip(self.entered, gradients, strict=True):
            products = gradient * source.by_sample(source.leaf.detach(), self.batch)
            rows = products.sum(2, dtype=torch.float64).cpu()
            others += rows.sum(1) - source.span.add_to(units, rows).sum(1)
        return units, others


def stream_of(value: object) -> int:
    """Which field of the input a tensor runs along with; the first where that is not known."""
    return tag_of(value).stream or 0


def _begins_with(ids: Tensor, own: Tensor) -> bool:
    """Whether these are the input's ids, perhaps in one row, perhaps with padding behind."""
    batch, width = own.shape
    rows = ids.reshape(batch, -1) if ids.ndim == 1 and ids.numel() % batch == 0 else ids
    if rows.ndim != 2 or rows.shape[0] != batch or rows.shape[1] < width:
        return False
    return torch.equal(rows[:, :width], own.to(rows.dtype))


def _meaning_of_lookup(ids: Tensor) -> Meaning:
    """Positions follow each other along the last axis, padding aside; types repeat."""
    if ids.shape[-1:] == (1,):
        return "position"
    follow = (ids[..., 1:] - ids[..., :-1] == 1).float().mean(-1)
    return "position" if float(follow.max()) > 0.5 else "type"
