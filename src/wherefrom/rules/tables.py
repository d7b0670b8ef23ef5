"""The tables: which kinds of calls are made linear, and how, in each published variant."""

from __future__ import annotations

from typing import Any

from torch.nn import functional as F

from wherefrom.rules.activation import SECANT
from wherefrom.rules.affine import AFFINE
from wherefrom.rules.attention import SOFTMAX
from wherefrom.rules.catalogue import Kind, TorchCall
from wherefrom.rules.mode import LocallyLinear, Table
from wherefrom.rules.norm import NORM, NORM_BIAS
from wherefrom.rules.product import Products
from wherefrom.rules.two_points import TWO_POINTS

_RECORDED: Table = {**AFFINE, **NORM_BIAS, **SOFTMAX}

PLAIN: Table = {**_RECORDED, **Products().table()}
"""Nothing is changed: the true gradient."""

AH: Table = {**_RECORDED, **Products(attention="frozen").table()}
"""Attention weights are constants (Ali et al. 2022)."""

AH_LN: Table = {**AH, **NORM}
"""And so is the scale of every norm (Ali et al. 2022)."""

CONSERVATIVE: Table = {**AH_LN, **SECANT, **Products("frozen", "frozen").table()}
"""And activations are secants and gates are constants: the output is the sum of its sources."""

CONSERVATIVE_SHARED: Table = {**CONSERVATIVE, **Products("frozen", "shared").table()}
"""As CONSERVATIVE, with half of a gate's relevance to each of its factors."""

ATTN_LRP: Table = {**_RECORDED, **NORM, **SECANT, **Products("shared", "shared").table()}
"""Relevance through the softmax too, products shared (Achtibat et al. 2024)."""


def plain_table(softplus: float | None = None) -> Table:
    """The true gradient; with a β, of the network with softplus in place of ReLU.

    softplus_β(x) = log(1 + exp(β x)) / β is smooth where ReLU bends.
    """
    if softplus is None:
        return PLAIN

    def smooth_relu(view: LocallyLinear, call: TorchCall) -> Any:
        if call.name != "relu":
            return call.run()
        x = call["input"]
        out = F.softplus(x.clone() if call.in_place else x, beta=softplus)
        return x.copy_(out) if call.in_place else out

    return {**PLAIN, Kind.HOMOGENEOUS: smooth_relu}


TABLES = {
    "plain": PLAIN,
    "ah": AH,
    "ah_ln": AH_LN,
    "conservative": CONSERVATIVE,
    "conservative_shared": CONSERVATIVE_SHARED,
    "attn_lrp": ATTN_LRP,
    "two_points": TWO_POINTS,
}
