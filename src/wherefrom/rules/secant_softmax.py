"""Softmaxes between two points: Δp_i = L_i (Δz_i − Σ_j L_j Δz_j / Σ_j L_j).

L is the logarithmic mean of p at both points: docs/decisions/11-secants-of-a-softmax.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from wherefrom.rules.attention import dot_product_of
from wherefrom.rules.linear import Slope
from wherefrom.tracing.catalogue import TorchCall, depends_on_input
from wherefrom.tracing.tags import mark, widened
from wherefrom.tracing.tracer import Tracer


class _Carried(Function):
    @staticmethod
    def forward(ctx: Any, carrier: Tensor, value: Tensor) -> Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def carried(carrier: Tensor, value: Tensor) -> Tensor:
    """The value of one tensor with the gradient of another."""
    out: Tensor = _Carried.apply(carrier, value)
    return out


def at_root(tracer: Tracer, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The values of these tensors at the root."""
    assert tracer.root_activations is not None
    return tracer.root_activations.at_root(tracer.where, *tensors)


def is_root(tracer: Tracer) -> bool:
    """Whether this is the pass at the root, of which only the activations are needed."""
    assert tracer.root_activations is not None
    return tracer.root_activations.recording


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
        return p.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weights, scale = ctx.saved_tensors
        back = _centred(gradients[0], weights, ctx.axes)
        back = back if scale is None else back / scale
        return back.to(gradients[0].dtype), None, None, None, None


def softmax(tracer: Tracer, call: TorchCall) -> Any:
    """The secant of a softmax by logarithmic means."""
    z, out = call["input"], call.run()
    if not depends_on_input(out):
        return out
    dim = call.get("dim")
    dim = (0 if z.ndim in (0, 1, 3) else 1) if dim is None else dim  # as torch guesses it
    with torch.no_grad():
        logs = widened(z.detach().to(out.dtype)).log_softmax(dim)
        (logs0,) = at_root(tracer, logs)
    if is_root(tracer):
        return mark(out, "softmax")
    with torch.no_grad():
        weights = logarithmic_mean(logs, logs0)
    secant_of_p: Tensor = _Softmax.apply(z, out.detach(), weights, None, (dim,))
    return mark(secant_of_p, "softmax")


def log_softmax(tracer: Tracer, call: TorchCall) -> Any:
    """Δ ln p_i = Δz_i − Σ_j L_j Δz_j / Σ_j L_j."""
    z, out, dim = call["input"], call.run(), call.get("dim", -1)
    if not depends_on_input(out):
        return out
    total = _log_sum(tracer, z, (dim,), keepdim=True)
    return carried(z - total, out.detach())


def log_sum(tracer: Tracer, call: TorchCall) -> Any:
    """Δ ln Σ exp z = Σ_j L_j Δz_j / Σ_j L_j."""
    z, dim = call["input"], call["dim"]
    if not depends_on_input(z):
        return call.run()
    axes = (dim,) if isinstance(dim, int) else tuple(dim)
    return _log_sum(tracer, z, axes, bool(call.get("keepdim")))


def _log_sum(tracer: Tracer, z: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    with torch.no_grad():
        logits = widened(z.detach())
        total = logits.logsumexp(axes, keepdim=True)
        logs = logits - total
        (logs0,) = at_root(tracer, logs)
        weights = logarithmic_mean(logs, logs0)
        weights = weights / weights.sum(axes, keepdim=True)
    value: Tensor = Slope.apply(z, total.to(z.dtype), weights)
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
        return out.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient, saved = widened(gradients[0]), ctx.saved_tensors
        wide = [None if t is None else widened(t) for t in saved]
        q, k, v, m = _spread(wide[:4], ctx.settings)
        q0, k0, v0, m0 = _spread(wide[4:], ctx.settings)
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
        back = [_summed(b, x.shape).to(x.dtype) for b, x in inputs]
        rest = [None] * (len(ctx.needs_input_grad) - 4)
        if back_m is not None:
            back_m = back_m.sum_to_size(saved[3].shape).to(saved[3].dtype)
        return *back, back_m, *rest


_NUMBERS = 1 << 22  # of the weights that are formed at a time


def _spread(
    inputs: Sequence[Any], settings: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Queries, with a key and a value for each of their heads and the mask as numbers to add."""
    query, key, value, mask = inputs
    if settings.get("enable_gqa") and key.shape[-3] != query.shape[-3]:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    shape = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    query, key, value = (x.expand(*shape, *x.shape[-2:]) for x in (query, key, value))
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
    root = [*at_root(tracer, *given), *([None] if mask is None else [])]
    attended: Tensor = _Attention.apply(query, key, value, mask, out, *root, settings)
    return attended


def over_own_sum(tracer: Tracer, call: TorchCall, left: Tensor, right: Tensor) -> Any:
    """exp z / Σ exp z as a softmax: the relevance of the sum goes to the exponentials."""
    with torch.no_grad():
        value = (left / right).detach()
        logs, total = widened(value).log(), widened(left.detach()).log()
        logs0, total0 = at_root(tracer, logs, total)
        weights, scale = logarithmic_mean(logs, logs0), logarithmic_mean(total, total0)
    shape = (
        right.shape if right.ndim == left.ndim else (1,) * (left.ndim - right.ndim) + right.shape
    )
    axes = tuple(i for i, size in enumerate(shape) if size == 1 and left.shape[i] > 1)
    out: Tensor = _Softmax.apply(left, value, weights, scale.clamp_min(_TINY), axes)
    return mark(left.copy_(out) if call.in_place else out, "softmax")


_TINY = 1e-30
