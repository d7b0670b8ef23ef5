"""The LN rule: centring stays in the graph, the scale of a norm is a constant."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from wherefrom.rules.linear import affine
from wherefrom.tracing.catalogue import Kind, TorchCall, depends_on_input
from wherefrom.tracing.tracer import Table, Tracer


class _LayerNorm(Function):
    """The fused kernel forward; backward the transpose of weight, scale and centring."""

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


def layer_norm(tracer: Tracer, call: TorchCall) -> Any:
    """(x − mean) · [1/std] · w + b, the bracket a constant (Ali et al. 2022, eq. 11)."""
    x, bias = call["input"], call.get("bias")
    if not depends_on_input(x):
        return call.run()
    tracer.touched["norm"] += 1
    shape = tuple(call["normalized_shape"])
    out = _LayerNorm.apply(x, shape, call.get("weight"), bias, call.get("eps", 1e-5))
    return _with_bias(tracer, call, out, bias)


def _with_bias(tracer: Tracer, call: TorchCall, out: Any, bias: Tensor | None) -> Any:
    if bias is None:
        return out
    return tracer.constant(call, out, bias)


def layer_norm_bias(tracer: Tracer, call: TorchCall) -> Any:
    """The true derivative; only records the bias."""
    return _with_bias(tracer, call, call.run(), call.get("bias"))


def rms_norm(tracer: Tracer, call: TorchCall) -> Any:
    """x · [1/rms] · w, the bracket a constant."""
    x, weight, eps = call["input"], call.get("weight"), call.get("eps")
    if not depends_on_input(x):
        return call.run()
    tracer.touched["norm"] += 1
    axes = tuple(range(-len(call["normalized_shape"]), 0))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    scale = torch.rsqrt(x.detach().pow(2).mean(axes, keepdim=True) + eps)
    return x * scale if weight is None else x * scale * weight


def group_norm(tracer: Tracer, call: TorchCall) -> Any:
    """Centres and scales each group, the scale a constant."""
    return _of_groups(tracer, call, call["num_groups"])


def instance_norm(tracer: Tracer, call: TorchCall) -> Any:
    """A group norm with a group for each channel; affine with running statistics."""
    if call.get("use_input_stats", True):
        return _of_groups(tracer, call, call["input"].shape[1])
    return affine(tracer, call)


def _of_groups(tracer: Tracer, call: TorchCall, groups: int) -> Any:
    x, weight, bias = call["input"], call.get("weight"), call.get("bias")
    if not depends_on_input(x):
        return call.run()
    tracer.touched["norm"] += 1
    rows = x.reshape(x.shape[0], groups, -1)
    variance = rows.detach().var(-1, correction=0, keepdim=True)
    scale = torch.rsqrt(variance + call.get("eps", 1e-5))
    out = ((rows - rows.mean(-1, keepdim=True)) * scale).reshape(x.shape)
    channels = (-1, *(1,) * (x.ndim - 2))
    out = out if weight is None else out * weight.reshape(channels)
    if bias is None:
        return out
    return tracer.constant(call, out + bias.reshape(channels), bias.reshape(channels))


def scale(tracer: Tracer, call: TorchCall) -> Any:
    """A root or a length: a constant, since hand-written norms divide by it."""
    out = call.run()
    if depends_on_input(out):
        tracer.touched["norm"] += 1
        return out.detach()
    return out


def power(tracer: Tracer, call: TorchCall) -> Any:
    """A power of ±½ is a root."""
    exponent = call["exponent"]
    if isinstance(exponent, (int, float)) and abs(exponent) == 0.5:
        return scale(tracer, call)
    return call.run()


def normalize(tracer: Tracer, call: TorchCall) -> Any:
    """x / [‖x‖], the bracket a constant."""
    x = call["input"]
    if not depends_on_input(x):
        return call.run()
    tracer.touched["norm"] += 1
    length = torch.linalg.vector_norm(
        x.detach(), call.get("p", 2.0), call.get("dim", 1), keepdim=True
    )
    return x / length.clamp_min(call.get("eps", 1e-12))


NORM: Table = {
    Kind.LAYER_NORM: layer_norm,
    Kind.RMS_NORM: rms_norm,
    Kind.GROUP_NORM: group_norm,
    Kind.INSTANCE_NORM: instance_norm,
    Kind.ROOT: scale,
    Kind.POWER: power,
    Kind.NORMALIZE: normalize,
}
NORM_BIAS: Table = {Kind.LAYER_NORM: layer_norm_bias}
