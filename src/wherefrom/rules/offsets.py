"""Offsets: what a gate f(W x + b) is without input, f(b), which a product treats as a constant.

In a product a · f(g), f(b) · a is linear in a, and only (f(g) − f(b)) · a has two factors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from wherefrom.core.torch_internals import version_of
from wherefrom.rules.linear import convolution, sum_of_two
from wherefrom.tracing.catalogue import Kind, TorchCall, depends_on_input, list_tensors
from wherefrom.tracing.tags import like, role_of
from wherefrom.tracing.tracer import Table, Tracer


class Offset(NamedTuple):
    """The constant part of a tensor: `value`, which broadcasts to it.

    `rest` has the values of the tensor, but its graph is that of the tensor minus the offset, and
    no ledger entry. Without `rest` the offset is a bias, for activations only: the module `where`
    has its ledger entry. `version` tells whether the tensor was written into later.
    """

    value: Tensor
    rest: Tensor | None
    version: int
    where: str


_DIFFERENCE = "difference"  # in place of an offset: a tensor minus another one
_WEIGHT = "weight"  # the exponential of a difference


def any_offset(x: object) -> Offset | None:
    """The offset of a tensor, or its bias."""
    offset = getattr(x, "wherefrom_offset", None)
    if not isinstance(offset, Offset) or not isinstance(x, Tensor):
        return None
    return offset if version_of(x) == offset.version else None


def is_difference(x: object) -> bool:
    """Whether a tensor is a difference of two others, which has no value without input."""
    return getattr(x, "wherefrom_offset", None) is _DIFFERENCE


def set_weight(x: Any) -> Any:
    """Marks the exponential of a difference: a weight relative to another, as in a softmax."""
    x.wherefrom_offset = _WEIGHT
    return x


def is_weight(x: object) -> bool:
    """Whether a tensor is the exponential of a difference."""
    return getattr(x, "wherefrom_offset", None) is _WEIGHT


def offset_of(x: object) -> Offset | None:
    """The offset of a tensor, if it has one that is not a bias."""
    offset = any_offset(x)
    return None if offset is None or offset.rest is None else offset


def set_offset(x: Tensor, value: Tensor, rest: Tensor | None, where: str = "") -> None:
    """Records the offset of a tensor, without the axes that it is expanded along."""
    narrowed = tuple(slice(None) if stride else slice(1) for stride in value.stride())
    offset = Offset(value.detach()[narrowed], rest, version_of(x), where)
    x.wherefrom_offset = offset  # type: ignore[attr-defined]


def rest_of(tracer: Tracer, x: Tensor, offset: Offset) -> Tensor:
    """The tensor without its offset; a bias is taken back from the entry that it has."""
    if offset.rest is not None:
        return offset.rest
    rest, value = like(x.view_as(x), x), offset.value
    while value.ndim > 1 and value.shape[0] == 1:
        value = value[0]
    tracer.ledger.record(rest, -value, offset.where, "bias", written=False)
    return rest


def set_bias(tracer: Tracer, out: Any, bias: Tensor | None) -> Any:
    """Records the bias of a result, in case that it becomes a gate."""
    if bias is not None and depends_on_input(out):
        set_offset(out, bias, None, tracer.where)
    return out


def carry(call: TorchCall, out: Any) -> Any:
    """Sets the offset of the result of a call that is linear in the one argument that has one."""
    offsets = [(x, offset) for x in call.tensors() if (offset := any_offset(x))]
    if not offsets:
        weighs = isinstance(out, Tensor) and any(map(is_weight, call.tensors()))
        return set_weight(out) if weighs else out
    x, offset = offsets[0]
    if call.in_place:
        x.wherefrom_offset = None  # type: ignore[attr-defined]
    elif depends_on_input(out if isinstance(out, Tensor) else out[0]):
        if call.name == "dropout" and out.data_ptr() != x.data_ptr():  # it would draw again
            return out
        value, rest = value_for(call, x, offset), offset.rest
        try:
            values = call.mapped(lambda t: value if t is x else t).run()
        except RuntimeError:  # some expanded tensors have no view of another shape
            dense = value.contiguous()
            values = call.mapped(lambda t: dense if t is x else t).run()
        rests = None if rest is None else call.mapped(lambda t: rest if t is x else t).run()
        results, parts = list_tensors((out,)), list_tensors((values,))
        own = [None] * len(parts) if rests is None else list_tensors((rests,))
        for part in zip(results, parts, own, strict=True):
            set_offset(*part, offset.where)
    return out


def value_for(call: TorchCall, x: Tensor, offset: Offset) -> Tensor:
    """The offset of an argument, in a form that the call can take in its place."""
    is_elementwise = call.kind in (Kind.PRODUCT, Kind.QUOTIENT, Kind.NEGATION)
    return offset.value if is_elementwise else offset.value.expand_as(x)


def carried(tracer: Tracer, call: TorchCall) -> Any:
    """A call that only moves numbers moves an offset too."""
    return carry(call, call.run())


def convolution_with_bias(tracer: Tracer, call: TorchCall) -> Any:
    """The bias of a convolution has one number for each channel."""
    out, bias = convolution(tracer, call), call.get("bias")
    return out if bias is None else set_bias(tracer, out, bias.view(-1, *(1,) * (out.ndim - 2)))


def sum_with_offset(tracer: Tracer, call: TorchCall) -> Any:
    """A number that is added is an offset, as is a constant that is added to what has one.

    Any other constant is a bias.
    """
    operands = call["left"], call["right"]
    out = sum_of_two(tracer, call)
    if call.in_place or not depends_on_input(out):
        return out
    constant = next((x for x in operands if not depends_on_input(x)), None)
    is_number = isinstance(constant, (int, float))
    if role_of(constant) or (is_number and constant == 0):
        return out
    offsets = [offset_of(x) if is_number else any_offset(x) for x in operands]
    if constant is None and None in offsets:  # as in a residual stream
        if call.name != "add":
            out.wherefrom_offset = _DIFFERENCE
        return out
    values, rests = [], []
    for x, offset in zip(operands, offsets, strict=True):
        zero = x.new_zeros((1,) * x.ndim) if depends_on_input(x) else x
        values.append(zero if offset is None else offset.value)
        rests.append(x if offset is None else offset.rest)
    dependent = [offset for x, offset in zip(operands, offsets, strict=True) if depends_on_input(x)]
    is_bias = not is_number and any(o is None or o.rest is None for o in dependent)
    rest = None if is_bias else call.run(left=rests[0], right=rests[1])
    set_offset(out, call.run(left=values[0], right=values[1]), rest, tracer.where)
    return out


OFFSETS: Table = {
    Kind.SUM: sum_with_offset,
    Kind.CONVOLUTION: convolution_with_bias,
    **dict.fromkeys(
        (
            Kind.NEGATION, Kind.CAST, Kind.RESHAPE, Kind.TRANSPOSE, Kind.REPEAT, Kind.SELECT,
            Kind.SPLIT,
        ),
        carried,
    ),
}  # fmt: skip
