"""How tags pass from call to call: what a result is, and which field of the input it follows."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from wherefrom.tracing.catalogue import FRESH, Kind, TorchCall, depends_on_input, list_tensors
from wherefrom.tracing.tags import NO_TAG, Role, Tag, role_of, set_tag, tag_of

FORM_ONLY = frozenset((Kind.CAST, Kind.RESHAPE, Kind.REPEAT))
_WRITTEN = frozenset(
    (Kind.RESHAPE, Kind.TRANSPOSE, Kind.REPEAT, Kind.SELECT, Kind.SPLIT, Kind.WRITE)
)
_OF_TWO = frozenset((Kind.ATTENTION, Kind.CONTRACTION, Kind.ADDED_CONTRACTION, Kind.EINSUM))


def propagate(call: TorchCall, out: Any, into_constant: bool = False) -> None:
    """Passes the tags of a call's arguments on to its result.

    A result has the role that all arguments that depend on the input share (else all its tagged
    ones), and follows the field of the first of them that has one. `into_constant`: the call
    wrote into a tensor that did not depend on the input before.
    """
    kind = call.kind
    rewritten = kind in _WRITTEN and call.in_place
    if not rewritten and (tag_of(out).stream is not None or _has_common_tag(call, out)):
        return  # a call made of parts that were seen themselves, one that wrote into its argument
    # of calls that change the form only, a second argument gives the shape
    arguments = list_tensors(call.args[:1] if kind in FORM_ONLY else call.args)
    count = len(arguments)
    if call.kwargs:
        arguments += list_tensors(call.kwargs.values())
    tagged = [(argument, tag) for argument in arguments if (tag := tag_of(argument)) is not NO_TAG]
    if not tagged:
        return
    role: Role = ""
    if kind not in FRESH and any(tag.role for _, tag in tagged):
        role = _common_role(arguments[into_constant:count])
        if role == "ids" and call.name == "remainder":
            role = "hashed"
    # an index says where rows go, not which field they follow
    rows = [tag for t, tag in tagged if t.requires_grad and t.is_floating_point()]
    stream, constant_rows = next(
        ((tag.stream, tag.constant_rows) for tag in rows if tag.stream is not None), (None, False)
    )
    if not role and stream is None:
        return
    if kind in FRESH:
        constant_rows = _has_constant_rows(call)
    for tensor in list_tensors(call.args[:1] if out is None else (out,)):
        if tag_of(tensor).stream is not None and not rewritten:
            continue
        own_role = role if into_constant else role_of(tensor) or role
        attends = kind is Kind.ATTENTION or (own_role == "softmax" and tensor.ndim > 1)
        if constant_rows and attends:  # queries of a constant: their rows are those of no unit
            set_tag(tensor, Tag(own_role, -tensor.shape[-2]))
        else:
            set_tag(tensor, Tag(own_role, stream, constant_rows))


def _has_common_tag(call: TorchCall, out: Any) -> bool:
    """Passes on the one tag that all tagged arguments share, as most calls do.

    `propagate` would find the same, in several times the time.
    """
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
    """Whether the rows of a product of two are those of a constant, as of queries."""
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
    """The axes of each operand of an einsum, those of its result if spelled out, the operands.

    >>> import torch
    >>> einsum_terms(TorchCall(torch.einsum, ("bi, ij -> bj", 1, 2)))
    (['bi', 'ij'], 'bj', [1, 2])
    """
    equation, *operands = call.args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    left, arrow, right = str(equation).replace(" ", "").partition("->")
    return left.split(","), right if arrow else None, operands
