"""Where the input enters the model: the lookups on its ids, or the tensor itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from wherefrom.rules.calls import kind_of, mark, set_stream

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Source:
    """A leaf of the graph whose row p belongs to the unit p − shift + start."""

    leaf: Tensor  # (B, T, D), or (T, B, D) where the model puts places first
    start: int
    shift: int
    places_first: bool = False

    def by_sample(self, tensor: Tensor, batch: int) -> Tensor:
        """The leaf, or its gradient, as (B, T, D)."""
        if self.places_first:
            tensor = tensor.transpose(0, 1)
        return tensor.reshape(batch, -1, tensor.shape[-1])


@dataclass
class Sources:
    """Makes the leaves at which the gradient is taken.

    `fields` are the id tensors (or the one float tensor) of the input, in the order of their
    units. `change` replaces the embedded input, for methods that move it along a path.
    """

    fields: list[Tensor]
    change: Change | None = None
    found: list[Source] = field(default_factory=list)
    extent: int = 0
    mixed: bool = False
    ahead: dict[int, int] = field(default_factory=dict)  # places in front of a stream's first
    _tables: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.extent = self.length
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
    def widths(self) -> list[int]:
        """Places that a sample may have in the model: a field's, with padding, with more ahead."""
        ahead = self.ahead.get(0, 0)
        return [self.extent, self.extent + ahead, *(ids.shape[1] for ids in self.fields)]

    @property
    def units(self) -> int:
        """Units of all fields."""
        return sum(ids.shape[1] for ids in self.fields)

    def enter(
        self, value: Tensor, start: int, shift: int = 0, places_first: bool = False
    ) -> Tensor:
        """Makes the embedded input a leaf and gives the model its like."""
        value = value.detach()
        if self.change is not None:
            rows = value.transpose(0, 1) if places_first else value
            moved = self.change(rows.reshape(self.batch, -1, rows.shape[-1])).reshape(rows.shape)
            value = moved.transpose(0, 1) if places_first else moved
        # a tensor that someone else differentiates by stays in their graph
        leaf = value if value.requires_grad else value.detach().requires_grad_()
        source = Source(leaf, start, shift, places_first)
        self.found.append(source)
        # a copy: the model may write into what it gets, and a leaf forbids that
        return set_stream(leaf.clone(), self.stream(source))  # type: ignore[no-any-return]

    def stream(self, source: Source) -> int:
        """The number of the field a source belongs to; a shifted copy of it is the one after."""
        starts = [sum(f.shape[1] for f in self.fields[:i]) for i in range(len(self.fields))]
        return starts.index(source.start) + source.shift

    def join(self, parts: Sequence[Tensor], stream: int) -> None:
        """Counts the constant places, such as a class token, that are put in front of a field.

        What was put in front before may come first, as where registers follow the class token.
        """
        count = self.ahead.get(stream, 0)
        for part in parts:
            if not part.requires_grad:
                count += part.shape[1]
            elif part.shape[1] > count:
                break
        self.ahead[stream] = count

    def lookup(self, ids: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        """Tells a lookup on the input from one of positions or types, by its ids."""
        start = 0
        for given in self.fields:
            if kind_of(ids) == "ids" and _begins_with(ids, given):
                self._tables[weight.data_ptr()] = start
                if start == 0:
                    self.extent = ids.numel() // self.batch
                return self.enter(out, start)
            if kind_of(ids) == "ids" and ids.ndim == 2 and torch.equal(ids.T, given):
                self.mixed = True
                return self.enter(out, start, places_first=True)
            start += given.shape[1]
        shifted = self._tables.get(weight.data_ptr())
        if shifted is not None and self._is_shifted(ids):
            return self.enter(out, shifted, shift=1)
        return mark(out, _kind_of_lookup(ids))  # type: ignore[no-any-return]

    def _is_shifted(self, ids: Tensor) -> bool:
        """Whether these are the input's ids moved one place to the right, a decoder's start."""
        given = self.fields[0]
        return ids.shape == given.shape and torch.equal(ids[:, 1:], given[:, :-1].to(ids.dtype))

    def relevance(self, gradients: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Gradient × input of each unit, (B, units), and of the places of none, (B,), in float64.

        `gradients` are as `by_sample` gives them.

        Such a place is a decoder's start token, or padding that the model itself puts behind.
        """
        units = torch.zeros(self.batch, self.units, dtype=torch.float64)
        others = torch.zeros(self.batch, dtype=torch.float64)
        for source, gradient in zip(self.found, gradients, strict=True):
            rows = gradient * source.by_sample(source.leaf.detach(), self.batch)
            amounts = rows.sum(2, dtype=torch.float64).cpu()
            own = amounts[:, source.shift : source.shift + self.width(source)]
            units[:, source.start : source.start + own.shape[1]] += own
            others += amounts.sum(1) - own.sum(1)
        return units, others

    def width(self, source: Source) -> int:
        """The number of units of the field that a source belongs to."""
        at = 0
        for given in self.fields:
            if at == source.start:
                return given.shape[1]
            at += given.shape[1]
        return self.units


def _begins_with(ids: Tensor, given: Tensor) -> bool:
    """Whether these are the input's ids, perhaps in one row, perhaps with padding behind."""
    batch, width = given.shape
    rows = ids.reshape(batch, -1) if ids.ndim == 1 and ids.numel() % batch == 0 else ids
    if rows.ndim != 2 or rows.shape[0] != batch or rows.shape[1] < width:
        return False
    return torch.equal(rows[:, :width], given.to(rows.dtype))


def _kind_of_lookup(ids: Tensor) -> str:
    """Positions follow each other along the last axis, padding aside; types repeat."""
    if ids.shape[-1:] == (1,):
        return "position"
    follow = (ids[..., 1:] - ids[..., :-1] == 1).float().mean(-1)
    return "position" if float(follow.max()) > 0.5 else "type"
