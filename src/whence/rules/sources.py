"""Where the input enters the model: the lookups on its ids, or the tensor itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from whence.rules.calls import kind_of, mark

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Source:
    """A leaf of the graph whose row p belongs to the unit p − shift + start."""

    leaf: Tensor  # (B, T, D)
    start: int
    shift: int


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
    def units(self) -> int:
        """Units of all fields."""
        return sum(ids.shape[1] for ids in self.fields)

    def enter(self, value: Tensor, start: int, shift: int = 0) -> Tensor:
        """Makes the embedded input a leaf and gives the model its like."""
        value = value.detach()
        if self.change is not None:
            value = self.change(value)
        leaf = value.requires_grad_()
        self.found.append(Source(leaf, start, shift))
        return leaf.clone()  # the model may write into what it gets, and a leaf forbids that

    def lookup(self, ids: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        """Tells a lookup on the input from one of positions or types, by its ids."""
        start = 0
        for given in self.fields:
            if kind_of(ids) == "ids" and _begins_with(ids, given):
                self._tables[weight.data_ptr()] = start
                if start == 0:
                    self.extent = ids.numel() // self.batch
                return self.enter(out, start)
            if kind_of(ids) == "ids" and ids.ndim == 2 and _begins_with(ids.T, given):
                self.mixed = True  # places first: a sample is read off in a batch of its own
                return self.enter(out, start)
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

        Such a place is a decoder's start token, or padding that the model itself puts behind.
        """
        units = torch.zeros(self.batch, self.units, dtype=torch.float64)
        others = torch.zeros(self.batch, dtype=torch.float64)
        for source, gradient in zip(self.found, gradients, strict=True):
            rows = (gradient * source.leaf.detach()).reshape(self.batch, -1, gradient.shape[-1])
            amounts = rows.sum(2, dtype=torch.float64).cpu()
            own = amounts[:, source.shift : source.shift + self._width(source)]
            units[:, source.start : source.start + own.shape[1]] += own
            others += amounts.sum(1) - own.sum(1)
        return units, others

    def _width(self, source: Source) -> int:
        at = 0
        for given in self.fields:
            if at == source.start:
                return given.shape[1]
            at += given.shape[1]
        return self.units


def _begins_with(ids: Tensor, given: Tensor) -> bool:
    """Whether these are the input's ids, perhaps in one row, perhaps with padding behind."""
    rows = ids.reshape(given.shape[0], -1) if ids.numel() % given.shape[0] == 0 else ids
    width = given.shape[1]
    if rows.ndim != 2 or rows.shape[1] < width:
        return False
    return torch.equal(rows[:, :width], given.to(rows.dtype))


def _kind_of_lookup(ids: Tensor) -> str:
    """Positions follow each other along the last axis; types repeat."""
    if ids.shape[-1:] == (1,):
        return "position"
    steps = ids[..., 1:] - ids[..., :-1]
    return "position" if bool((steps == 1).any()) else "type"
