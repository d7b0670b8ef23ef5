"""Rules between two points: secants from the root to the input instead of from zero.

With Δ for the difference between the pass at the input and the pass at the root, and a bar for
the mean of the two, every rule is exact:

- an element-wise function: Δf = Δx · [Δf / Δx] (the rescale rule of DeepLIFT)
- a product of two, of any form: Δ(a b) = Δa · b̄ + ā · Δb, each factor's Shapley value
- attention: Δ(p v) = p̄ · Δv + Δp · v̄, of which the second part is a line of the ledger, as
  attention weights carry no relevance (the AH rule)
- a norm by its parts: x · r with r a function of the mean square of x

Constants cancel, so output(input) − output(root) is the sum over the units plus what attention
added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from wherefrom.rules.activation import as_function, out_of_place
from wherefrom.rules.attention import decomposed, dot_product_of, explicit_attention, softmax
from wherefrom.rules.linear import in_order, lookup
from wherefrom.rules.product import FEW_KEYS, Products, freeze
from wherefrom.tracing.catalogue import Kind, TorchCall, depends_on_input
from wherefrom.tracing.tag_propagation import einsum_terms
from wherefrom.tracing.tags import like, mark, role_of
from wherefrom.tracing.tracer import Table, Tracer


class _Carried(Function):
    """The value of one tensor with the gradient of another."""

    @staticmethod
    def forward(ctx: Any, carrier: Tensor, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _carried(carrier: Tensor, value: Tensor) -> Tensor:
    out: Tensor = _Carried.apply(carrier, value)
    return out


class _Slope(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return gradients[0] * slope, None, None


def _at_root(tracer: Tracer, *tensors: Tensor) -> tuple[Tensor, ...]:
    assert tracer.root_activations is not None
    return tracer.root_activations.at_root(tracer.where, *tensors)


def _middle(x: Tensor, root: Tensor) -> Tensor:
    """The middle between input and root, with the gradient of the input."""
    return _carried(x, (x.detach() + root) / 2)


def secant(tracer: Tracer, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """f(x) with the slope Δf / Δx; where input and root are close, f′ in the middle.

    Close means close for their size, so that the kink of a ReLU never lies between them.
    """
    with torch.no_grad():
        y = f(x.detach().clone())
        x0, y0 = _at_root(tracer, x, y)
        way = x.detach() - x0
        close = way.abs() <= torch.finfo(x.dtype).eps ** (1 / 3) * (x.abs() + x0.abs())
        slope = (y - y0) / torch.where(close, torch.ones_like(way), way)
    if bool(close.any()):
        with torch.enable_grad():
            middle = ((x.detach() + x0) / 2).requires_grad_()
            (derivative,) = torch.autograd.grad(f(middle.clone()).sum(), middle)
        slope = torch.where(close, derivative, slope)
    out: Tensor = _Slope.apply(x, y, slope)
    return out


def elementwise(tracer: Tracer, call: TorchCall, parameter: str = "input") -> Any:
    """Any function of one number: its secant."""
    x = call[parameter]
    if not depends_on_input(x):
        return call.run()
    out = secant(tracer, x, as_function(call, parameter))
    out = x.copy_(out) if call.in_place else out
    return mark(out, "exp" if call.kind is Kind.EXPONENTIAL else "gate")


def module(tracer: Tracer, call: TorchCall) -> Any:
    """The secant of a whole module; the arguments are x and its value there."""
    return mark(secant(tracer, call.args[0], call.function), "gate")


def power(tracer: Tracer, call: TorchCall) -> Any:
    """A power of x, or a number to the power of x."""
    base, exponent = depends_on_input(call["input"]), depends_on_input(call["exponent"])
    if base and exponent:
        return call.run()
    return elementwise(tracer, call, "exponent" if exponent else "input")


def _multiply(tracer: Tracer, a: Tensor, b: Tensor) -> Tensor:
    a0, b0 = _at_root(tracer, a, b)
    return _carried(_middle(a, a0) * _middle(b, b0), (a * b).detach())


def _scaled(tracer: Tracer, x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """X / √(mean x² + ε)."""
    square = _multiply(tracer, x, x).mean(axes, keepdim=True)
    return _multiply(tracer, x, secant(tracer, square, lambda v: (v + eps).rsqrt()))


def layer_norm(tracer: Tracer, call: TorchCall) -> Any:
    """Centred, scaled, then the affine part."""
    x, weight, bias = call["input"], call.get("weight"), call.get("bias")
    if not depends_on_input(x):
        return call.run()
    axes = tuple(range(-len(call["normalized_shape"]), 0))
    out = _scaled(tracer, x - x.mean(axes, keepdim=True), axes, call.get("eps", 1e-5))
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def rms_norm(tracer: Tracer, call: TorchCall) -> Any:
    """Scaled, then the weight."""
    x, weight, eps = call["input"], call.get("weight"), call.get("eps")
    if not depends_on_input(x):
        return call.run()
    axes = tuple(range(-len(call["normalized_shape"]), 0))
    out = _scaled(tracer, x, axes, torch.finfo(x.dtype).eps if eps is None else eps)
    return out if weight is None else out * weight


def group_norm(tracer: Tracer, call: TorchCall) -> Any:
    """Each group centred and scaled, then the affine part of each channel."""
    x, weight, bias = call["input"], call.get("weight"), call.get("bias")
    if not depends_on_input(x):
        return call.run()
    rows = x.reshape(x.shape[0], call["num_groups"], -1)
    centred = rows - rows.mean(-1, keepdim=True)
    out = _scaled(tracer, centred, (-1,), call.get("eps", 1e-5)).reshape(x.shape)
    channels = (-1, *(1,) * (x.ndim - 2))
    out = out if weight is None else out * weight.reshape(channels)
    return out if bias is None else out + bias.reshape(channels)


def normalize(tracer: Tracer, call: TorchCall) -> Any:
    """X / ‖x‖, by its parts."""
    x = call["input"]
    if not depends_on_input(x) or call.get("p", 2.0) != 2.0:
        return call.run()
    square = _multiply(tracer, x, x).sum(call.get("dim", 1), keepdim=True)
    least = call.get("eps", 1e-12) ** 2
    scale = secant(tracer, square, lambda v: v.clamp_min(least).rsqrt())
    return _multiply(tracer, x, scale)


def length(tracer: Tracer, call: TorchCall) -> Any:
    """√x and its inverse are secants; a length ‖x‖ is the root of a sum of squares."""
    x = call["input"]
    if call.name in ("sqrt", "rsqrt"):
        return elementwise(tracer, call)
    if not depends_on_input(x) or call.get("p", 2) not in (2, 2.0, None, "fro"):
        return call.run()
    axes, keep = call.get("dim"), bool(call.get("keepdim"))
    square = _multiply(tracer, x, x)
    square = square.sum() if axes is None else square.sum(axes, keepdim=keep)
    return secant(tracer, square, torch.sqrt)


def bilinear(tracer: Tracer, call: TorchCall) -> Any:
    """A product of two, of any form."""
    left, right = call["left"], call["right"]
    if not (depends_on_input(left) and depends_on_input(right)):
        return call.run()
    plain = out_of_place(call)
    out = _product(tracer, call, left, right, lambda a, b: plain.run(left=a, right=b))
    return left.copy_(out) if call.in_place else out


def einsum(tracer: Tracer, call: TorchCall) -> Any:
    """A product of two by an equation."""
    _, _, operands = einsum_terms(call)
    if len(operands) != 2 or not all(map(depends_on_input, operands)):
        return call.run()
    (left, right), equation = operands, call.args[0]
    return _product(tracer, call, left, right, lambda a, b: call.function(equation, a, b))


def _product(
    tracer: Tracer,
    call: TorchCall,
    left: Tensor,
    right: Tensor,
    run: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Linear in each factor, so that its gradient in the middle is exact; weights are frozen."""
    is_weights = [role_of(factor) == "softmax" for factor in (left, right)]
    left0, right0 = _at_root(tracer, left, right)
    with torch.no_grad():
        value = run(left, right)
        if sum(is_weights) == 1:
            # Δ(p v) = p̄ Δv + Δp v̄
            left_mean, right_mean = (left + left0) / 2, (right + right0) / 2
            changed = (left - left0, right_mean) if is_weights[0] else (left_mean, right - right0)
            shift = run(*changed)
    if sum(is_weights) != 1:
        return _carried(run(_middle(left, left0), _middle(right, right0)), value)
    carrier = run(left_mean, right) if is_weights[0] else run(left, right_mean)
    return tracer.constant(call, _carried(carrier, value), shift, "attention")  # type: ignore[no-any-return]


def dot_product(tracer: Tracer, call: TorchCall) -> Any:
    """Fused attention: with few keys by its weights, else by fused calls at both points."""
    query, key, value, settings = dot_product_of(call)
    if not any(map(depends_on_input, (query, key, value))):
        return call.run()
    settings["attn_mask"] = freeze(settings.get("attn_mask"))
    query, key = freeze(query), freeze(key)
    with torch.no_grad():
        out = call.function(query, key, value, **settings)
    if not depends_on_input(value):  # only the weights depend on the input, and they are constants
        return out
    query0, key0, value0, out0 = _at_root(tracer, query, key, value, out)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result: Tensor = call.function(q, k, v, **settings)
        return result

    if key.shape[-2] <= FEW_KEYS and not value.is_cuda:
        with torch.no_grad():
            weights, _ = explicit_attention(query, key, value, **settings)
            weights0, _ = explicit_attention(query0, key0, value0, **settings)
        repeats = weights.shape[-3] // value.shape[-3] if value.ndim > 3 else 1
        spread = value if repeats == 1 else like(value.repeat_interleave(repeats, -3), value)
        carrier = (weights + weights0) / 2 @ spread
        with torch.no_grad():
            root = value0 if repeats == 1 else value0.repeat_interleave(repeats, -3)
            shift = (weights - weights0) @ ((spread + root) / 2)
    else:
        carrier = (attend(query, key, value) + attend(query0, key0, value)) / 2
        with torch.no_grad():
            crossed = attend(query0, key0, value.detach()) - attend(query, key, value0)
            shift = (out - out0 - crossed) / 2
    return tracer.constant(call, _carried(carrier, out), shift, "attention")


def linear(tracer: Tracer, call: TorchCall) -> Any:
    """A layer whose weight depends on the input is a product of two."""
    x, weight, bias = call["input"], call["weight"], call.get("bias")
    if not (depends_on_input(x) and depends_on_input(weight)):
        return call.run()
    with tracer.resumed():
        out = x @ weight.mT
        return out if bias is None else out + bias


def quotient(tracer: Tracer, call: TorchCall) -> Any:
    """A product with the inverse; an exponential over its own sum is a softmax."""
    left, right = call["left"], call["right"]
    if not depends_on_input(right):
        return call.run()
    if role_of(left) == role_of(right) == "exp":
        return mark(call.run(), "softmax")
    inverse = secant(tracer, right, torch.reciprocal)
    if not depends_on_input(left):
        return left * inverse
    out = _multiply(tracer, left, inverse)
    return left.copy_(out) if call.in_place else out


def batch_norm(tracer: Tracer, call: TorchCall) -> Any:
    """An affine call in evaluation."""
    return in_order(call.run())


_BY_PARTS = Products(gate="shared")  # calls whose parts the mode then sees one by one

TWO_POINTS: Table = {
    Kind.LOOKUP: lookup,
    Kind.BATCH_NORM: batch_norm,
    Kind.ACTIVATION_MODULE: module,
    Kind.ACTIVATION: elementwise,
    Kind.HOMOGENEOUS: elementwise,
    Kind.EXPONENTIAL: elementwise,
    Kind.LOGARITHM: elementwise,
    Kind.POWER: power,
    Kind.ROOT: length,
    Kind.LAYER_NORM: layer_norm,
    Kind.RMS_NORM: rms_norm,
    Kind.GROUP_NORM: group_norm,
    Kind.NORMALIZE: normalize,
    Kind.SOFTMAX: softmax,
    Kind.MULTI_HEAD: decomposed,
    Kind.ATTENTION: dot_product,
    Kind.CONTRACTION: bilinear,
    Kind.ADDED_CONTRACTION: bilinear,
    Kind.BILINEAR: bilinear,
    Kind.PRODUCT: bilinear,
    Kind.ADDED_PRODUCT: _BY_PARTS.added_product,
    Kind.LINEAR: linear,
    Kind.EINSUM: einsum,
    Kind.QUOTIENT: quotient,
    Kind.GLU: _BY_PARTS.gated,
}
"""Secants between the root and the input; the mode needs a tape."""
