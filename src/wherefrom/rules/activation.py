"""The secant rule: an element-wise function is replaced by the line through f(0) and f(x)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from wherefrom.rules.linear import Slope, scale
from wherefrom.rules.offsets import (
    any_offset,
    is_difference,
    offset_of,
    rest_of,
    set_offset,
    set_weight,
)
from wherefrom.tracing.catalogue import Kind, TorchCall, depends_on_input
from wherefrom.tracing.tags import mark
from wherefrom.tracing.tracer import Table, Tracer


def secant(
    tracer: Tracer, x: Tensor, y: Tensor, f: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor | None]:
    """Replaces y = f(x) by f(0) + x · [(f(x) − f(0)) / x], with the bracket a constant.

    Returns this y, and f(0) unless it is zero. At x = 0 the bracket is f'(0). Where x is infinite,
    as under a mask, y is a constant and replaces f(0). If f(0) is not zero and x has an offset c,
    the secant is drawn from c: y = f(c) + (x − c) · [(f(x) − f(c)) / (x − c)].
    """
    with torch.no_grad():
        start = _zero(x)
        at_start = f(start)
        offset = any_offset(x) if bool(at_start.any()) else offset_of(x)
        if offset is not None:
            start = offset.value.to(x.dtype)
            at_start = f(start)
        slope = (y - at_start).div_(x if offset is None else x - start)
        if not math.isfinite(float(slope.sum())):
            # 0/0 at x = 0; the model's own NaN values remain visible in its output
            slope = torch.where(slope.isnan(), _slope_at(start, f), slope)
        constant = at_start.detach() if bool(at_start.any()) else None
        masked = constant is not None and not math.isfinite(float(x.detach().sum()))
        if masked:
            constant = torch.where(x.isinf(), y, at_start)
    source = x if offset is None else rest_of(tracer, x, offset)
    linear: Tensor = Slope.apply(source, y, slope)
    if constant is not None and not masked:
        set_offset(linear, constant, Slope.apply(source, y, slope))
    return linear, constant


def _zero(x: Tensor) -> Tensor:
    """A zero with the number of axes of x."""
    return torch.zeros((1,) * max(1, x.ndim), dtype=x.dtype, device=x.device)


def _slope_at(start: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    with torch.enable_grad():
        leaf = start.clone().requires_grad_()
        value = f(leaf.clone())  # f may write into its argument
        (slope,) = torch.autograd.grad(value.sum(), leaf, allow_unused=True)
    return torch.zeros_like(start) if slope is None else slope


def out_of_place(call: TorchCall) -> TorchCall:
    """The same call, not in place."""
    if call.get("inplace"):
        return call.with_(inplace=False)
    if call.in_place:
        function = getattr(torch, call.name, None) or getattr(F, call.name)
        return TorchCall(function, call.args, call.kwargs)
    return call


def as_function(call: TorchCall, parameter: str) -> Callable[[Tensor], Tensor]:
    """The call as a function of one of its arguments, not in place."""
    plain = out_of_place(call)

    def f(value: Tensor) -> Tensor:
        out: Tensor = plain.run(**{parameter: value})
        return out

    return f


def elementwise(tracer: Tracer, call: TorchCall, parameter: str = "input") -> Any:
    """f(0) + x · [(f(x) − f(0)) / x], the bracket a constant and f(0) a line of the ledger."""
    x = call[parameter]
    if not depends_on_input(x):
        return call.run()
    f = as_function(call, parameter)
    with torch.no_grad():
        y = f(x.detach())
    linear = _linear(tracer, call, x, y, f)
    if not call.in_place:
        return linear
    written, offset = mark(x.copy_(linear), "gate"), offset_of(linear)
    if offset is not None:
        set_offset(written, offset.value, offset.rest)
    return written


def module(tracer: Tracer, call: TorchCall) -> Any:
    """The secant of a whole module; the arguments are x and y = f(x)."""
    x, y = call.args
    return _linear(tracer, call, x, y, call.function)


def _linear(
    tracer: Tracer, call: TorchCall, x: Tensor, y: Tensor, f: Callable[[Tensor], Tensor]
) -> Any:
    tracer.touched["activation"] += 1
    linear, at_zero = secant(tracer, x, y, f)
    return mark(tracer.constant(call, linear, at_zero), "gate")


def homogeneous(tracer: Tracer, call: TorchCall) -> Any:
    """Functions like ReLU are their own secant; only the role of the result is set."""
    return mark(call.run(), "gate")


def exponential(tracer: Tracer, call: TorchCall) -> Any:
    """An activation, whose quotient by its own sum is a softmax."""
    out = mark(elementwise(tracer, call), "exp")
    return set_weight(out) if is_difference(call["input"]) else out


def power(tracer: Tracer, call: TorchCall) -> Any:
    """Roots and inverses are scales; other powers, including c^x, are activations."""
    exponent = call["exponent"]
    if depends_on_input(exponent):
        return (
            call.run() if depends_on_input(call["input"]) else elementwise(tracer, call, "exponent")
        )
    if not isinstance(exponent, (int, float)) or exponent == 1:
        return call.run()
    if exponent < 0 or exponent == 0.5:
        return scale(tracer, call)
    x = call["input"]
    if exponent == 2 and depends_on_input(x) and not call.in_place:  # frequent, in norms
        tracer.touched["activation"] += 1
        return mark(x * x.detach(), "gate")  # the secant of x² is x · [x]
    return elementwise(tracer, call)


def logarithm(tracer: Tracer, call: TorchCall) -> Any:
    """A constant: it has no value at 0 for a secant."""
    out = call.run()
    return mark(out.detach(), "gate") if depends_on_input(out) else out


def log_softmax(tracer: Tracer, call: TorchCall) -> Any:
    """log p_j = x_j − Σ p_i x_i − H(p), with p and its entropy H constants."""
    out = call.run()
    if not depends_on_input(out):
        return out
    with torch.no_grad():
        entropy = _entropy(out.detach(), call.get("dim", -1), keepdim=True)
    return tracer.constant(call, out, -entropy, "entropy")


def log_sum(tracer: Tracer, call: TorchCall) -> Any:
    """log Σ exp x_i = Σ p_i x_i + H(p), with p = softmax(x) and its entropy H constants."""
    out, x, dim = call.run(), call["input"], call["dim"]
    if not depends_on_input(out):
        return out
    with torch.no_grad():
        whole = x.detach().logsumexp(dim, keepdim=True)
        entropy = _entropy(x.detach() - whole, dim, call.get("keepdim", False))
    return tracer.constant(call, out, entropy, "entropy")


def _entropy(log_p: Tensor, dim: int | tuple[int, ...], keepdim: bool) -> Tensor:
    return -(log_p.exp() * log_p).nan_to_num(nan=0.0).sum(dim, keepdim=keepdim)  # 0 · −∞ is 0


SECANT: Table = {
    Kind.ACTIVATION_MODULE: module,
    Kind.ACTIVATION: elementwise,
    Kind.HOMOGENEOUS: homogeneous,
    Kind.EXPONENTIAL: exponential,
    Kind.POWER: power,
    Kind.LOGARITHM: logarithm,
    Kind.LOG_SOFTMAX: log_softmax,
    Kind.LOG_SUM: log_sum,
}
