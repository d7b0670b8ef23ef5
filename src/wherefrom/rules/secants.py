"""Rules between two points: every call splits its own difference between input and reference.

With Δ for the difference between the pass at the input and the pass at the reference, and a bar for
the mean of the two, every rule is exact:

- an element-wise function: Δf = Δx · [Δf / Δx] (the rescale rule of DeepLIFT)
- a product of two, of any form: Δ(a b) = Δa · b̄ + ā · Δb, each factor's Shapley value
- a softmax: Δp_i = L_i (Δz_i − Σ_j L_j Δz_j / Σ_j L_j), with L the logarithmic mean of p at both
  points. It is the derivative of a softmax with L in place of p.
- a norm by its parts: x · r with r a function of the mean square of x
- a maximum: as log Σ exp β z / β for large β. The largest number at the input and the one at the
  reference get b : a of it, where a and b are what each lacks where it is not the largest
- any other smooth function: the mean derivative on the line between both points, by Gauss's
  quadrature with 16 points. It is exact for polynomials up to degree 32, for others up to its error

What is the same at both points cancels, so output(input) − output(reference) is the sum over the
units. Derivation: docs/decisions/11-secants-of-a-softmax.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from wherefrom.rules.activation import as_function, out_of_place
from wherefrom.rules.attention import decomposed
from wherefrom.rules.linear import Slope, in_order, lookup, without_constants
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
from wherefrom.tracing.tags import einsum_terms, mark, role_of, widened
from wherefrom.tracing.tracer import Table, Tracer, is_activation


def _along(x: Tensor, root: Tensor, part: float = 0.5) -> Tensor:
    """A point between root and input, with the gradient of the input."""
    return carried(x, torch.lerp(root, x.detach(), part))


def secant(
    tracer: Tracer,
    x: Tensor,
    f: Callable[[Tensor], Tensor],
    name: str = "",
    *,
    y: Tensor | None = None,
    whole: bool = False,
) -> Tensor:
    """f(x) with the slope Δf / Δx; where input and root are close, f′ in the middle.

    Close means close for their size, so that the kink of a ReLU never lies between them. Functions
    of these names have a slope without a difference. `whole`: f takes only tensors of x's shape.
    """
    with torch.no_grad():
        y = f(x.detach()) if y is None else y
        x0, y0 = at_root(tracer, x, y)
    if is_root(tracer):
        return carried(x, y)
    with torch.no_grad():
        points = widened(x.detach()), widened(x0), widened(y), widened(y0)
        closed = _SLOPES.get(name)
        slope = closed(*points) if closed else _ratio(*points, x.dtype, f, whole)
    out: Tensor = Slope.apply(x, y, slope)
    return out


def _ratio(
    x: Tensor,
    x0: Tensor,
    y: Tensor,
    y0: Tensor,
    dtype: torch.dtype,
    f: Callable[[Tensor], Tensor],
    whole: bool,
) -> Tensor:
    way = x - x0
    close = ~(way.abs() > x0.abs().mul_(torch.finfo(dtype).eps ** (1 / 3)))
    slope = (y - y0).div_(way)
    if bool(close.any()):
        middle = (x + x0) / 2 if whole else (x[close] + x0[close]) / 2
        with torch.enable_grad():
            leaf = middle.to(dtype).requires_grad_()
            (derivative,) = torch.autograd.grad(f(leaf.clone()).sum(), leaf)
        slope[close] = derivative[close].to(slope) if whole else derivative.to(slope)
    return slope


_SLOPES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "square": lambda x, x0, y, y0: x + x0,
    "sqrt": lambda x, x0, y, y0: (1 / (y + y0)).nan_to_num_(posinf=0.0),  # 0 at both points
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
    if x.is_complex() and call.name == "abs":
        with tracer.resumed():
            return torch.linalg.vector_norm(torch.view_as_real(x), dim=-1)
    f, whole = as_function(call, parameter), len(call.tensors()) > 1
    out = secant(tracer, x, f, name or call.name, whole=whole)
    out = x.copy_(out) if call.in_place else out
    return mark(out, "exp" if call.kind is Kind.EXPONENTIAL else "gate")


def module(tracer: Tracer, call: TorchCall) -> Any:
    """The secant of a whole module; the arguments are x and its value there."""
    (x, y), own = call.args, getattr(call.function, "__self__", None)
    scalar = own is not None and is_activation(own) and not list(own.parameters())
    return mark(secant(tracer, x, call.function, y=y.detach(), whole=not scalar), "gate")


def power(tracer: Tracer, call: TorchCall) -> Any:
    """A power of x, or a number to the power of x."""
    base, exponent = depends_on_input(call["input"]), depends_on_input(call["exponent"])
    if base and exponent:
        return smooth(tracer, call)
    is_square = base and isinstance(call["exponent"], (int, float)) and call["exponent"] == 2
    return elementwise(
        tracer, call, "exponent" if exponent else "input", "square" if is_square else None
    )


def _multiply(tracer: Tracer, a: Tensor, b: Tensor) -> Tensor:
    a0, b0 = at_root(tracer, a, b)
    return carried(_along(a, a0) * _along(b, b0), (a * b).detach())


class _Scaled(Function):
    """x · r with r = (mean x² + ε)^−½, a product of two: Δr = −r² r′² / (r + r′) · Δ mean x².

    `centred`: x less its mean.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, x0: Tensor, axes: tuple[int, ...], eps: float, centred: bool
    ) -> Tensor:
        dtype, ctx.axes, ctx.centred = x.dtype, axes, centred
        x, x0 = widened(x), widened(x0)
        if centred:
            x, x0 = (t - t.mean(axes, keepdim=True) for t in (x, x0))
        r, r0 = ((t.square().mean(axes, keepdim=True) + eps).rsqrt() for t in (x, x0))
        ctx.save_for_backward((x + x0) / 2, (r + r0) / 2, -2 * (r * r0).square() / (r + r0))
        return (x * r).to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (middle, scale, slope) = gradients, ctx.saved_tensors
        shared = (gradient * middle).mean(ctx.axes, keepdim=True)
        back = gradient * scale + middle * (slope * shared)
        if ctx.centred:
            back = back - back.mean(ctx.axes, keepdim=True)
        return back.to(gradient.dtype), None, None, None, None


def layer_norm(tracer: Tracer, call: TorchCall) -> Any:
    """Centred, scaled, then the affine part."""
    axes = tuple(range(-len(call["normalized_shape"]), 0))
    return _norm(tracer, call, call["input"], axes, call.get("eps", 1e-5))


def rms_norm(tracer: Tracer, call: TorchCall) -> Any:
    """Scaled, then the weight."""
    x, eps = call["input"], call.get("eps")
    axes = tuple(range(-len(call["normalized_shape"]), 0))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return _norm(tracer, call, x, axes, eps, centred=False)


def group_norm(tracer: Tracer, call: TorchCall) -> Any:
    """Each group centred and scaled, then the affine part of each channel."""
    return _of_groups(tracer, call, call["num_groups"])


def instance_norm(tracer: Tracer, call: TorchCall) -> Any:
    """A group norm with a group for each channel; affine with running statistics."""
    if call.get("use_input_stats", True):
        return _of_groups(tracer, call, call["input"].shape[1])
    return call.run()


def _of_groups(tracer: Tracer, call: TorchCall, groups: int) -> Any:
    x = call["input"]
    rows, channels = x.reshape(x.shape[0], groups, -1), (-1, *(1,) * (x.ndim - 2))
    return _norm(tracer, call, rows, (-1,), call.get("eps", 1e-5), channels)


def _norm(
    tracer: Tracer,
    call: TorchCall,
    rows: Tensor,
    axes: tuple[int, ...],
    eps: float,
    channels: tuple[int, ...] | None = None,
    centred: bool = True,
) -> Any:
    """Rows scaled over these axes, times weight plus bias, which have this shape."""
    parts = [call.get("weight"), call.get("bias")]
    live = [part for part in parts if depends_on_input(part)]
    if not depends_on_input(rows):
        return smooth(tracer, call, 1) if live else call.run()
    (root,) = at_root(tracer, rows)
    if is_root(tracer) and not live:
        return call.run()
    out = _Scaled.apply(rows, root, axes, eps, centred).reshape(call["input"].shape)
    weight, bias = (p if p is None or channels is None else p.reshape(channels) for p in parts)
    if weight is not None:
        out = _multiply(tracer, out, weight) if depends_on_input(weight) else out * weight
    return out if bias is None else out + bias


def normalize(tracer: Tracer, call: TorchCall) -> Any:
    """X / ‖x‖, by its parts."""
    x, least = call["input"], call.get("eps", 1e-12)
    if not depends_on_input(x):
        return call.run()
    total, power = _of_powers(tracer, x, call.get("p", 2.0), call.get("dim", 1), True)
    scale = secant(tracer, total, lambda v: v.clamp_min(least**power).pow(-1 / power))
    return _multiply(tracer, x, scale)


def length(tracer: Tracer, call: TorchCall) -> Any:
    """√x and its inverse; a length is the root of a sum of powers, a deviation of a variance."""
    x = call["input"]
    if call.name in ("sqrt", "rsqrt"):
        return elementwise(tracer, call)
    if not depends_on_input(x):
        return call.run()
    if call.name == "std":
        square = _between(tracer, lambda v: call.run(input=v).square(), x)
        return secant(tracer, square, torch.sqrt, "sqrt")
    p = call.get("p", call.kwargs.get("p", 2))  # its keyword is `p` or `ord`
    p = 2 if p in (None, "fro") else p
    total, power = _of_powers(tracer, x, p, call.get("dim"), bool(call.get("keepdim")))
    return secant(tracer, total, lambda v: v.pow(1 / power), "sqrt" if power == 2 else "")


def _of_powers(
    tracer: Tracer, x: Tensor, p: float, axes: Any, keepdim: bool
) -> tuple[Tensor, float]:
    """Σ |x|^p, whose p-th root is a length, and p; the largest |x| and 1 if p is infinite."""
    if p == 2:
        parts = _multiply(tracer, x, x)
    else:
        parts = secant(tracer, x, lambda v: v.abs() if p in (1, math.inf) else v.abs() ** p)
    axes = tuple(range(x.ndim)) if axes is None else axes
    if p == math.inf:
        return _largest(tracer, parts, axes, keepdim), 1
    return parts.sum(axes, keepdim=keepdim), p


def distance(tracer: Tracer, call: TorchCall) -> Any:
    """‖l_i − r_j‖ of all pairs."""
    if not (depends_on_input(call["left"]) or depends_on_input(call["right"])):
        return call.run()
    with tracer.resumed():
        difference = call["left"].unsqueeze(-2) - call["right"].unsqueeze(-3)
        return torch.linalg.vector_norm(difference, call.get("p", 2.0), -1)


def statistic(tracer: Tracer, call: TorchCall) -> Any:
    """Largest and smallest numbers, also of two; variances and products. Others run unchanged."""
    name, pair = (
        call.name,
        (call["left"], call["right"]) if call.name in ("maximum", "minimum") else None,
    )
    if name in ("max", "min") and isinstance(call.get("dim"), Tensor):
        pair = call["input"], call["dim"]
    if not any(map(depends_on_input, pair or (call["input"],))):
        return call.run()
    if pair is not None:
        (a, b), sign = pair, 1 if name.startswith("max") else -1
        out = call.run()
        step = secant(tracer, sign * (b - a), torch.relu)
        return carried(a + sign * step, out.detach())  # a may be far below b, and rounded away
    if "max_pool" in name:
        return _pooled(tracer, call)
    if name in ("var", "prod"):
        return smooth(tracer, call)
    if name not in ("max", "min", "amax", "amin"):
        return call.run()
    x, out, axes = call["input"], call.run(), call.get("dim")
    axes = tuple(range(x.ndim)) if axes in (None, ()) else axes
    keepdim = bool(call.get("keepdim"))
    if name.endswith("max"):
        value = _largest(tracer, x, axes, keepdim)
    else:
        value = -_largest(tracer, -x, axes, keepdim)
    return value if isinstance(out, Tensor) else type(out)((value, out[1]))


def _largest(tracer: Tracer, x: Tensor, axes: Any, keepdim: bool) -> Tensor:
    axes = (axes,) if isinstance(axes, int) else axes
    shape = x.amax(axes, keepdim=keepdim).shape
    ends = tuple(range(-len(axes), 0))
    rows = x.movedim(axes, ends).flatten(-len(axes))
    (root,) = at_root(tracer, rows)
    with torch.no_grad():
        value, value0 = (t.amax(-1, keepdim=True) for t in (rows, root))
        largest, largest0 = rows == value, root == value0
        both = largest & largest0
        # equal numbers share what a single one would get
        shares = [at.to(value) / at.sum(-1, keepdim=True) for at in (largest, largest0)]
        weights = (shares[0] / (value0 - root)).where(largest, 0.0)
        weights += (shares[1] / (value - rows)).where(largest0, 0.0)
        weights = torch.where(both.any(-1, keepdim=True), both.to(value), weights)
        weights /= weights.sum(-1, keepdim=True)
    parts = (rows * weights).where(weights > 0, 0.0).sum(-1)
    return carried(parts, value[..., 0]).reshape(shape)


def _pooled(tracer: Tracer, call: TorchCall) -> Any:
    x, count = call["input"], int(call.name[-2])
    indexed = TorchCall(getattr(F, call.name), call.args, {**call.kwargs, "return_indices": True})
    rows = x.flatten(-count)
    shape = indexed.run(input=x.detach())[0].shape

    def indices(t: Tensor) -> Tensor:
        out: Tensor = indexed.run(input=t.reshape(x.shape))[1].flatten(-count)
        return out

    return _selected(tracer, rows, indices).reshape(shape)


def _selected(tracer: Tracer, rows: Tensor, indices: Callable[[Tensor], Tensor]) -> Tensor:
    """The largest numbers of rows, of which `indices` gives the places."""
    (root,) = at_root(tracer, rows)
    with torch.no_grad():
        place, place0 = indices(rows.detach()), indices(root)
        value, value0 = rows.gather(-1, place), root.gather(-1, place0)
        a, b = value0 - root.gather(-1, place), value - rows.gather(-1, place0)
        share = (b / (a + b)).nan_to_num_(1.0)  # 0 / 0: one place is the largest at both points
    parts = share * rows.gather(-1, place) + (1 - share) * rows.gather(-1, place0)
    return carried(parts, value)


def smooth(tracer: Tracer, call: TorchCall, points: int = 16) -> Any:
    """The mean derivative on the line between both points."""
    if not any(map(depends_on_input, call.tensors())):
        return call.run()
    live = [t for t in call.tensors() if depends_on_input(t)]
    plain = out_of_place(call)

    def f(*values: Tensor) -> Tensor:
        given = {id(t): value for t, value in zip(live, values, strict=True)}
        out: Tensor = plain.mapped(lambda t: given.get(id(t), t)).run()
        return out

    out = _between(tracer, f, *live, points=points)
    return live[0].copy_(out) if call.in_place else out


def convolution(tracer: Tracer, call: TorchCall) -> Any:
    """Affine, unless its weight depends on the input."""
    return smooth(tracer, call) if depends_on_input(call["weight"]) else call.run()


def written(tracer: Tracer, call: TorchCall) -> Any:
    """Affine, but for a `lerp` whose weight depends on the input."""
    live = call.name == "lerp" and depends_on_input(call.args[-1])
    return smooth(tracer, call) if live else call.run()


def bilinear(tracer: Tracer, call: TorchCall) -> Any:
    """A product of two, of any form."""
    left, right = call["left"], call["right"]
    if not (depends_on_input(left) and depends_on_input(right)):
        return call.run()
    plain = out_of_place(call)
    out = _between(tracer, lambda a, b: plain.run(left=a, right=b), left, right)
    return left.copy_(out) if call.in_place else out


def einsum(tracer: Tracer, call: TorchCall) -> Any:
    """A product of two by an equation."""
    count = sum(map(depends_on_input, einsum_terms(call)[2]))
    return smooth(tracer, call, (count + 1) // 2) if count > 1 else call.run()


def _between(tracer: Tracer, f: Callable[..., Tensor], *tensors: Tensor, points: int = 1) -> Tensor:
    """f with its mean derivative on the line; of a product of two one point is enough."""
    roots = at_root(tracer, *tensors)
    if is_root(tracer):
        out = f(*tensors)
        return carried(out, out.detach())
    with torch.no_grad():
        value = f(*tensors)
    places, weights = np.polynomial.legendre.leggauss(points)
    parts = []
    for place, weight in zip(places.tolist(), weights.tolist(), strict=True):
        between = (_along(x, x0, (1 + place) / 2) for x, x0 in zip(tensors, roots, strict=True))
        parts.append(f(*between) * (weight / 2))
    return carried(parts[0] if points == 1 else torch.stack(parts).sum(0), value)


def linear(tracer: Tracer, call: TorchCall) -> Any:
    """A layer whose weight depends on the input is a product of two.

    What rounding adds to packed weights differs between the points: a line of the ledger.
    """
    x, weight, bias = call["input"], call.get("weight"), call.get("bias")
    if not (depends_on_input(x) and depends_on_input(weight)):
        out, rounding = without_constants(call)
        if rounding is not None:
            (root,) = at_root(tracer, rounding)
            tracer.constant(call, out, rounding - root, "quantisation")
        return out
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
    Kind.QUANTISED_LINEAR: linear,
    Kind.EINSUM: einsum,
    Kind.QUOTIENT: quotient,
    Kind.GLU: _BY_PARTS.gated,
    Kind.COSINE: _BY_PARTS.cosine,
    Kind.RECURRENT: _BY_PARTS.recurrent,
    Kind.RECURRENT_CELL: _BY_PARTS.recurrent,
    Kind.INSTANCE_NORM: instance_norm,
    Kind.DISTANCE: distance,
    Kind.STATISTIC: statistic,
    Kind.OTHER_ELEMENTWISE: elementwise,
    Kind.SMOOTH: smooth,
    Kind.SOLVE: smooth,
    Kind.CONVOLUTION: convolution,
    Kind.WRITE: written,
}
"""Secants between reference and input; the tracer needs the activations at the reference."""
