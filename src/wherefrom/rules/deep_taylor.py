"""Deep Taylor relevance (Chefer et al., CVPR 2021): the backward pass propagates relevance.

The "gradient" that a call gets is the relevance R of its result, and it returns that of its
arguments. S = R / Z, zero where Z is zero; sums are over one sample at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from wherefrom.rules.attention import SOFTMAX, dot_product_of, explicit_attention
from wherefrom.rules.linear import lookup, scale
from wherefrom.rules.product import freeze, take_from_einsum
from wherefrom.tracing.catalogue import Function as TorchFunction
from wherefrom.tracing.catalogue import Kind, TorchCall, depends_on_input
from wherefrom.tracing.tags import mark, role_of
from wherefrom.tracing.tracer import Table, Tracer


def _over(relevance: Tensor, z: Tensor) -> Tensor:
    return torch.where(z == 0, torch.zeros_like(z), relevance / z)


class _Linear(Function):
    """R_in = x⁺(S W⁺) + x⁻(S W⁻) with Z = x⁺W⁺ᵀ + x⁻W⁻ᵀ; the bias gets none.

    With x⁺ = (|x| + x)/2 and so on, Z = (|x||W|ᵀ + xWᵀ)/2 and R_in = (x·SW + |x|·S|W|)/2: three
    products instead of four, and xWᵀ is known from the forward pass.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, plain: Tensor, out: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, plain)
        return out.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        x, weight, plain = ctx.saved_tensors
        size, sizes = x.abs(), weight.abs()
        most = size @ sizes.T
        z = most + plain
        # set rounding to zero: no part of this sum is positive
        z = torch.where(z <= 8 * torch.finfo(z.dtype).eps * most, torch.zeros_like(z), z)
        s = _over(gradients[0], z)
        return x * (s @ weight) + size * (s @ sizes), None, None, None


class _Same(Function):
    """Passes relevance unchanged; where x was broadcast, its copies are added."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, out: Tensor) -> Tensor:
        ctx.shape = x.shape
        return out.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].sum_to_size(ctx.shape), None


class _Sum(Function):
    """Each operand gets x·S, rescaled to |Σa| / (|Σa| + |Σb|) of the sample's relevance."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, out: Tensor, batch: int) -> Tensor:
        ctx.save_for_backward(a, b, out)
        ctx.batch = batch
        return out.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        a, b, out = ctx.saved_tensors
        s = _over(gradients[0], out)

        def totals(value: Tensor) -> Tensor:  # (B, 1)
            return value.reshape(ctx.batch, -1).sum(1, keepdim=True)

        whole = totals(gradients[0])
        shares = [(a * s).expand_as(out), (b * s).expand_as(out)]
        sums = [totals(share) for share in shares]
        size = sums[0].abs() + sums[1].abs()
        scaled = []
        for operand, share, own in zip((a, b), shares, sums, strict=True):
            factor = _over(own.abs(), size) * _over(whole, own)
            rows = share.reshape(ctx.batch, -1) * factor
            scaled.append(rows.reshape(out.shape).sum_to_size(operand.shape))
        return scaled[0], scaled[1], None, None


class _Product(Function):
    """Each operand gets half of its x·(∂out/∂x)ᵀ S."""

    @staticmethod
    def forward(ctx: Any, func: TorchFunction, a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        ctx.func = func
        ctx.save_for_backward(a, b, out)
        return out.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor, None]:
        a, b, out = ctx.saved_tensors
        s = _over(gradients[0], out)
        with torch.enable_grad():
            x, y = a.detach().requires_grad_(), b.detach().requires_grad_()
            to_x, to_y = torch.autograd.grad(ctx.func(x, y), (x, y), s)
        return None, 0.5 * a * to_x, 0.5 * b * to_y, None


class _Positive(Function):
    """A product with a constant: the rule of a linear layer for any axes."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return out.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        a, b = (t.detach() for t in ctx.saved_tensors)
        parts = [
            (a.clamp_min(0).requires_grad_(), b.clamp_min(0).requires_grad_()),
            (a.clamp_max(0).requires_grad_(), b.clamp_max(0).requires_grad_()),
        ]
        with torch.enable_grad():
            z = parts[0][0] @ parts[0][1] + parts[1][0] @ parts[1][1]
            s = _over(gradients[0], z.detach())
            flat = [t for pair in parts for t in pair]
            back = torch.autograd.grad(z, flat, s)
        to = [t.detach() * g for t, g in zip(flat, back, strict=True)]
        need = ctx.needs_input_grad
        return to[0] + to[2] if need[0] else None, to[1] + to[3] if need[1] else None, None


class _Ratio(Function):
    """R_in = x · (∂out/∂x)ᵀ S: the share of each part in a sum or a mean."""

    @staticmethod
    def forward(ctx: Any, func: TorchFunction, x: Tensor, out: Tensor) -> Tensor:
        ctx.func = func
        ctx.save_for_backward(x, out)
        return out.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None]:
        x, out = ctx.saved_tensors
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (back,) = torch.autograd.grad(ctx.func(y), y, _over(gradients[0], out))
        return None, x * back, None


def _value(call: TorchCall) -> Any:
    with torch.no_grad():
        return call.run()


def linear(tracer: Tracer, call: TorchCall) -> Any:
    """A linear layer: x Wᵀ + b."""
    if not depends_on_input(call["input"]):
        return call.run()
    out, bias = _value(call), call.get("bias")
    return _Linear.apply(call["input"], call["weight"], out if bias is None else out - bias, out)


def added_contraction(tracer: Tracer, call: TorchCall) -> Any:
    """A linear layer with a transposed weight: b + x W."""
    x, weight = call["left"], call["right"]
    if (
        call.name != "addmm"
        or not depends_on_input(x)
        or depends_on_input(weight)
        or depends_on_input(call["input"])
    ):
        return call.run()
    out = _value(call)
    plain = out - call["input"] * call.get("beta", 1)
    return _Linear.apply(x, weight.T * call.get("alpha", 1), plain, out)


def same(tracer: Tracer, call: TorchCall) -> Any:
    """Activation, norm, scaling: the identity from the argument that depends on the input."""
    x = next((value for value in call.tensors() if depends_on_input(value)), None)
    if x is None:
        return call.run()
    frozen = call.mapped(freeze)
    if call.in_place:  # into a copy: a rule may have saved the tensor
        frozen.args = (frozen.args[0].clone(), *frozen.args[1:])
    return _Same.apply(x, _value(frozen))


def same_module(tracer: Tracer, call: TorchCall) -> Any:
    """An activation module: the identity."""
    return _Same.apply(*call.args)


def softmax(tracer: Tracer, call: TorchCall) -> Any:
    """The identity; sets the role, since it is attention where it is multiplied by values."""
    return mark(same(tracer, call), "softmax")


def _sum(tracer: Tracer, a: Tensor, b: Tensor, out: Tensor) -> Any:
    """A sum whose samples lie in order along the first axis."""
    batch = tracer.entry_points.batch
    if out.ndim == 0 or out.shape[0] % batch:
        tracer.ledger.lose_track(tracer.where)
        batch = 1
    return _Sum.apply(a, b, out, batch)


def sum_of_two(tracer: Tracer, call: TorchCall) -> Any:
    """Sums a + b; constants get nothing."""
    a, b = call["left"], call["right"]
    if not (depends_on_input(a) and depends_on_input(b)):
        return same(tracer, call)
    # the formula is the same for b and −b: a difference needs no sign
    a = a.clone() if call.in_place else a
    out = _value(call)
    alpha = call.get("alpha", 1)
    b = b if alpha == 1 else _Same.apply(b, b.detach() * alpha)
    return _sum(tracer, a, b, out)


def product(tracer: Tracer, call: TorchCall) -> Any:
    """Products a · b, element by element."""
    a, b = call["left"], call["right"]
    if depends_on_input(a) and depends_on_input(b):
        return _Product.apply(torch.mul, a, b, _value(call))
    return same(tracer, call)


def quotient(tracer: Tracer, call: TorchCall) -> Any:
    """A divisor only scales."""
    return same(tracer, call.with_(right=freeze(call["right"])))


def contraction(tracer: Tracer, call: TorchCall) -> Any:
    """Matrix products: both operands get a share; with a constant it is a linear layer."""
    a, b = call["left"], call["right"]
    if call.name not in ("matmul", "bmm", "mm"):
        return call.run()
    if depends_on_input(a) and role_of(a) == "softmax":
        tracer.touched["attention"] += 1
        if tracer.maps is not None:
            a = tracer.maps.take(a, b)
    if depends_on_input(a) and depends_on_input(b):
        return _Product.apply(torch.matmul, a, b, a.detach() @ b.detach())
    if depends_on_input(a) and b.ndim == 2:
        out = a.detach() @ b
        return _Linear.apply(a, b.T, out, out)
    if depends_on_input(a) or depends_on_input(b):
        return _Positive.apply(a, b, _value(call.with_(left=a)))
    return call.run()


def write(tracer: Tracer, call: TorchCall) -> Any:
    """Rows added to rows are a sum; other writes pass relevance back to the written rows."""
    if call.name != "index_add" or not (
        depends_on_input(call["input"]) and depends_on_input(call["source"])
    ):
        return call.run()
    a = call["input"]
    before = a.clone()
    added = torch.zeros_like(a).index_add(call["dim"], call["index"], call["source"])
    out = _sum(tracer, before, added, (before + added).detach())
    return a.copy_(out) if call.in_place else out


def einsum(tracer: Tracer, call: TorchCall) -> Any:
    """As `contraction`, with the axes of the equation."""
    equation, *operands = call.args
    if len(operands) != 2 or not all(map(depends_on_input, operands)):
        return call.run()
    a, b = take_from_einsum(tracer, call)

    def contract(x: Tensor, y: Tensor) -> Tensor:
        return torch.einsum(equation, x, y)

    return _Product.apply(contract, a, b, contract(a.detach(), b.detach()))


def dot_product(tracer: Tracer, call: TorchCall) -> Any:
    """The fused call from its parts."""
    query, key, value, settings = dot_product_of(call)
    with tracer.resumed():
        weights, value = explicit_attention(query, key, value, **settings)
        return weights @ value


def reduction(tracer: Tracer, call: TorchCall) -> Any:
    """A sum or a mean: each part gets its share."""
    x = call["input"]
    if not depends_on_input(x):
        return call.run()
    return _Ratio.apply(lambda value: call.run(input=value), x, _value(call))


DEEP_TAYLOR: Table = {
    **SOFTMAX,
    Kind.ACTIVATION_MODULE: same_module,
    Kind.LOOKUP: lookup,
    Kind.LINEAR: linear,
    Kind.ADDED_CONTRACTION: added_contraction,
    Kind.SOFTMAX: softmax,
    Kind.SUM: sum_of_two,
    Kind.PRODUCT: product,
    Kind.QUOTIENT: quotient,
    Kind.CONTRACTION: contraction,
    Kind.EINSUM: einsum,
    Kind.ATTENTION: dot_product,
    Kind.REDUCTION: reduction,
    Kind.WRITE: write,
    Kind.ROOT: scale,
    **dict.fromkeys(
        (
            Kind.LAYER_NORM, Kind.RMS_NORM, Kind.GROUP_NORM, Kind.BATCH_NORM, Kind.NORMALIZE,
            Kind.ACTIVATION, Kind.HOMOGENEOUS, Kind.EXPONENTIAL, Kind.POWER, Kind.NEGATION,
        ),
        same,
    ),
}  # fmt: skip
