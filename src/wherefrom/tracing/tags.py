"""Tags: what the tracer knows about a tensor beyond its values."""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from wherefrom.tracing.catalogue import (
    FRESH,
    Kind,
    TorchCall,
    attribute_name,
    depends_on_input,
    list_tensors,
)

Role = Literal[
    "", "ids", "hashed", "position", "type", "prototype", "scores", "softmax", "exp", "gate"
]


class Tag(NamedTuple):
    """The role of a tensor, and the field of the input that its rows belong to.

    `role`: attention scores or another matrix product of two tensors ("scores"), attention weights
    ("softmax"), an exponential that may become attention weights ("exp"),
    the result of an activation ("gate"), token ids ("ids") or numbers computed from them
    ("hashed"), or the kind of a constant. `stream` is the number of the field; it is negative for
    rows of no field, such as those of a decoder whose ids are not an input. `constant_rows`: the
    rows come from a constant left operand, which matters if they become attention weights.
    `units`: for ids, the number of the unit that each was made of, counted over all samples;
    −1 for none.
    """

    role: Role = ""
    stream: int | None = None
    constant_rows: bool = False
    units: Tensor | None = None


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


FORM_ONLY = frozenset((Kind.CAST, Kind.RESHAPE, Kind.REPEAT))
_WRITTEN = frozenset(
    (Kind.RESHAPE, Kind.TRANSPOSE, Kind.REPEAT, Kind.SELECT, Kind.SPLIT, Kind.WRITE)
)
_OF_IDS = ("ids", "hashed")
_ARITHMETIC = frozenset((Kind.SUM, Kind.PRODUCT))
_INTEGER_ARITHMETIC = ("remainder", "floor_divide", "bitwise_xor")
_MOVED = frozenset((Kind.RESHAPE, Kind.TRANSPOSE, Kind.REPEAT, Kind.SELECT, Kind.SPLIT))
_NEW = re.compile("^new_|_like$")  # calls that take only the shape of their argument
_OF_TWO = frozenset((Kind.ATTENTION, Kind.CONTRACTION, Kind.ADDED_CONTRACTION, Kind.EINSUM))


def propagate(call: TorchCall, out: Any, into_constant: bool = False) -> None:
    """Tags the result of a call.

    Its role is the one that all arguments that depend on the input share (if there are none, all
    tagged arguments); its stream is that of the first of them that has one. `into_constant`: the
    call wrote into a tensor that did not depend on the input before.
    """
    kind = call.kind
    rewritten = kind in _WRITTEN and call.in_place
    if not rewritten and (tag_of(out).stream is not None or _has_common_tag(call, out)):
        return  # its parts were traced and tagged the result, or it wrote into a tagged argument
    # a second argument of these calls is only a shape or a type
    arguments = list_tensors(call.args[:1] if kind in FORM_ONLY else call.args)
    count = len(arguments)
    if call.kwargs:
        arguments += list_tensors(call.kwargs.values())
    tagged = [(argument, tag) for argument in arguments if (tag := tag_of(argument)) is not NO_TAG]
    if not tagged:
        return
    role: Role = ""
    if kind not in FRESH and any(tag.role for _, tag in tagged):
        roles = {tag.role for _, tag in tagged}
        is_arithmetic = kind in _ARITHMETIC or call.name in _INTEGER_ARITHMETIC
        if roles.issubset(_OF_IDS) and (is_arithmetic or len(roles) > 1):
            role = "hashed"
        else:
            role = _common_role(arguments[into_constant:count])
    # an index selects rows; it does not say which field they belong to
    rows = [tag for t, tag in tagged if t.requires_grad and t.is_floating_point()]
    stream, constant_rows = next(
        ((tag.stream, tag.constant_rows) for tag in rows if tag.stream is not None), (None, False)
    )
    units = _units_of(call, out) if role in _OF_IDS else None
    if role in _OF_IDS and units is None:
        role = ""
    if not role and stream is None:
        return
    if kind in FRESH:
        constant_rows = _has_constant_rows(call)
    results = list_tensors(call.args[:1] if out is None else (out,))
    for tensor, own_units in zip_longest(results, list_tensors((units,))):
        if tag_of(tensor).stream is not None and not rewritten:
            continue
        own_role = role if into_constant else role_of(tensor) or role
        attends = kind is Kind.ATTENTION or (own_role == "softmax" and tensor.ndim > 1)
        if constant_rows and attends:  # constant queries: their rows belong to no unit
            set_tag(tensor, Tag(own_role, -tensor.shape[-2]))
        else:
            set_tag(tensor, Tag(own_role, stream, constant_rows, own_units))


def _units_of(call: TorchCall, out: Any) -> Any:
    """The units that the ids in a result are made of; None if they are not known.

    A number that is made of several units belongs to the last one.
    """
    kind: Kind | None = call.kind
    first: Any = call.args[0] if call.args else None
    units: Any
    source = tag_of(call.get("input", first)).units
    if call.name == "setitem":
        written = tag_of(call.args[2]).units
        if written is None:
            return source
        units = torch.full_like(first, -1) if source is None else source.clone()
        units[call.args[1]] = written
        return units
    if source is not None and (kind in _MOVED or attribute_name(call.function)):
        if "input" in call.kwargs:
            return call.run(input=source)
        return TorchCall(call.function, (source.clone(), *call.args[1:]), call.kwargs).run()
    if call.name == "pad" and source is not None and call.get("mode", "constant") == "constant":
        return call.run(input=source, value=-1)
    if call.name == "sort" and source is not None:
        return source.gather(call.get("dim", -1), out[1])
    if kind in (Kind.JOIN, Kind.STACK):
        return call.mapped(_units_or_none).run()
    if not isinstance(out, Tensor) or out.dtype == torch.bool or _NEW.search(call.name):
        return None
    known = [units for t in call.tensors() if (units := tag_of(t).units) is not None]
    try:
        return torch.stack([units.expand_as(out) for units in known]).amax(0)
    except RuntimeError:  # not number by number
        return None


def _units_or_none(ids: Tensor) -> Tensor:
    units = tag_of(ids).units
    return torch.full_like(ids, -1, dtype=torch.long) if units is None else units


def _has_common_tag(call: TorchCall, out: Any) -> bool:
    """Copies the tag that all tagged arguments share: the common case of `propagate`, faster."""
    if type(out) is not Tensor or not out.requires_grad or call.kind in _OF_TWO:
        return False
    common: Tag | None = None
    for argument in list_tensors(call.args):
        tag = tag_of(argument)
        if tag is NO_TAG:
            continue
        if common is None and argument.requires_grad and not (tag.role or tag.constant_rows):
            common = tag
        elif tag is not common:
            return False
    if common is None or hasattr(out, "wherefrom_tag"):
        return False
    if any(isinstance(value, Tensor) for value in call.kwargs.values()):
        return False
    out.wherefrom_tag = common  # type: ignore[attr-defined]
    return True


def _has_constant_rows(call: TorchCall) -> bool:
    """Whether the rows of a product come from a constant left operand, such as queries."""
    if call.kind is Kind.ATTENTION:
        return not depends_on_input(call["query"])
    if call.kind is Kind.EINSUM:
        operands = einsum_terms(call)[2]
        return len(operands) == 2 and operands[0].ndim > 2 and not depends_on_input(operands[0])
    if call.kind is Kind.CONTRACTION or call.kind is Kind.ADDED_CONTRACTION:
        left = call["left"]
        return left.ndim > 2 and not depends_on_input(left)
    return False


def _common_role(arguments: list[Tensor]) -> Role:
    roles = [tag_of(t).role for t in arguments if t.requires_grad]
    roles = roles or [role for t in arguments if (role := tag_of(t).role)]
    if not roles:
        return ""
    first = roles[0]
    return first if not first or roles.count(first) == len(roles) else ""


def einsum_terms(call: TorchCall) -> tuple[list[str], str | None, list[Any]]:
    """The axes of each operand of an einsum, those of its result (None if implicit), the operands.

    >>> import torch
    >>> einsum_terms(TorchCall(torch.einsum, ("bi, ij -> bj", 1, 2)))
    (['bi', 'ij'], 'bj', [1, 2])
    """
    equation, *operands = call.args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    left, arrow, right = str(equation).replace(" ", "").partition("->")
    return left.split(","), right if arrow else None, operands
