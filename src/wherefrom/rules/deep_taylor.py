"""Deep Taylor relevance (Chefer et al., CVPR 2021): what travels backward is relevance itself.

Under this table the backward pass hands each call the relevance of its result and gets back that
of its arguments. With S = R / Z, zero where Z is zero, and sums over one sample at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from wherefrom.rules.affine import lookup
from wherefrom.rules.attention import SOFTMAX, dot_product_arguments, explicit_attention
from wherefrom.rules.calls import (
    Call,
    calls,
    in_place,
    kind_of,
    live,
    mark,
    set_stream,
    stream_of,
    turned_of,
)
from wherefrom.rules.mode import LocallyLinear, Table, activation_module
from wherefrom.rules.moves import freeze
from wherefrom.rules.norm import scale
from wherefrom.rules.product import take_from_einsum


def _over(relevance: Tensor, z: Tensor) -> Tensor:
    return torch.where(z == 0, torch.zeros_like(z), relevance / z)


class _Linear(Function):
    """R_in = x⁺(S W⁺) + x⁻(S W⁻) with Z = x⁺W⁺ᵀ + x⁻W⁻ᵀ; the bias takes nothing.

    With x⁺ = (|x| + x)/2 and so on, Z = (|x||W|ᵀ + xWᵀ)/2 and R_in = (x·SW + |x|·S|W|)/2: three
    products, of which xWᵀ is known from the forward pass, in the place of four.
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
        # what is rounding is zero: no part of this sum is positive
        z = torch.where(z <= 8 * torch.finfo(z.dtype).eps * most, torch.zeros_like(z), z)
        s = _over(gradients[0], z)
        return x * (s @ weight) + size * (s @ sizes), None, None, None


class _Same(Function):
    """Relevance passes as it is; where the result is larger than x, its copies are added."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, out: Tensor) -> Tensor:
        ctx.shape = x.shape
        return out.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].sum_to_size(ctx.shape), None


class _Sum(Function):
    """Each operand its share x·S, rescaled to |Σa| / (|Σa| + |Σb|) of the sample's relevance."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, out: Tensor, batch: int, axis: int) -> Tensor:
        ctx.save_for_backward(a, b, out)
        ctx.batch, ctx.axis = batch, axis
        return out.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        a, b, out = ctx.saved_tensors
        s = _over(gradients[0], out)
        shares = [a * s, b * s]

        axis = ctx.axis
        samples = ctx.batch if out.shape[axis] % ctx.batch == 0 else 1

        def total(value: Tensor) -> Tensor:
            return value.movedim(axis, 0).reshape(samples, -1).sum(1)

        whole = total(gradients[0])
        sums = [total(share) for share in shares]
        size = sums[0].abs() + sums[1].abs()
        scaled = []
        for operand, share, own in zip((a, b), shares, sums, strict=True):
            factor = _over(own.abs(), size) * _over(whole, own)
            turned = share.movedim(axis, 0)
            turned = (turned.reshape(samples, -1) * factor.unsqueeze(1)).reshape(turned.shape)
            scaled.append(turned.movedim(0, axis).sum_to_size(operand.shape))
        return scaled[0], scaled[1], None, None, None


class _Product(Function):
    """Both operands their share; the formula of the sum halves them."""

    @staticmethod
    def forward(ctx: Any, func: Call, a: Tensor, b: Tensor, out: Tensor) -> Tensor:
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
    """A product with a constant: as a linear layer, whatever the axes."""

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
    """R_in = x · (∂out/∂x)ᵀ S: the share each part has in a sum or a mean."""

    @staticmethod
    def forward(ctx: Any, func: Call, x: Tensor, out: Tensor) -> Tensor:
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


def _value(func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch.no_grad():
        return func(*args, **kwargs)


def linear(view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A linear layer: x Wᵀ + b."""
    x, weight = (*args, *kwargs.values())[:2]
    if not live(x):
        return func(*args, **kwargs)
    out = _value(func, args, kwargs)
    bias = kwargs.get("bias", args[2] if len(args) > 2 else None)
    return _Linear.apply(x, weight, out if bias is None else out - bias, out)


def addmm(view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A linear layer with its weight the other way round: b + x W."""
    bias, x, weight = args
    if not live(x) or live(weight):
        return func(*args, **kwargs)
    out = _value(func, args, kwargs)
    return _Linear.apply(x, weight.T, out - bias, out)


def same(view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Activation, norm, scaling: the identity, from the one live argument."""
    x = next((value for value in args if live(value)), None)
    if x is None:
        return func(*args, **kwargs)
    # a call that writes in place writes into a copy: rules may have kept the tensor
    frozen = tuple(freeze(value) for value in args)
    if in_place(func):
        frozen = (frozen[0].clone(), *frozen[1:])
    kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
    return _Same.apply(x, _value(func, frozen, kwargs))


def same_module(
    view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """An activation module, whatever it is written in."""
    return _Same.apply(*args)


def softmax(view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The identity, marked so that it is known as attention where it meets values."""
    return mark(same(view, func, args, kwargs), "softmax")


def total(view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Sums a + b; what is constant takes nothing."""
    a, b = (*args, *kwargs.values())[:2]
    if live(a) and live(b):
        # the formula is the same for b and −b: a difference needs no sign
        a = a.clone() if in_place(func) else a
        out = _value(func, args, kwargs)
        alpha = kwargs.get("alpha", 1)
        b = b if alpha == 1 else _Same.apply(b, b.detach() * alpha)
        return _Sum.apply(a, b, out, view.sources.batch, int(turned_of(args[0])))
    return same(view, func, args, kwargs)


def product(view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Products a · b, element by element."""
    if len(args) == 2 and live(args[0]) and live(args[1]):
        return _Product.apply(torch.mul, *args, _value(func, args, kwargs))
    return same(view, func, args, kwargs)


def quotient(view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A divisor only scales."""
    return same(view, func, (args[0], freeze(args[1]), *args[2:]), kwargs)


def contraction(
    view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Matrix products: of two live ones both have a share; with a constant it is linear."""
    a, b = (*args, *kwargs.values())[:2]
    if live(a) and kind_of(a) == "softmax":
        view.touched["attention"] += 1
        if view.maps is not None:
            a = view.maps.take(a, b)
    if live(a) and live(b):
        return _Product.apply(torch.matmul, a, b, a.detach() @ b.detach())
    if live(a) and b.ndim == 2:
        out = a.detach() @ b
        return _Linear.apply(a, b.T, out, out)
    if live(a) or live(b):
        return _Positive.apply(a, b, _value(func, (a, b), {}))
    return func(a, b)


def index_add(
    view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Adds rows to rows: a sum."""
    a, dim, index, b = (*args, *kwargs.values())[:4]
    if not (live(a) and live(b)):
        return func(*args, **kwargs)
    kept = a.clone()
    full = torch.zeros_like(a).index_add(dim, index, b)
    out = _Sum.apply(kept, full, (kept + full).detach(), view.sources.batch, 0)
    return a.copy_(out) if in_place(func) else out


def einsum(view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As `contraction`, the axes read from the equation."""
    equation, operands = args[0], args[1:]
    if len(operands) != 2 or not all(map(live, operands)):
        return func(*args, **kwargs)
    a, b = take_from_einsum(view, equation, *operands)

    def contract(x: Tensor, y: Tensor) -> Tensor:
        return torch.einsum(equation, x, y)

    return _Product.apply(contract, a, b, contract(a.detach(), b.detach()))


def dot_product(
    view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The fused call by its parts."""
    query, key, value, settings = dot_product_arguments(args, kwargs)
    stream = stream_of(query)
    with view.resumed():
        weights, value = explicit_attention(query, key, value, **settings)
        return set_stream(weights, stream or 0) @ value


def reduction(
    view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A sum or a mean: each part by its share."""
    if not args or not live(args[0]):
        return func(*args, **kwargs)
    rest = args[1:]
    return _Ratio.apply(lambda x: func(x, *rest, **kwargs), args[0], _value(func, args, kwargs))


DEEP_TAYLOR: Table = {
    **SOFTMAX,
    activation_module: same_module,
    **dict.fromkeys(calls("embedding"), lookup),
    **dict.fromkeys(calls("linear"), linear),
    **dict.fromkeys(calls("addmm"), addmm),
    **dict.fromkeys(calls("softmax"), softmax),
    **dict.fromkeys(calls("add", "sub", "subtract", "rsub"), total),
    **dict.fromkeys(calls("mul", "multiply"), product),
    **dict.fromkeys(calls("div", "divide", "true_divide", "truediv"), quotient),
    **dict.fromkeys(calls("matmul", "bmm", "mm"), contraction),
    **dict.fromkeys(calls("einsum"), einsum),
    **dict.fromkeys(calls("scaled_dot_product_attention"), dot_product),
    **dict.fromkeys(calls("mean", "sum"), reduction),
    **dict.fromkeys(
        calls(
            "layer_norm", "rms_norm", "group_norm", "batch_norm", "gelu", "silu", "relu", "tanh",
            "sigmoid", "softplus", "elu", "mish", "hardswish", "leaky_relu", "neg", "pow", "square",
            "exp", "clamp", "erf", "normalize",
        ),
        same,
    ),
    **dict.fromkeys(calls("sqrt", "rsqrt", "norm", "vector_norm", "std"), scale),
    **dict.fromkeys(calls("index_add"), index_add),
}  # fmt: skip
