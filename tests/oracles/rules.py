"""The rules of Ali et al. (ICML 2022) as they are printed, sums written out."""

import torch
from torch import Tensor


def ah_rule(x: Tensor, p: Tensor, relevance: Tensor) -> Tensor:
    """R(x_i) = Σ_j x_i p_ij R(y_j) / Σ_i' x_i' p_i'j for y_j = Σ_i p_ij x_i (eq. 10).

    `x` (…, key, D), `p` (…, query, key), `relevance` (…, query, D).
    """
    found = torch.zeros_like(x)
    queries, keys = p.shape[-2:]
    for j in range(queries):
        total = sum(x[..., i, :] * p[..., j, i, None] for i in range(keys))
        for i in range(keys):
            found[..., i, :] += x[..., i, :] * p[..., j, i, None] * relevance[..., j, :] / total
    return found


def ln_rule(x: Tensor, relevance: Tensor) -> Tensor:
    """R(x_i) = Σ_j x_i (δ_ij − 1/N) R(y_j) / Σ_i' x_i' (δ_i'j − 1/N) (eq. 11)."""
    size = x.shape[-1]
    found = torch.zeros_like(x)
    for j in range(size):
        shares = [x[..., i] * (float(i == j) - 1 / size) for i in range(size)]
        total = sum(shares)
        for i in range(size):
            found[..., i] += shares[i] * relevance[..., j] / total
    return found
