"""The table of rules of each published variant."""

from __future__ import annotations

from typing import Any, Literal

from torch.nn import functional as F

from wherefrom.rules.activation import SECANT
from wherefrom.rules.attention import SOFTMAX
from wherefrom.rules.linear import AFFINE
from wherefrom.rules.norm import NORM, NORM_BIAS
from wherefrom.rules.offsets import OFFSETS
from wherefrom.rules.product import Policy, Products
from wherefrom.tracing.catalogue import Kind, TorchCall
from wherefrom.tracing.tracer import Table, Tracer

_RECORDED: Table = {**AFFINE, **NORM_BIAS, **SOFTMAX}

PLAIN: Table = {**_RECORDED, **Products().table()}
"""The true gradient."""

AH: Table = {**_RECORDED, **Products(attention="frozen").table()}
"""Attention weights are constants (Ali et al. 2022)."""

AH_LN: Table = {**AH, **NORM}
"""The scale of every norm is a constant too (Ali et al. 2022)."""


def conservative(gate: Literal["frozen", "shared"], to_weights: float = 0.0) -> Table:
    """As AH_LN, with secants for activations, and frozen or shared gates: relevance is conserved.

    The weights of an attention layer get `to_weights` of its relevance, through the softmax.
    """
    attention: Policy = "shared" if to_weights else "frozen"
    products = Products(attention, gate, to_weights)
    return {**_RECORDED, **NORM, **SECANT, **OFFSETS, **products.table()}


CONSERVATIVE: Table = conservative("frozen")
CONSERVATIVE_SHARED: Table = conservative("shared")
ATTN_LRP: Table = conservative("shared", 0.5)
"""Relevance also passes through the softmax, and gates are shared (Achtibat et al. 2024)."""


def plain_table(softplus: float | None = None) -> Table:
    """The true gradient; with `softplus` = β, that of the network with softplus instead of ReLU.

    softplus_β(x) = log(1 + exp(β x)) / β has no kink.
    """
    if softplus is None:
        return PLAIN

    def smooth_relu(tracer: Tracer, call: TorchCall) -> Any:
        if call.name != "relu":
            return call.run()
        x = call["input"]
        out = F.softplus(x.clone() if call.in_place else x, beta=softplus)
        return x.copy_(out) if call.in_place else out

    return {**PLAIN, Kind.HOMOGENEOUS: smooth_relu}
