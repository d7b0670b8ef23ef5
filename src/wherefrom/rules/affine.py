"""Calls that are affine in what is live: left as they are, their constant part booked."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wherefrom.rules.calls import Call, calls, in_place, kind_of, live, replaced, tensors
from wherefrom.rules.mode import LocallyLinear, Table


def affine(view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The constant part of an affine call is what it gives when all that is live is zero."""
    given = [t for t in tensors(*args, *kwargs.values()) if t.is_floating_point()]
    if not view.ledger.open or not any(map(live, given)):
        return func(*args, **kwargs)
    if all(map(live, given)) and not _has_number(func, args, kwargs):
        return func(*args, **kwargs)
    with torch.no_grad():
        still = [replaced(value, _zero) for value in args]
        if in_place(func) and not live(args[0]):
            still[0] = args[0].clone()
        part = func(*still, **{key: replaced(value, _zero) for key, value in kwargs.items()})
        part = still[0] if part is None else part  # x[i] = y gives nothing back
    out = func(*args, **kwargs)
    changed = args[0] if out is None else out
    if isinstance(part, Tensor) and part.is_floating_point() and bool((part != 0).any()):
        view.constant(changed, part, "token" if func in _JOINING else "bias")
    return out


def sum_of_two(
    view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Sums a + b: what is constant of the two is booked, without making it as large as the sum."""
    a, b = (*args, *kwargs.values())[:2]
    if live(a) == live(b):
        return func(*args, **kwargs)
    name, alpha = func.__name__.strip("_"), kwargs.get("alpha", 1)
    part = b if live(a) else a
    kind = kind_of(part) or "bias"
    if name == "rsub":  # b − a · alpha
        sign = 1 if live(a) else -alpha
    elif live(a):
        sign = -alpha if name in ("sub", "isub", "subtract") else alpha
    else:
        sign = 1
    # worked out before the call, which may write into the constant
    amount = part * sign if isinstance(part, Tensor) else float(part) * sign
    out = func(*args, **kwargs)
    return view.constant(out, amount, kind) if isinstance(part, Tensor) or part else out


def linear(view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The bias of a linear layer is the last argument, one number for each output."""
    out = func(*args, **kwargs)
    bias = kwargs.get("bias", args[2] if len(args) > 2 else None)
    return view.constant(out, bias) if bias is not None else out


def convolution(
    view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The bias of a convolution is one number for each channel, the axis after the batch."""
    out = func(*args, **kwargs)
    bias = kwargs.get("bias", args[2] if len(args) > 2 else None)
    if bias is None:
        return out
    return view.constant(out, bias.reshape(-1, *(1,) * (out.ndim - 2)))


def batch_norm(
    view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """In evaluation an affine call, whose backward pass must be given its gradient in order.

    Of a single image whose gradient lies channels last, torch 2.13 takes places for others.
    """
    out = affine(view, func, args, kwargs)
    if live(out):
        out.grad_fn.register_prehook(_in_order)
    return out


def _in_order(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(None if g is None else g.contiguous() for g in gradients)


def lookup(view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Every lookup is a source: on the input's ids one of units, else one of places."""
    out = func(*args, **kwargs)
    ids, weight = (*args, *kwargs.values())[:2]
    return view.sources.lookup(ids, weight, out)


def _zero(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.requires_grad else tensor


def _has_number(func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a filling call may fill with something that is not zero."""
    return func in _FILLING and any(
        isinstance(value, (int, float)) and value for value in (*args, *kwargs.values())
    )


_JOINING = frozenset(calls("cat", "concat", "concatenate"))
_FILLING = frozenset(calls("masked_fill", "pad", "where", "fill", "setitem", "index_fill"))

AFFINE: Table = {
    **dict.fromkeys(calls("add", "sub", "subtract", "rsub"), sum_of_two),
    **dict.fromkeys(calls("linear"), linear),
    **dict.fromkeys(
        calls(*(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))), convolution
    ),
    **dict.fromkeys(calls("embedding"), lookup),
    **dict.fromkeys(
        calls(
            "addbmm", "cat", "concat", "concatenate", "stack",
            "hstack", "vstack", "where", "masked_fill", "pad", "setitem", "index_put", "index_add",
            "index_copy", "scatter", "scatter_add", "masked_scatter", "copy",
            "index_fill", "slice_scatter", "lerp", "select_scatter",
        ),
        affine,
    ),
    **dict.fromkeys(calls("batch_norm"), batch_norm),
}  # fmt: skip
