"""Tags: what the tracer knows about a tensor beyond its values."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from wherefrom.tracing.catalogue import list_tensors

Role = Literal["", "ids", "hashed", "position", "type", "prototype", "softmax", "exp", "gate"]


class Tag(NamedTuple):
    """The role of a tensor, and the field of the input that its rows belong to.

    `role`: attention weights ("softmax"), an exponential that may become attention weights ("exp"),
    the result of an activation ("gate"), token ids ("ids") or numbers computed from them
    ("hashed"), or the kind of a constant. `stream` is the number of the field; it is negative for
    rows of no field, such as those of a decoder whose ids are not an input. `constant_rows`: the
    rows come from a constant left operand, which matters if they become attention weights.
    """

    role: Role = ""
    stream: int | None = None
    constant_rows: bool = False


NO_TAG = Tag()


def tag_of(value: object) -> Tag:
    """The tag of a tensor; an empty tag for any other value."""
    tag: Tag = getattr(value, "wherefrom_tag", NO_TAG)
    return tag


def set_tag(value: Any, tag: Tag) -> Any:
    """Sets the tag of all tensors in a value."""
    for tensor in list_tensors((value,)):
        tensor.wherefrom_tag = tag  # type: ignore[attr-defined]
    return value


def role_of(value: object) -> Role:
    """The role in the tag of a tensor."""
    return tag_of(value).role


def mark(value: Any, role: Role) -> Any:
    """Sets the role of all tensors in a value."""
    for tensor in list_tensors((value,)):
        set_tag(tensor, tag_of(tensor)._replace(role=role))
    return value


def like(value: Tensor, other: Tensor) -> Tensor:
    """The tensor, tagged as the other one is."""
    set_tag(value, tag_of(other))
    return value


def of_queries(weights: Tensor, query: Tensor) -> Tensor:
    """Attention weights, tagged as their queries; rows of constant queries belong to no unit."""
    if query.requires_grad:
        return like(weights, query)
    set_tag(weights, tag_of(weights)._replace(stream=-query.shape[-2]))
    return weights


def widened(values: Tensor) -> Tensor:
    """Half-precision numbers in float32, so that products and sums are not rounded again."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
