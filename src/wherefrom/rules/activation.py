"""The secant rule: an element-wise function is read as the line through its value and f(0)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from wherefrom.rules.calls import Call, calls, in_place, live, mark
from wherefrom.rules.mode import LocallyLinear, Table, activation_module
from wherefrom.rules.moves import secant
from wherefrom.rules.norm import scale


def elementwise(
    view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Y = f(0) + x · [(f(x) − f(0)) / x], the bracket a constant and f(0) a line of the ledger."""
    if not args or not live(args[0]):
        return func(*args, **kwargs)
    x, rest = args[0], args[1:]
    writes = in_place(func) or bool(kwargs.get("inplace"))
    kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
    plain = func.__name__.rstrip("_")
    safe = (getattr(torch, plain, None) or getattr(F, plain)) if in_place(func) else func

    def f(value: Tensor) -> Tensor:
        out: Tensor = safe(value, *rest, **kwargs)
        return out

    linear = module(view, f, (x, f(x.detach())), {})
    return mark(x.copy_(linear), "gate") if writes else linear


def module(view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The secant of a function whose value at x is known: (x, y = func(x))."""
    view.touched["activation"] += 1
    x, y = args
    linear, at_zero = secant(x, y, func)
    if bool(at_zero.any()):
        linear = view.constant(linear, at_zero)
    return mark(linear, "gate")


def homogeneous(
    view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """ReLU and its like are their own secant; they are only marked as an activated factor."""
    return mark(func(*args, **kwargs), "gate")


def exponential(
    view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """As any activation, but divided by its sum it is a softmax."""
    return mark(elementwise(view, func, args, kwargs), "exp")


def power(view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Roots and inverses are scales; other powers are activations."""
    exponent = kwargs.get("exponent", args[1] if len(args) > 1 else None)
    if not isinstance(exponent, (int, float)) or exponent == 1:
        return func(*args, **kwargs)
    if exponent < 0 or exponent == 0.5:
        return scale(view, func, args, kwargs)
    return elementwise(view, func, args, kwargs)


def frozen(view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Has no value at 0 to draw a secant from: a constant."""
    out = func(*args, **kwargs)
    return mark(out.detach(), "gate") if live(out) else out


SECANT: Table = {
    activation_module: module,
    **dict.fromkeys(
        calls(
            "gelu", "silu", "elu", "selu", "celu", "tanh", "sigmoid", "expit", "softplus",
            "softsign", "hardtanh", "hardswish", "hardsigmoid", "mish", "logsigmoid", "relu6",
            "tanhshrink", "softshrink", "hardshrink", "erf", "sin", "cos", "log1p", "square",
            "clamp", "clip", "clamp_min", "clamp_max", "expm1", "atan", "threshold", "sinc",
        ),
        elementwise,
    ),
    **dict.fromkeys(calls("relu", "leaky_relu", "prelu", "rrelu", "abs"), homogeneous),
    **dict.fromkeys(calls("exp"), exponential),
    **dict.fromkeys(calls("pow", "float_power"), power),
    **dict.fromkeys(calls("log", "log2", "log10", "reciprocal"), frozen),
}  # fmt: skip
