"""Linear layers whose weights are packed in few bits: their own value, dequantised weights back.

Where activations are rounded as well the value is not affine. What that rounding adds is a
constant of the kind "quantisation", a line of the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from wherefrom.tracing.catalogue import Kind, TorchCall, depends_on_input
from wherefrom.tracing.tracer import Table, Tracer


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, weight: Callable[[], Tensor]) -> Tensor:
        ctx.weight = weight  # dequantised again in the backward pass: the packed one stays small
        return y.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0] @ ctx.weight().to(gradients[0]), None, None


def is_packed(weight: object) -> bool:
    """Whether a weight is a tensor of its own class that knows how to dequantise itself."""
    return (
        isinstance(weight, Tensor)
        and type(weight) not in (Tensor, nn.Parameter)
        and type(weight).dequantize is not Tensor.dequantize
    )


def packed_linear(
    tracer: Tracer, call: TorchCall, weight: Callable[[], Tensor], bias: Tensor | None
) -> Any:
    """Y = W x + b + [what rounding adds], with W the dequantised weight."""
    x = call["input"]
    with torch.no_grad():
        y = call.run(input=x.detach())
        rounding = y - F.linear(x.detach(), weight().to(x), bias)
    out = _Linear.apply(x, y, weight)
    if bias is not None:
        tracer.constant(call, out, bias)
    return tracer.constant(call, out, rounding, "quantisation")


def dynamic(tracer: Tracer, call: TorchCall) -> Any:
    """torch's dynamically quantised linear layer: weights in int8, activations rounded to it."""
    if not depends_on_input(call["input"]):
        return call.run()
    packed = call["packed"]
    _, bias = packed.unpack()
    return packed_linear(tracer, call, lambda: packed.unpack()[0].dequantize(), bias)


QUANTISED: Table = {Kind.QUANTISED_LINEAR: dynamic}
