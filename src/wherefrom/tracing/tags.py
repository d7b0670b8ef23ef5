"""What is known of a tensor beyond its values: one tag a tensor."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from wherefrom.tracing.catalogue import list_tensors

Role = Literal["", "ids", "hashed", "position", "type", "prototype", "softmax", "exp", "gate"]


class Tag(NamedTuple):
    """What a tensor is, and which field of the input its rows follow.

    `role`: attention weights ("softmax"), an exponential that may become some ("exp"), an
    activated factor ("gate"), token ids or hashes of them, or the kind of a constant. `stream` is
    the number of a field; it is negative where rows belong to none, as those of a decoder whose ids
    are no input. `constant_rows`: a product whose rows are those of a constant, in case it becomes
    attention weights.
    """

    role: Role = ""
    stream: int | None = None
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
