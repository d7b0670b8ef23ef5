"""Every method by its name: the one place where a new one is entered."""

from __future__ import annotations

from typing import Any

from whence.errors import MethodError, nearest
from whence.methods.attention import (
    AttentionFlow,
    AttentionLast,
    AttentionRollout,
    GradientRollout,
    GradientXAttention,
)
from whence.methods.bridge import PREFIX, Captum
from whence.methods.control import Random
from whence.methods.dix import Dix
from whence.methods.erasure import Occlusion
from whence.methods.gae import Gae
from whence.methods.gradient import Gradient, SmoothGrad
from whence.methods.method import Method, Scores
from whence.methods.path import IntegratedGradients, PathGradients
from whence.methods.propagation import AttnLrp, GradientXInput, Lrp, LrpAh, LrpAhLn
from whence.methods.transformer_attribution import TransformerAttribution

METHODS: dict[str, type[Method]] = {
    kind.name: kind
    for kind in (
        Lrp, AttnLrp, LrpAhLn, LrpAh, GradientXInput, Gradient, SmoothGrad, IntegratedGradients,
        PathGradients, AttentionLast, AttentionRollout, AttentionFlow, GradientXAttention,
        GradientRollout, Gae, TransformerAttribution, Dix, Occlusion, Random,
    )
}  # fmt: skip


def method(name: str | Method, **settings: Any) -> Method:
    """The method of this name, with these settings; `captum:NAME` is Captum's."""
    if isinstance(name, Method):
        return name
    if name.startswith(PREFIX):
        return Captum(name.removeprefix(PREFIX), settings)
    if name not in METHODS:
        raise MethodError(f'there is no method "{name}"; {nearest(name, METHODS)}')
    kind = METHODS[name]
    known = list(getattr(kind, "__dataclass_fields__", {}))
    for key in settings:
        if key not in known:
            has = f"it has: {', '.join(known)}" if known else "it has none"
            raise MethodError(f'{name} has no setting "{key}"; {has}')
    return kind(**settings)


__all__ = ["METHODS", "Method", "Scores", "method"]
