"""The LN rule: a norm centres what it gets, which stays in the graph; its scale is a constant."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from wherefrom.rules.calls import Call, calls, live
from wherefrom.rules.mode import LocallyLinear, Table


class _LayerNorm(Function):
    """The fused kernel forward; backward the transpose of centring, scale and weight."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shape: tuple[int, ...], weight: Any, bias: Any, eps: float
    ) -> Tensor:
        out, _, scale = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.axes = tuple(range(-len(shape), 0))
        ctx.save_for_backward(scale, weight)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale, weight = ctx.saved_tensors
        g = gradients[0] if weight is None else gradients[0] * weight
        g = (g - g.mean(ctx.axes, keepdim=True)).mul_(scale)
        return g, None, None, None, None


def layer_norm(
    view: LocallyLinear,
    func: Call,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Y = (x − mean) · [1/std] · w + b, the bracket a constant (Ali et al. 2022, eq. 11)."""
    x, shape, weight, bias, eps = layer_norm_arguments(*args, **kwargs)
    if not live(x):
        return func(*args, **kwargs)
    view.touched["norm"] += 1
    out = _LayerNorm.apply(x, tuple(shape), weight, bias, eps)
    return view.constant(out, bias) if bias is not None else out


def layer_norm_bias(
    view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The true derivative; only the bias is booked."""
    out = func(*args, **kwargs)
    bias = layer_norm_arguments(*args, **kwargs)[3]
    return view.constant(out, bias) if bias is not None else out


def layer_norm_arguments(
    input: Tensor,
    normalized_shape: tuple[int, ...],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> tuple[Tensor, tuple[int, ...], Tensor | None, Tensor | None, float]:
    """The arguments of a call, by name or by place."""
    return input, normalized_shape, weight, bias, eps


def rms_norm(view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Y = x · [1/rms] · w, the bracket a constant."""
    x, shape, weight, eps = _rms_norm_arguments(*args, **kwargs)
    if not live(x):
        return func(*args, **kwargs)
    view.touched["norm"] += 1
    axes = tuple(range(-len(shape), 0))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    scale = torch.rsqrt(x.detach().pow(2).mean(axes, keepdim=True) + eps)
    return x * scale if weight is None else x * scale * weight


def _rms_norm_arguments(
    input: Tensor,
    normalized_shape: tuple[int, ...],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> tuple[Tensor, tuple[int, ...], Tensor | None, float | None]:
    return input, normalized_shape, weight, eps


def group_norm(
    view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Each group is centred and scaled, the scale a constant."""
    x, groups, weight, bias, eps = _group_norm_arguments(*args, **kwargs)
    if not live(x):
        return func(*args, **kwargs)
    view.touched["norm"] += 1
    rows = x.reshape(x.shape[0], groups, -1)
    scale = torch.rsqrt(rows.detach().var(-1, correction=0, keepdim=True) + eps)
    out = ((rows - rows.mean(-1, keepdim=True)) * scale).reshape(x.shape)
    each = (-1, *(1,) * (x.ndim - 2))
    out = out if weight is None else out * weight.reshape(each)
    return out if bias is None else view.constant(out + bias.reshape(each), bias.reshape(each))


def _group_norm_arguments(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, int, Tensor | None, Tensor | None, float]:
    return input, num_groups, weight, bias, eps


def scale(view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A root, or a length, is what a hand-written norm divides by: a constant."""
    out = func(*args, **kwargs)
    if live(out):
        view.touched["norm"] += 1
        return out.detach()
    return out


def power(view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A power of ±½ is a root."""
    exponent = kwargs.get("exponent", args[1] if len(args) > 1 else None)
    if isinstance(exponent, (int, float)) and abs(exponent) == 0.5:
        return scale(view, func, args, kwargs)
    return func(*args, **kwargs)


def normalize(
    view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The quotient x / [‖x‖], the length a constant."""
    x = args[0] if args else kwargs["input"]
    if not live(x):
        return func(*args, **kwargs)
    view.touched["norm"] += 1
    settings = dict(zip(("p", "dim", "eps"), args[1:], strict=False)) | kwargs
    length = torch.linalg.vector_norm(
        x.detach(), settings.get("p", 2.0), settings.get("dim", 1), keepdim=True
    )
    return x / length.clamp_min(settings.get("eps", 1e-12))


NORM: Table = {
    F.layer_norm: layer_norm,
    **dict.fromkeys(calls("layer_norm"), layer_norm),
    **dict.fromkeys(calls("rms_norm"), rms_norm),
    **dict.fromkeys(calls("group_norm"), group_norm),
    **dict.fromkeys(calls("sqrt", "rsqrt", "norm", "vector_norm", "std"), scale),
    **dict.fromkeys(calls("pow"), power),
    **dict.fromkeys(calls("normalize"), normalize),
}
NORM_BIAS: Table = dict.fromkeys(calls("layer_norm"), layer_norm_bias)
