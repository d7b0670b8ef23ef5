"""The three moves that make a call locally linear: freeze, share, secant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def freeze(value: Any) -> Any:
    """The value as a constant: no relevance passes through it."""
    return value.detach() if isinstance(value, Tensor) else value


class _Share(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def share(x: Tensor, factor: float = 0.5) -> Tensor:
    """The same value, but only `factor` of the relevance goes to it."""
    shared: Tensor = _Share.apply(x, factor)
    return shared


class _Secant(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, at_zero: Tensor, slope_at_zero: float) -> Tensor:
        slope = (y - at_zero).div_(x) if bool(at_zero.any()) else y / x
        # 0/0 where x is 0; a NaN of the model's own stays visible in its output
        slope.nan_to_num_(nan=slope_at_zero, posinf=float("inf"), neginf=float("-inf"))
        ctx.save_for_backward(slope)
        return y.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (slope,) = ctx.saved_tensors
        return gradients[0] * slope, None, None, None


def secant(x: Tensor, y: Tensor, f: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Reads y = f(x) as f(0) + x · [(f(x) − f(0)) / x] with the bracket a constant.

    Returns that y and f(0). At x = 0 the bracket is f'(0).
    """
    with torch.enable_grad():
        zero = torch.zeros((1,) * max(1, x.ndim), dtype=x.dtype, device=x.device).requires_grad_()
        at_zero = f(zero.clone())  # f may write into what it gets
        slopes = torch.autograd.grad(at_zero.sum(), zero, allow_unused=True)[0]
    slope = 0.0 if slopes is None else float(slopes)
    at_zero = at_zero.detach()
    linear: Tensor = _Secant.apply(x, y, at_zero, slope)
    return linear, at_zero
