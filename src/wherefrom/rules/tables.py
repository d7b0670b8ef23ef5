"""The tables: which calls are made linear, and how, in each published variant."""

from __future__ import annotations

from typing import Any

from torch.nn import functional as F

from wherefrom.rules.activation import SECANT
from wherefrom.rules.affine import AFFINE
from wherefrom.rules.attention import SOFTMAX
from wherefrom.rules.calls import Call, calls, in_place
from wherefrom.rules.mode import LocallyLinear, Table
from wherefrom.rules.norm import NORM, NORM_BIAS
from wherefrom.rules.product import Products

_BOOKED: Table = {**AFFINE, **NORM_BIAS, **SOFTMAX}

PLAIN: Table = {**_BOOKED, **Products().table()}
"""Nothing is changed: the true gradient."""

AH: Table = {**_BOOKED, **Products(attention="frozen").table()}
"""Attention weights are constants (Ali et al. 2022)."""

AH_LN: Table = {**AH, **NORM}
"""And so is the scale of every norm (Ali et al. 2022)."""

CONSERVATIVE: Table = {**AH_LN, **SECANT, **Products("frozen", "frozen").table()}
"""And activations are secants and gates are constants: the output is the sum of its sources."""

CONSERVATIVE_SHARED: Table = {**CONSERVATIVE, **Products("frozen", "shared").table()}
"""As CONSERVATIVE, with half of a gate's relevance to each of its factors."""

ATTN_LRP: Table = {**_BOOKED, **NORM, **SECANT, **Products("shared", "shared").table()}
"""Relevance through the softmax too, products shared (Achtibat et al. 2024)."""


def softplus_table(beta: float) -> Table:
    """The true gradient of a network whose ReLUs are read as softplus: smooth where ReLU bends."""

    def rule(view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs["input"]
        out = F.softplus(x.clone() if in_place(func) else x, beta=beta)
        return x.copy_(out) if in_place(func) else out

    return {**PLAIN, **dict.fromkeys(calls("relu"), rule)}


def plain_table(softplus: float | None = None) -> Table:
    """The true gradient, ReLU read as softplus where a beta is given."""
    return PLAIN if softplus is None else softplus_table(softplus)


TABLES = {
    "plain": PLAIN,
    "ah": AH,
    "ah_ln": AH_LN,
    "conservative": CONSERVATIVE,
    "conservative_shared": CONSERVATIVE_SHARED,
    "attn_lrp": ATTN_LRP,
}
