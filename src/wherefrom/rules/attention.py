"""Attention from its parts, attention with constant weights, and the role of a softmax.

Under the AH rule attention weights are constants, and values carry the relevance.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from wherefrom.core.torch_internals import attention_with_log_sums, stacked
from wherefrom.errors import ModelError
from wherefrom.tracing.catalogue import Kind, TorchCall, depends_on_input
from wherefrom.tracing.tags import like, mark
from wherefrom.tracing.tracer import CallMode, Table, Tracer


def softmax(tracer: Tracer, call: TorchCall) -> Any:
    """Only sets the role: a softmax is attention where it is multiplied by values."""
    return mark(call.run(), "softmax")


def shared_softmax(tracer: Tracer, call: TorchCall) -> Any:
    """p = softmax(z) = J z + [p − J z], J its derivative, the bracket a line of the ledger.

    J z = p (z − Σ p z) does not change when a number is added to all z.
    """
    out = softmax(tracer, call)
    if tracer.ledger.enabled and depends_on_input(out):
        with torch.no_grad():
            p, z, dim = out.detach(), call["input"].detach().to(out.dtype), call.get("dim")
            dim = (0 if z.ndim in (0, 1, 3) else 1) if dim is None else dim  # torch's default
            z = (z - z.amax(dim, keepdim=True)).masked_fill(p == 0, 0.0)  # a mask may be −∞
            constant = p * (1 - z + (p * z).sum(dim, keepdim=True))
        tracer.constant(call, out, constant, "softmax")
    return out


def explicit_attention(
    query: Tensor, key: Tensor, value: Tensor, **settings: Any
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention from its parts: weights (…, query, key) and values."""
    constant = not (query.requires_grad or key.requires_grad)
    if settings.get("is_causal") and constant and query.ndim > 2:
        return _causal_weights(query, key, value, **settings)
    scores, value = attention_scores(query, key, value, **settings)
    return masked_softmax(scores, **settings), value


def _causal_weights(
    query: Tensor, key: Tensor, value: Tensor, **settings: Any
) -> tuple[Tensor, Tensor]:
    """`explicit_attention` for constant queries and keys under a causal mask, in fewer steps."""
    key, value = _for_each_head(query, key, value, settings)
    key = key.expand(*query.shape[:-2], -1, -1)
    shape = (query.shape[-2], key.shape[-2])
    closed = torch.full(shape, -math.inf, dtype=query.dtype, device=query.device).triu_(1)
    scores = torch.baddbmm(
        closed.expand(math.prod(query.shape[:-2]), *shape),
        query.flatten(0, -3),
        key.flatten(0, -3).mT,
        alpha=_scale(query, settings),
    )
    return torch.softmax(scores, -1).view(*query.shape[:-1], key.shape[-2]), value


def attention_scores(
    query: Tensor, key: Tensor, value: Tensor, **settings: Any
) -> tuple[Tensor, Tensor]:
    """Scaled products of queries and keys, and the values, repeated for each query head."""
    key, value = _for_each_head(query, key, value, settings)
    return query @ key.transpose(-2, -1) * _scale(query, settings), value


def _for_each_head(
    query: Tensor, key: Tensor, value: Tensor, settings: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    heads = query.shape[-3] if query.ndim > 3 else 1
    if settings.get("enable_gqa") and key.shape[-3] != heads:
        key = key.repeat_interleave(heads // key.shape[-3], -3)
        value = like(value.repeat_interleave(heads // value.shape[-3], -3), value)
    return key, value


def _scale(query: Tensor, settings: dict[str, Any]) -> float:
    factor = settings.get("scale")
    return 1 / math.sqrt(query.shape[-1]) if factor is None else factor


def masked_softmax(scores: Tensor, **settings: Any) -> Tensor:
    """The attention weights of scores under the mask in the call's settings.

    Writes into scores that require no gradient.
    """
    mask = settings.get("attn_mask")
    if settings.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        if mask.dtype != torch.bool:
            scores = scores + mask
        elif scores.requires_grad:
            scores = scores.masked_fill(~mask, -math.inf)
        else:
            scores.masked_fill_(~mask, -math.inf)
    weights = torch.softmax(scores, -1)
    if mask is not None:  # a fully masked query has weights of zero, as in the fused call
        is_open = mask if mask.dtype == torch.bool else mask != -math.inf
        blind = ~is_open.any(-1, keepdim=True)
        if bool(blind.any()):
            weights = weights.masked_fill(blind, 0.0)
    return weights


class DotProduct(NamedTuple):
    """The arguments of a fused attention call, without dropout."""

    query: Tensor
    key: Tensor
    value: Tensor
    settings: dict[str, Any]


def dot_product_of(call: TorchCall) -> DotProduct:
    """Query, key, value and settings of a fused attention call."""
    names = ("attn_mask", "is_causal", "scale", "enable_gqa")
    settings = {name: call[name] for name in names if call.get(name) is not None}
    return DotProduct(call["query"], call["key"], call["value"], settings)


def decomposed(tracer: CallMode, call: TorchCall) -> Any:
    """`multi_head_attention_forward` from its parts, which the mode handles one by one."""
    with tracer.resumed():
        return _multi_head(*call.args, **call.kwargs)


def _multi_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    single = query.ndim == 2
    if single:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    batch = query.shape[1]  # (T, B, D): this call is always sequence first
    if use_separate_proj_weight:
        projections = (q_proj_weight, k_proj_weight, v_proj_weight)
    else:
        assert in_proj_weight is not None
        projections = in_proj_weight.chunk(3)  # type: ignore[assignment]
    biases = in_proj_bias.chunk(3) if in_proj_bias is not None else (None, None, None)
    # batch first from here, as the fused call expects
    q, k, v = (
        F.linear(x.transpose(0, 1), w, b)  # type: ignore[arg-type]
        for x, w, b in zip((query, key, value), projections, biases, strict=True)
    )
    if bias_k is not None and bias_v is not None:
        k = torch.cat([k, bias_k.transpose(0, 1).expand(batch, -1, -1)], 1)
        v = torch.cat([v, bias_v.transpose(0, 1).expand(batch, -1, -1)], 1)
    if static_k is not None or static_v is not None:
        raise ModelError(
            "multi_head_attention_forward was called with static keys or values, for which there "
            "is no rule."
        )
    extra = int(bias_k is not None) + int(add_zero_attn)
    if add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
    q, k, v = (x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for x in (q, k, v))
    # here torch uses is_causal as the mask, which then also hides the appended keys
    hinted = is_causal and key_padding_mask is None and not need_weights
    mask = _as_scores(None if hinted else attn_mask, query)
    if mask is not None and mask.ndim == 3:
        mask = mask.reshape(batch, num_heads, *mask.shape[1:])
    padding = _as_scores(key_padding_mask, query)
    if padding is not None:
        padding = padding[:, None, None, :]
        mask = padding if mask is None else mask + padding
    if mask is not None and extra:
        mask = F.pad(mask, (0, extra))
    returned: Tensor | None = None
    if need_weights:
        weights, v = explicit_attention(q, k, v, attn_mask=mask)
        heads = weights @ v  # (B, H, T, d)
        returned = weights.mean(1) if average_attn_weights else weights
    else:
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=hinted)
    joined = heads.transpose(1, 2).flatten(2)
    out = F.linear(joined, out_proj_weight, out_proj_bias).transpose(0, 1)
    if single:
        return out.squeeze(1), None if returned is None else returned.squeeze(0)
    return out, returned


def _as_scores(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask as numbers to add to attention scores; True means masked."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)


def exponential(tracer: Tracer, call: TorchCall) -> Any:
    """Only sets the role: divided by its sum it is a softmax."""
    return mark(call.run(), "exp")


SOFTMAX: Table = {
    Kind.SOFTMAX: softmax,
    Kind.EXPONENTIAL: exponential,
    Kind.MULTI_HEAD: decomposed,
}


_NUMBERS = 1 << 22  # attention weights computed at a time in the backward pass
_CAUSAL_PARTS = 16
_FEWEST_QUERIES = 128  # at a time under a causal mask


class _FrozenAttention(Function):
    """O = P V with P a constant, so that only dV = Pᵀ dO is needed.

    The fused backward pass also computes dQ and dK: five products instead of two. Pᵀ is recomputed
    for some queries at a time, never as a whole. If the kernel returns the logarithm l of its
    normaliser, Pᵀ = exp(KQᵀ − l) is one product, with l as an additional coordinate.
    """

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, query: Tensor, key: Tensor, mask: Tensor | None, settings: Any
    ) -> Tensor:
        out, log_sums = attention_with_log_sums(query, key, value, attn_mask=mask, **settings)
        ctx.save_for_backward(query, key, mask, log_sums)
        ctx.settings = settings
        ctx.shape = value.shape
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, mask, log_sums = ctx.saved_tensors
        gradient = gradients[0]
        groups = 1
        if ctx.settings.get("enable_gqa"):
            groups = query.shape[-3] // key.shape[-3]
        scale = ctx.settings.get("scale")
        query = query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if log_sums is not None:
            query = torch.cat([query, -log_sums.unsqueeze(-1)], -1)
            key = F.pad(key, (0, 1), value=1.0)
        total = gradient.new_zeros(ctx.shape)
        queries, keys = query.shape[-2], key.shape[-2]
        causal = bool(ctx.settings.get("is_causal"))
        step = max(16, _NUMBERS // max(1, math.prod(query.shape[:-2]) * keys))
        if causal:  # keys that are masked for all of these queries are skipped
            step = min(step, max(_FEWEST_QUERIES, -(-queries // _CAUSAL_PARTS)))
        for start in range(0, queries, step):
            rows = slice(start, min(start + step, queries))
            # most rows of the last block have no gradient
            if not bool(stacked(gradient[..., rows, :]).any()):
                continue
            seen = min(rows.stop, keys) if causal else keys
            weights = _weights(
                _grouped(query[..., rows, :], groups),
                key[..., :seen, :],
                _of_rows(mask, rows, seen, groups),
                rows.start if causal else None,
                groups,
                normalised=log_sums is not None,
            )
            total[..., :seen, :] += weights @ _grouped(gradient[..., rows, :], groups)
        return total, None, None, None, None


def _grouped(rows: Tensor, groups: int) -> Tensor:
    """The rows of all query heads that share a key head as rows of one: (…, KV, G · Q, d)."""
    if groups == 1:
        return rows
    heads = rows.shape[-3]
    by_key: Tensor = rows.unflatten(-3, (heads // groups, groups))
    return by_key.flatten(-3, -2)


def _of_rows(mask: Tensor | None, rows: slice, seen: int, groups: int) -> Tensor | None:
    """The part of a mask for some queries and the first `seen` keys, laid out as by `_grouped`."""
    if mask is None:
        return None
    mask = mask[..., :seen] if mask.shape[-2] == 1 else mask[..., rows, :seen]
    if groups == 1:
        return mask
    if mask.ndim >= 3 and mask.shape[-3] > 1:
        mask = mask.expand(*mask.shape[:-2], rows.stop - rows.start, mask.shape[-1])
        return _grouped(mask, groups)
    mask = mask.expand(*mask.shape[:-2], rows.stop - rows.start, mask.shape[-1])
    return mask.repeat(*(1,) * (mask.ndim - 2), groups, 1)


def _weights(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    causal_from: int | None,
    groups: int,
    *,
    normalised: bool,
) -> Tensor:
    """The attention weights (…, key, query) of some queries that are scaled already.

    Keys come first: the product with a gradient's rows is then a quarter faster than with a
    transpose. `normalised`: the queries contain the logarithm of the normaliser.
    """
    scores = key @ query.mT
    if mask is not None:
        mask = mask.mT
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if causal_from is not None:  # earlier keys are visible to all of these queries
        late = scores[..., causal_from:, :].unflatten(-1, (groups, -1)).movedim(-2, -3)
    if normalised:
        scores.exp_()
        if causal_from is not None:
            late.triu_()
        return scores
    if causal_from is not None:
        late.masked_fill_(torch.ones_like(late, dtype=torch.bool).tril_(-1), -math.inf)
    weights = torch.softmax(scores, -2)
    # a fully masked query has weights of zero, as in the fused call
    return weights if mask is None else weights.nan_to_num_(nan=0.0)


def frozen_attention(query: Tensor, key: Tensor, value: Tensor, **settings: Any) -> Tensor:
    """`scaled_dot_product_attention` that passes a gradient to the values only."""
    mask = settings.pop("attn_mask", None)
    out: Tensor = _FrozenAttention.apply(value, query.detach(), key.detach(), mask, settings)
    return out
