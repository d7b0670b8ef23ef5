"""Offsets: f(0) of a gate f(g), and numbers added to it, so that a product treats them as constants.

In a product a · f(g), f(0) · a is linear in a, and only (f(g) − f(0)) · a has two factors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from wherefrom.core.torch_internals import version_of
from wherefrom.rules.linear import sum_of_two
from wherefrom.tracing.catalogue import Kind, TorchCall, depends_on_input, list_tensors
from wherefrom.tracing.tracer import Table, Tracer


class Offset(NamedTuple):
    """The constant part of a tensor: `value`, which broadcasts to it.

    `rest` has the values of the tensor, but its graph is that of the tensor minus the offset, and
    no ledger entry. `version` tells whether the tensor was written into later.
    """

    value: Tensor
    rest: Tensor
    version: int


def offset_of(x: object) -> Offset | None:
    """The offset of a tensor, if it has one."""
    offset: Offset | None = getattr(x, "wherefrom_offset", None)
    if offset is None or not isinstance(x, Tensor) or version_of(x) != offset.version:
        return None
    return offset


def set_offset(x: Tensor, value: Tensor, rest: Tensor) -> None:
    """Records the offset of a tensor, without the axes that it is expanded along."""
    narrowed = tuple(slice(None) if stride else slice(1) for stride in value.stride())
    x.wherefrom_offset = Offset(value[narrowed], rest, version_of(x))  # type: ignore[attr-defined]


def carry(call: TorchCall, out: Any) -> Any:
    """Sets the offset of the result of a call that is linear in the one argument that has one."""
    found = [x for x in call.tensors() if offset_of(x)]
    if call.in_place:
        for x in found:
            x.wherefrom_offset = None  # type: ignore[attr-defined]
    elif found and depends_on_input(out if isinstance(out, Tensor) else out[0]):
        rests = call.mapped(lambda x: o.rest if (o := offset_of(x)) else x).run()
        values = call.mapped(lambda x: value_for(call, x, o) if (o := offset_of(x)) else x).run()
        for parts in zip(*map(list_tensors, ((out,), (values,), (rests,))), strict=True):
            set_offset(*parts)
    return out


def value_for(call: TorchCall, x: Tensor, offset: Offset) -> Tensor:
    """The offset of an argument, in a form that the call can take in its place."""
    if call.kind in (Kind.PRODUCT, Kind.QUOTIENT, Kind.NEGATION):
        return offset.value
    value = offset.value.expand_as(x)
    return value.contiguous() if call.kind is Kind.RESHAPE and any(value.stride()) else value


def carried(tracer: Tracer, call: TorchCall) -> Any:
    """A call that only moves numbers moves an offset too."""
    return carry(call, call.run())


def sum_with_offset(tracer: Tracer, call: TorchCall) -> Any:
    """A number that is added is an offset, as is any constant that is added to a gate with one."""
    operands = call["left"], call["right"]
    offsets = [offset_of(x) for x in operands]
    numbers = [isinstance(x, (int, float)) and x != 0 for x in operands]
    out = sum_of_two(tracer, call)
    if call.in_place or not (any(offsets) or any(numbers)) or not depends_on_input(out):
        return out
    values: list[Any] = []
    for x, offset, is_number in zip(operands, offsets, numbers, strict=True):
        if offset is None and depends_on_input(x):
            if not any(numbers):  # as in a residual stream
                return out
            x = x.new_zeros((1,) * x.ndim)
        values.append(x if offset is None else offset.value)
    rests = [x if o is None else o.rest for x, o in zip(operands, offsets, strict=True)]
    value = call.run(left=values[0], right=values[1])
    set_offset(out, value, call.run(left=rests[0], right=rests[1]))
    return out


OFFSETS: Table = {
    Kind.SUM: sum_with_offset,
    **dict.fromkeys(
        (
            Kind.NEGATION, Kind.CAST, Kind.RESHAPE, Kind.TRANSPOSE, Kind.REPEAT, Kind.SELECT,
            Kind.SPLIT,
        ),
        carried,
    ),
}  # fmt: skip
