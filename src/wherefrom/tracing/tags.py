"""What is known of a tensor beyond its numbers: one tag a tensor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from wherefrom.tracing.catalogue import list_tensors

Role = Literal["", "ids", "hashed", "position", "type", "prototype", "softmax", "exp", "gate"]


@dataclass(frozen=True, slots=True)
class Samples:
    """The sample that each index along one axis belongs to; −1: none yet."""

    axis: int
    ids: Tensor  # (size of that axis,)

    def totals(self, values: Tensor, batch: int) -> Tensor:
        """The sum of a tensor's entries for each sample, (B,)."""
        rows = values.movedim(self.axis, 0).reshape(len(self.ids), -1).sum(1)
        known = self.ids.remainder(batch + 1).to(rows.device)  # rows of no sample come last
        return rows.new_zeros(batch + 1).index_add_(0, known, rows)[:batch]

    def spread(self, values: Tensor, shape: Iterable[int]) -> Tensor:
        """A number for each sample, laid out to be multiplied with a tensor of this shape."""
        sizes = [1] * len(tuple(shape))
        sizes[self.axis] = len(self.ids)
        return F.pad(values, (0, 1))[self.ids.to(values.device)].reshape(sizes)  # none: 0

    def by_sample(self, values: Tensor, batch: int) -> Tensor | None:
        """The tensor as (B, rows of a sample), or None where samples have different numbers."""
        rows = values.movedim(self.axis, 0).reshape(len(self.ids), -1)
        if len(rows) == batch and torch.equal(self.ids, torch.arange(batch)):
            return rows
        counts = torch.bincount(self.ids.clamp_min(0), minlength=batch)
        if bool((counts != counts[0]).any()) or bool((self.ids < 0).any()):
            return None
        return rows[self.ids.argsort(stable=True).to(rows.device)].reshape(batch, -1)


class Tag(NamedTuple):
    """What a tensor is, which field of the input it runs along with, and whose rows it has.

    `role`: attention weights ("softmax"), an exponential that may become some ("exp"), an
    activated factor ("gate"), token ids or hashes of them, or the kind of a constant. `stream` is
    the number of a field; it is negative where rows belong to none, as those of a decoder whose ids
    are no input. `samples` says which sample each row belongs to, None where that is not known.
    `constant_rows`: a product whose rows are those of a constant, if it becomes attention weights.
    """

    role: Role = ""
    stream: int | None = None
    samples: Samples | None = None
    constant_rows: bool = False


NO_TAG = Tag()


def tag_of(value: object) -> Tag:
    """The tag of a tensor; an empty one for whatever has none."""
    tag: Tag = getattr(value, "wherefrom_tag", NO_TAG)
    return tag


def set_tag(value: Any, tag: Tag) -> Any:
    """Writes a tag on the tensors of a value."""
    for tensor in list_tensors((value,)):
        tensor.wherefrom_tag = tag  # type: ignore[attr-defined]
    return value


def role_of(value: object) -> Role:
    """What a tensor is, as far as a rule has said."""
    return tag_of(value).role


def mark(value: Any, role: Role) -> Any:
    """Says what the tensors of a value are, for the calls that will meet them."""
    for tensor in list_tensors((value,)):
        set_tag(tensor, tag_of(tensor)._replace(role=role))
    return value


def like(value: Tensor, other: Tensor) -> Tensor:
    """The value with the tag of another tensor."""
    set_tag(value, tag_of(other))
    return value


def of_queries(weights: Tensor, query: Tensor) -> Tensor:
    """Attention weights with the tag of their queries; rows of a constant are those of no unit."""
    if query.requires_grad:
        return like(weights, query)
    set_tag(weights, tag_of(weights)._replace(stream=-query.shape[-2]))
    return weights


def widened(values: Tensor) -> Tensor:
    """Numbers of half precision in float32: their products and sums would be rounded again."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
