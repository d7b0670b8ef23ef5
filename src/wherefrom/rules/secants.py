"""Rules between two points: every call splits its own difference between input and reference.

With Δ for the difference between the pass at the input and the pass at the reference, and a bar for
the mean of the two, every rule is exact:

- an element-wise function: Δf = Δx · [Δf / Δx] (the rescale rule of DeepLIFT)
- a product of two, of any form: Δ(a b) = Δa · b̄ + ā · Δb, each factor's Shapley value
- a softmax: Δp_i = L_i (Δz_i − Σ_j L_j Δz_j / Σ_j L_j), with L the logarithmic mean of p at both
  points. It is the derivative of a softmax with L in place of p.
- a norm by its parts: x · r with r a function of the mean square of x

What is the same at both points cancels, so output(input) − output(reference) is the sum over the
units. Derivation: docs/decisions/11-secants-of-a-softmax.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from wherefrom.rules.activation import as_function, out_of_place
from wherefrom.rules.attention import decomposed
from wherefrom.rules.linear import in_order, lookup
from wherefrom.rules.product import Products
from wherefrom.rules.secant_softmax import (
    at_root,
    carried,
    dot_product,
    is_root,
    log_softmax,
    log_sum,
    over_own_sum,
    softmax,
)  # fmt: skip
from wherefrom.tracing.catalogue import Kind, TorchCall, depends_on_input
from wherefrom.tracing.tags import einsum_terms, mark, role_of
from wherefrom.tracing.tracer import Table, Tracer


class _Slope(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return y.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return gradients[0] * slope, None, None


def _middle(x: Tensor, root: Tensor) -> Tensor:
    """The middle between input and root, with the gradient of the input."""
    return carried(x, (x.detach() + root) / 2)


def secant(tracer: Tracer, x: Tensor, f: Callable[[Tensor], Tensor], name: str = "") -> Tensor:
    """f(x) with the slope Δf / Δx; where input and root are close, f′ in the middle.

    Close means close for their size, so that the kink of a ReLU never lies between them. Functions
    of these names have a slope without a difference.
    """
    with torch.no_grad():
        y = f(x.detach().clone())
        x0, y0 = at_root(tracer, x, y)
    if is_root(tracer):
        return carried(x, y)
    with torch.no_grad():
        slope = _SLOPES[name](x, x0, y, y0) if name in _SLOPES else _ratio(x.detach(), x0, y, y0, f)
    out: Tensor = _Slope.apply(x, y, slope)
    return out


def _ratio(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    way = x - x0
    close = ~((way / x0).abs_() > torch.finfo(x.dtype).eps ** (1 / 3))  # 0 / 0 is close
    slope = (y - y0).div_(way)
    if bool(close.any()):
        with torch.enable_grad():
            middle = ((x + x0) / 2).requires_grad_()
            (derivative,) = torch.autograd.grad(f(middle.clone()).sum(), middle)
        slope = torch.where(close, derivative, slope)
    return slope


_SLOPES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "square": lambda x, x0, y, y0: x + x0,
    "sqrt": lambda x, x0, y, y0: 1 / (y + y0),
    "rsqrt": lambda x, x0, y, y0: -(y * y0).square() / (y + y0),
    "reciprocal": lambda x, x0, y, y0: -y * y0,
}


def elementwise(
    tracer: Tracer, call: TorchCall, parameter: str = "input", name: str | None = None
) -> Any:
    """Any function of one number: its secant."""
    x = call[parameter]
    if not depends_on_input(x):
        return call.run()
    out = secant(tracer, x, as_function(call, parameter), name or call.name)
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
    is_square = base and isinstance(call["exponent"], (int, float)) and call["exponent"] == 2
    return elementwise(
        tracer, call, "exponent" if exponent else "input", "square" if is_square else None
    )


def _multiply(tracer: Tracer, a: Tensor, b: Tensor) -> Tensor:
    a0, b0 = at_root(tracer, a, b)
    return carried(_middle(a, a0) * _middle(b, b0), (a * b).detach())


class _Scaled(Function):
    """x · r with r = (mean x² + ε)^−½, a product of two: Δr = −r² r′² / (r + r′) · Δ mean x²."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, x0: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
        r, r0 = ((t.square().mean(axes, keepdim=True) + eps).rsqrt() for t in (x, x0))
        ctx.save_for_backward((x + x0) / 2, (r + r0) / 2, -2 * (r * r0).square() / (r + r0))
        ctx.axes = axes
        return x * r

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        middle, scale, slope = ctx.saved_tensors
        shared = (gradients[0] * middle).mean(ctx.axes, keepdim=True)
        return gradients[0] * scale + middle * (slope * shared), None, None, None


def _scaled(tracer: Tracer, x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """X / √(mean x² + ε)."""
    (x0,) = at_root(tracer, x)
    out: Tensor = _Scaled.apply(x, x0, axes, eps)
    return out


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
    return secant(tracer, square, torch.sqrt, "sqrt")


def bilinear(tracer: Tracer, call: TorchCall) -> Any:
    """A product of two, of any form."""
    left, right = call["left"], call["right"]
    if not (depends_on_input(left) and depends_on_input(right)):
        return call.run()
    plain = out_of_place(call)
    out = _product(tracer, left, right, lambda a, b: plain.run(left=a, right=b))
    return left.copy_(out) if call.in_place else out


def einsum(tracer: Tracer, call: TorchCall) -> Any:
    """A product of two by an equation."""
    _, _, operands = einsum_terms(call)
    if len(operands) != 2 or not all(map(depends_on_input, operands)):
        return call.run()
    (left, right), equation = operands, call.args[0]
    return _product(tracer, left, right, lambda a, b: call.function(equation, a, b))


def _product(
    tracer: Tracer, left: Tensor, right: Tensor, run: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Linear in each factor, so that its gradient in the middle is exact."""
    left0, right0 = at_root(tracer, left, right)
    if is_root(tracer):
        out = run(left, right)
        return carried(out, out.detach())
    with torch.no_grad():
        value = run(left, right)
    return carried(run(_middle(left, left0), _middle(right, right0)), value)


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
        return over_own_sum(tracer, call, left, right)
    inverse = secant(tracer, right, torch.reciprocal, "reciprocal")
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
    Kind.LOG_SOFTMAX: log_softmax,
    Kind.LOG_SUM: log_sum,
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
    Kind.COSINE: _BY_PARTS.cosine,
    Kind.RECURRENT: _BY_PARTS.recurrent,
    Kind.RECURRENT_CELL: _BY_PARTS.recurrent,
}
"""Secants between reference and input; the tracer needs the activations at the reference."""
