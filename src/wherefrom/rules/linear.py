"""Affine calls: run unchanged, with their constant part recorded; norms are made affine (LN rule).

Under the LN rule the scale of a norm is a constant; centring stays in the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from wherefrom.core.torch_internals import stacked
from wherefrom.tracing.catalogue import Kind, TorchCall, depends_on_input
from wherefrom.tracing.tags import role_of
from wherefrom.tracing.tracer import Table, Tracer


def affine(tracer: Tracer, call: TorchCall) -> Any:
    """The constant part of an affine call is its result for zero inputs."""
    arguments = [t for t in call.tensors() if t.is_floating_point()]
    if not tracer.ledger.enabled or not any(map(depends_on_input, arguments)):
        return call.run()
    if all(map(depends_on_input, arguments)) and not _fills(call):
        return call.run()
    with torch.no_grad():
        at_zero = call.mapped(_zero)
        if call.in_place and not depends_on_input(call.args[0]):
            at_zero.args = (call.args[0].clone(), *at_zero.args[1:])
        part = at_zero.run()
        part = at_zero.args[0] if part is None else part  # x[i] = y returns None
    out = call.run()
    changed = call.args[0] if out is None else out
    if isinstance(part, Tensor) and part.is_floating_point() and bool((part != 0).any()):
        tracer.constant(call, changed, part, "token" if call.kind is Kind.JOIN else "bias")
    return out


def sum_of_two(tracer: Tracer, call: TorchCall) -> Any:
    """A sum l ± α·r: records the constant operand, without expanding it to the size of the sum."""
    left, right = call["left"], call["right"]
    if depends_on_input(left) == depends_on_input(right):
        return call.run()
    part = right if depends_on_input(left) else left
    factor = 1.0
    if part is right:
        factor = call.get("alpha", 1) * (1 if call.name == "add" else -1)
    kind = role_of(part) or "bias"
    # computed before the call, which may write into the constant
    amount = part * factor if isinstance(part, Tensor) else float(part) * factor
    out = call.run()
    return tracer.constant(call, out, amount, kind) if isinstance(part, Tensor) or part else out


def linear(tracer: Tracer, call: TorchCall) -> Any:
    """A linear layer; its bias has one number for each output."""
    out, rounding = without_constants(call)
    return tracer.constant(
        call, tracer.constant(call, out, bias_of(call)), rounding, "quantisation"
    )


def without_constants(call: TorchCall) -> tuple[Any, Tensor | None]:
    """The result of a linear layer, and what rounding adds if its weights are packed.

    Packed weights are tensors that have `dequantize`, or those of torch's dynamically quantised
    layer, whose activations are rounded too.
    """
    x, packed = call["input"], call.get("packed")
    if not depends_on_input(x):
        return call.run(), None
    if packed is not None:
        return _packed_linear(call, lambda: packed.unpack()[0].dequantize())
    if _is_packed(call["weight"]):
        return _packed_linear(call, call["weight"].dequantize)
    if not _is_plain(call):
        return call.run(), None
    return _RowsLinear.apply(x, call["weight"], call.get("bias")), None


def bias_of(call: TorchCall) -> Tensor | None:
    """The bias of a linear layer."""
    packed = call.get("packed")
    bias: Tensor | None = call.get("bias") if packed is None else packed.unpack()[1]
    return bias


_MANY_OUTPUTS = 4096  # from here on it pays to skip outputs without a gradient


class Slope(Function):
    """A value y of x with the gradient of a line through it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return y.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return (gradients[0] * slope).to(gradients[0].dtype), None, None


class _RowsLinear(Function):
    """x Wᵀ + b; the backward pass skips rows and outputs whose gradient is zero.

    Most models read one position of the last block, and a target few logits of a language model,
    so the gradient of all others is zero.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.weight = weight  # a constant: autograd need not save it
        if bias is None:
            return F.linear(x, weight)
        # with a bias torch returns a view, and a model may write into the result
        out = x.new_empty(*x.shape[:-1], weight.shape[0])
        rows, flat = x.reshape(-1, x.shape[-1]), out.view(-1, weight.shape[0])
        torch.addmm(bias, rows, weight.T, out=flat)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        weight, gradient = ctx.weight, gradients[0]
        rows = gradient.reshape(-1, gradient.shape[-1])
        if len(rows) > 8:
            # a cheap first check: this row is neither a class token nor the last position
            if not bool(stacked(rows[len(rows) // 2 + 1]).any()):
                places = stacked(rows).any(-1).any(0).nonzero().flatten()
                if 2 * len(places) < len(rows):
                    back = rows.new_zeros(len(rows), weight.shape[1])
                    back = back.index_copy(0, places, rows[places] @ weight)
                    return back.reshape(*gradient.shape[:-1], -1), None, None
        elif rows.shape[1] >= _MANY_OUTPUTS:
            outputs = stacked(rows).any(0).any(0).nonzero().flatten()
            if 2 * len(outputs) < rows.shape[1]:  # few logits of a vocabulary are explained
                return gradient[..., outputs] @ weight[outputs], None, None
        return gradient @ weight, None, None


def _is_plain(call: TorchCall) -> bool:
    """Whether input and constant weight of a linear layer are plain tensors of one type."""
    x, weight = call["input"], call["weight"]
    return (
        type(x) is Tensor
        and type(weight) in (Tensor, nn.Parameter)
        and depends_on_input(x)
        and not depends_on_input(weight)
        and x.dtype == weight.dtype
        and x.ndim > 1
        and weight.ndim == 2
        and not torch.is_autocast_enabled(x.device.type)
    )


class _PackedLinear(Function):
    """The value of a packed layer; backward with its dequantised weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, weight: Callable[[], Tensor]) -> Tensor:
        ctx.weight = weight  # dequantised again in the backward pass, to save memory
        return y.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0] @ ctx.weight().to(gradients[0]), None, None


def _is_packed(weight: object) -> bool:
    """Whether a weight is a tensor subclass with its own `dequantize`."""
    return (
        isinstance(weight, Tensor)
        and type(weight) not in (Tensor, nn.Parameter)
        and type(weight).dequantize is not Tensor.dequantize
    )


def _packed_linear(call: TorchCall, weight: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """W x + b + rounding, with W the dequantised weight; and the rounding."""
    x = call["input"]
    with torch.no_grad():
        y = call.run(input=x.detach())
        rounding = y - F.linear(x.detach(), weight().to(x), bias_of(call))
    out: Tensor = _PackedLinear.apply(x, y, weight)
    return out, rounding


def convolution(tracer: Tracer, call: TorchCall) -> Any:
    """A convolution; its bias has one number for each channel, the axis after the batch."""
    out, bias = call.run(), call.get("bias")
    if bias is None:
        return out
    return tracer.constant(call, out, bias.reshape(-1, *(1,) * (out.ndim - 2)))


def batch_norm(tracer: Tracer, call: TorchCall) -> Any:
    """An affine call in evaluation mode; its backward pass needs a contiguous gradient.

    For a single image with a channels-last gradient, torch 2.13 reads the wrong entries.
    """
    x, out = call["input"], in_order(call.run())
    if not (tracer.ledger.enabled and depends_on_input(x)):
        return out
    with torch.no_grad():  # a number for each channel
        at_zero = call.run(input=x.new_zeros(1, x.shape[1], *(1,) * (x.ndim - 2)))
    return tracer.constant(call, out, at_zero[0])


def in_order(out: Any) -> Any:
    """Makes the gradient of a result contiguous."""
    if depends_on_input(out):
        out.grad_fn.register_prehook(_contiguous)
    return out


def _contiguous(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(None if g is None else g.contiguous() for g in gradients)


def lookup(tracer: Tracer, call: TorchCall) -> Any:
    """A lookup is an entry point of units on the input's ids, else a constant of positions."""
    ids, weight, out = call["ids"], call["weight"], call.run()
    ahead = tracer.entry_points.rows_of_prompt(ids)
    if not ahead:
        return tracer.entry_points.lookup(ids, weight, out)
    with tracer.resumed():  # the same as looking both up apart and joining them
        own = tracer.entry_points.lookup(ids[:, ahead:], weight, out[:, ahead:])
        return torch.cat([out[:, :ahead], own], 1)


def _zero(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.requires_grad else tensor


def _fills(call: TorchCall) -> bool:
    """Whether a call may write a number other than zero between its arguments."""
    return call.kind is Kind.WRITE and any(
        isinstance(value, (int, float)) and value for value in (*call.args, *call.kwargs.values())
    )


AFFINE: Table = {
    Kind.SUM: sum_of_two,
    Kind.LINEAR: linear,
    Kind.QUANTISED_LINEAR: linear,
    Kind.CONVOLUTION: convolution,
    Kind.BATCH_NORM: batch_norm,
    Kind.LOOKUP: lookup,
    Kind.JOIN: affine,
    Kind.STACK: affine,
    Kind.WRITE: affine,
}


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
    return tracer.constant(call, out, bias)


def layer_norm_bias(tracer: Tracer, call: TorchCall) -> Any:
    """The true derivative; only records the bias."""
    return tracer.constant(call, call.run(), call.get("bias"))


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
