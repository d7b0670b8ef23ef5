"""Attention with constant weights: the fused kernel forward, only dV backward."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from wherefrom.core.torch_internals import attention_with_log_sums, stacked

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
