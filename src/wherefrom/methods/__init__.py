"""Every method by its name: the one place where a new one is entered."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from wherefrom.errors import MethodError, nearest
from wherefrom.methods.attention import (
    AttentionFlow,
    AttentionLast,
    AttentionRollout,
    GradientRollout,
    GradientXAttention,
)
from wherefrom.methods.captum_bridge import PREFIX, Captum
from wherefrom.methods.dix import Dix
from wherefrom.methods.gae import Gae
from wherefrom.methods.gradient import Gradient, SmoothGrad
from wherefrom.methods.method import Method, Scores
from wherefrom.methods.occlusion import Occlusion
from wherefrom.methods.path import IntegratedGradients, PathGradients
from wherefrom.methods.propagation import AttnLrp, GradientXInput, Lrp, LrpAh, LrpAhLn
from wherefrom.methods.random_scores import Random
from wherefrom.methods.transformer_attribution import TransformerAttribution

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
    if isinstance(name, Method) and not settings:
        return name
    if isinstance(name, str) and name.startswith(PREFIX):
        return Captum(name.removeprefix(PREFIX), settings)
    if not isinstance(name, Method) and (not isinstance(name, str) or name not in METHODS):
        raise MethodError(f'there is no method "{name}"; {nearest(str(name), METHODS)}')
    kind = METHODS[name] if isinstance(name, str) else type(name)
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in settings:
        if key not in known:
            has = f"it has: {', '.join(known)}" if known else "it has none"
            raise MethodError(f'{kind.name} has no setting "{key}"; {has}')
    _check(kind, settings)
    return kind(**settings) if isinstance(name, str) else replace(name, **settings)  # type: ignore[type-var]


def _check(kind: type[Method], settings: dict[str, Any]) -> None:
    """Refuses a value that the setting's type does not name."""
    for key, allowed in get_type_hints(kind).items():
        choices = get_args(allowed) if get_origin(allowed) is Literal else ()
        if key in settings and choices and settings[key] not in choices:
            listed = ", ".join(map(str, choices))
            raise MethodError(f'{kind.name} has no {key} "{settings[key]}"; there are: {listed}')


__all__ = ["METHODS", "Method", "Scores", "method"]
