"""The methods that are compared: the paper's eight, set as its authors ran them, and others."""

from __future__ import annotations

from wherefrom.methods import Method, method

# Rows of the paper's tables. Its attention methods read all rows of a map, and what it calls GAE is
# a positive gradient rollout with normalised rows (docs/parity.md).
PAPER: dict[str, Method] = {
    "Random": method("random"),
    "A-Last": method("attention_last", readout="all"),
    "A-Flow": method("attention_flow", readout="all"),
    "Rollout": method("attention_rollout", readout="all"),
    "GAE": method("gradient_rollout", positive=True, normalise=True, skip=True, readout="all"),
    "GI": method("gradient_x_input"),
    "LRP(AH)": method("lrp_ah"),
    "LRP(AH+LN)": method("lrp_ah_ln"),
}
ATTENTION = ("A-Last", "A-Flow", "Rollout")
GRADIENT = ("GAE", "GI", "LRP(AH)", "LRP(AH+LN)")
DEFAULT = "lrp"  # of the product


def methods_of(kind: str) -> dict[str, Method]:
    """All methods for texts or graphs, by the name of their row in the tables."""
    blank = "unk" if kind == "text" else "zero"
    root = None if kind == "text" else "zero"  # the other one is the default of `lrp`
    others = [
        method("lrp"),
        method("lrp", root=root),
        method("attn_lrp"),
        method("gae"),
        method("transformer_attribution"),
        method("dix"),
        method("integrated_gradients", steps=16, baseline=blank),
        method("occlusion", baseline=blank),
    ]
    return PAPER | {_row(other): other for other in others}


def _row(other: Method) -> str:
    """The name in the tables: the same for texts and graphs, where only the blank differs."""
    settings = other.settings()
    if other.name == "lrp" and settings["root"] != "auto":
        return "lrp, no root" if settings["root"] is None else "lrp, rooted"
    return other.name
