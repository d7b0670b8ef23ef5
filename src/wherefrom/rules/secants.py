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

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from wherefrom.rules.activation import as_function, out_of_place
from wherefrom.rules.attention import decomposed, dot_product_of
from wherefrom.rules.linear import in_order, lookup
from wherefrom.rules.product import Products
from wherefrom.tracing.catalogue import Kind, TorchCall, depends_on_input
from wherefrom.tracing.tags import einsum_terms, mark, role_of
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


def logarithmic_mean(log_a: Tensor, log_b: Tensor) -> Tensor:
    """(a − b) / (ln a − ln b) of numbers given by their logarithms; a where they are equal.

    max(a, b) · (1 − e^−d) / d with d = |ln a − ln b|, which neither overflows nor cancels.
    """
    distance = (log_a - log_b).abs()
    ratio = -torch.expm1(-distance) / distance
    mean = torch.maximum(log_a, log_b).exp() * torch.where(distance == 0, 1.0, ratio)
    return mean.nan_to_num_(nan=0.0)  # closed by a mask at both points


def _centred(gradient: Tensor, weights: Tensor, axes: tuple[int, ...]) -> Tensor:
    """L ⊙ (g − Σ g L / Σ L), the transpose of the secant of a softmax."""
    total = weights.sum(axes, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    mean = (gradient * weights).sum(axes, keepdim=True) / total
    return weights * (gradient - mean)


class _Softmax(Function):
    """A value p with the secant of the softmax that gave it; `scale` is what p was given for."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, p: Tensor, weights: Tensor, scale: Tensor | None, axes: Any
    ) -> Tensor:
        ctx.save_for_backward(weights, scale)
        ctx.axes = axes
        return p.view_as(p)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weights, scale = ctx.saved_tensors
        back = _centred(gradients[0], weights, ctx.axes)
        return back if scale is None else back / scale, None, None, None, None


class _LogSum(Function):
    """A log Σ exp with the slopes L / Σ L."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, value: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(weights)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (weights,) = ctx.saved_tensors
        return gradients[0] * weights, None, None


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
    left0, right0 = _at_root(tracer, left, right)
    with torch.no_grad():
        value = run(left, right)
    return _carried(run(_middle(left, left0), _middle(right, right0)), value)


def softmax(tracer: Tracer, call: TorchCall) -> Any:
    """The secant of a softmax by logarithmic means."""
    z, out = call["input"], call.run()
    if not depends_on_input(out):
        return out
    dim = call.get("dim")
    dim = (0 if z.ndim in (0, 1, 3) else 1) if dim is None else dim  # as torch guesses it
    with torch.no_grad():
        logs = z.detach().to(out.dtype).log_softmax(dim)
        (logs0,) = _at_root(tracer, logs)
        weights = logarithmic_mean(logs, logs0)
    secant_of_p: Tensor = _Softmax.apply(z, out.detach(), weights, None, (dim,))
    return mark(secant_of_p, "softmax")


def log_softmax(tracer: Tracer, call: TorchCall) -> Any:
    """Δ ln p_i = Δz_i − Σ_j L_j Δz_j / Σ_j L_j."""
    z, out, dim = call["input"], call.run(), call.get("dim", -1)
    if not depends_on_input(out):
        return out
    total = _log_sum(tracer, z, (dim,), keepdim=True)
    return _carried(z - total, out.detach())


def log_sum(tracer: Tracer, call: TorchCall) -> Any:
    """Δ ln Σ exp z = Σ_j L_j Δz_j / Σ_j L_j."""
    z, dim = call["input"], call["dim"]
    if not depends_on_input(z):
        return call.run()
    axes = (dim,) if isinstance(dim, int) else tuple(dim)
    return _log_sum(tracer, z, axes, bool(call.get("keepdim")))


def _log_sum(tracer: Tracer, z: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    with torch.no_grad():
        total = z.detach().logsumexp(axes, keepdim=True)
        logs = z.detach() - total
        (logs0,) = _at_root(tracer, logs)
        weights = logarithmic_mean(logs, logs0)
        weights = weights / weights.sum(axes, keepdim=True)
    value: Tensor = _LogSum.apply(z, total, weights)
    out: Tensor = value.sum(axes, keepdim=keepdim) if not keepdim else value
    return out


class _Attention(Function):
    """softmax(q kᵀ + m) v between two points, for some queries at a time.

    No map is kept whole: the backward pass forms those of both points again, block by block.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, out: Tensor, *rest: Any
    ) -> Tensor:
        *root, settings = rest  # query, key, value and mask at the reference
        ctx.save_for_backward(query, key, value, mask, *root)
        ctx.settings = settings
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), saved = gradients, ctx.saved_tensors
        q, k, v, m = _spread(saved[:4], ctx.settings)
        q0, k0, v0, m0 = _spread(saved[4:], ctx.settings)
        scale = _scale(q, ctx.settings)
        k_mean, v_mean = (k + k0) / 2, (v + v0) / 2
        back_k, back_v = torch.zeros_like(k), torch.zeros_like(v)
        back_q = torch.zeros_like(q)
        back_m = torch.zeros_like(m) if m is not None and ctx.needs_input_grad[3] else None
        step = max(1, _NUMBERS // max(1, k.shape[-2] * math.prod(q.shape[:-2])))
        for start in range(0, q.shape[-2], step):
            rows = slice(start, start + step)
            logs, logs0 = (
                _log_weights(query[..., rows, :], key, _rows_of(mask, rows), scale)
                for query, key, mask in ((q, k, m), (q0, k0, m0))
            )
            g = gradient[..., rows, :]
            back_v += ((logs.exp() + logs0.exp()) / 2).mT @ g
            back_z = _centred(g @ v_mean.mT, logarithmic_mean(logs, logs0), (-1,))
            back_q[..., rows, :] = back_z @ k_mean * scale
            back_k += back_z.mT @ ((q[..., rows, :] + q0[..., rows, :]) / 2) * scale
            if back_m is not None:
                part = _rows_of(back_m, rows)
                part += back_z.sum_to_size(part.shape)
        inputs = zip((back_q, back_k, back_v), saved[:3], strict=True)
        back = [_summed(b, x.shape) for b, x in inputs]
        rest = [None] * (len(ctx.needs_input_grad) - 4)
        return *back, None if back_m is None else back_m.sum_to_size(saved[3].shape), *rest


_NUMBERS = 1 << 22  # of the weights that are formed at a time


def _spread(
    inputs: tuple[Any, ...], settings: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Queries, with a key and a value for each of their heads and the mask as numbers to add."""
    query, key, value, mask = inputs
    if settings.get("enable_gqa") and key.shape[-3] != query.shape[-3]:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    if settings.get("is_causal"):
        shape = query.shape[-2], key.shape[-2]
        mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        closed = torch.zeros(mask.shape, dtype=query.dtype, device=query.device)
        mask = closed.masked_fill_(~mask, -math.inf)
    return query, key, value, mask


def _rows_of(mask: Any, rows: slice) -> Any:
    return mask if mask is None or mask.shape[-2] == 1 else mask[..., rows, :]


def _log_weights(query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The logarithms of attention weights; −∞ for a query that sees no key."""
    scores = query @ key.mT * scale
    logs = (scores if mask is None else scores + mask).log_softmax(-1)
    return logs if mask is None else logs.nan_to_num_(nan=-math.inf, neginf=-math.inf)


def _summed(back: Tensor, shape: torch.Size) -> Tensor:
    """A gradient of spread keys, values or queries as one of those that were given."""
    if back.ndim > 2 and len(shape) == back.ndim and shape[-3] not in (1, back.shape[-3]):
        back = back.unflatten(-3, (shape[-3], -1)).sum(-3)
    return back.sum_to_size(shape)


def _scale(query: Tensor, settings: dict[str, Any]) -> float:
    factor = settings.get("scale")
    return 1 / math.sqrt(query.shape[-1]) if factor is None else factor


def dot_product(tracer: Tracer, call: TorchCall) -> Any:
    """Fused attention."""
    query, key, value, settings = dot_product_of(call)
    mask = settings.pop("attn_mask", None)
    if not any(map(depends_on_input, (query, key, value, mask))):
        return call.run()
    tracer.touched["attention"] += 1
    with torch.no_grad():
        out = call.run()
    given = [query, key, value] if mask is None else [query, key, value, mask]
    root = [*_at_root(tracer, *given), *([None] if mask is None else [])]
    attended: Tensor = _Attention.apply(query, key, value, mask, out, *root, settings)
    return attended


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
        return _over_own_sum(tracer, call, left, right)
    inverse = secant(tracer, right, torch.reciprocal)
    if not depends_on_input(left):
        return left * inverse
    out = _multiply(tracer, left, inverse)
    return left.copy_(out) if call.in_place else out


def _over_own_sum(tracer: Tracer, call: TorchCall, left: Tensor, right: Tensor) -> Any:
    """exp z / Σ exp z as a softmax: the relevance of the sum goes to the exponentials."""
    with torch.no_grad():
        value = (left / right).detach()
        logs, total = value.log(), left.detach().log()
        logs0, total0 = _at_root(tracer, logs, total)
        weights, scale = logarithmic_mean(logs, logs0), logarithmic_mean(total, total0)
    shape = (
        right.shape if right.ndim == left.ndim else (1,) * (left.ndim - right.ndim) + right.shape
    )
    axes = tuple(i for i, size in enumerate(shape) if size == 1 and left.shape[i] > 1)
    out: Tensor = _Softmax.apply(left, value, weights, scale.clamp_min(_TINY), axes)
    return mark(left.copy_(out) if call.in_place else out, "softmax")


_TINY = 1e-30


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
