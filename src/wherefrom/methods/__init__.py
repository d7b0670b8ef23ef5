"""All methods by name.

Other packages add methods through the entry point group `wherefrom.methods`: name = "module:Class".
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, is_dataclass, replace
from math import isfinite
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from wherefrom.core.plugins import PluginTable
from wherefrom.errors import MethodError, nearest, use_method
from wherefrom.methods.attention import (
    AttentionFlow,
    AttentionLast,
    AttentionRollout,
    Gae,
    GradientRollout,
    GradientXAttention,
)
from wherefrom.methods.base import Method, Scores
from wherefrom.methods.captum_bridge import PREFIX, Captum
from wherefrom.methods.dix import Dix
from wherefrom.methods.gradient import Gradient, SmoothGrad
from wherefrom.methods.occlusion import Occlusion
from wherefrom.methods.path import IntegratedGradients, PathGradients
from wherefrom.methods.propagation import AttnLrp, GradientXInput, Lrp, LrpAh, LrpAhLn
from wherefrom.methods.random import Random
from wherefrom.methods.secant import Auto, Secant
from wherefrom.methods.shapley import Shapley
from wherefrom.methods.transformer_attribution import TransformerAttribution

_BUILTIN: tuple[type[Method], ...] = (
    Secant, Lrp, AttnLrp, LrpAhLn, LrpAh, GradientXInput, Gradient, SmoothGrad,
    IntegratedGradients, PathGradients, AttentionLast, AttentionRollout, AttentionFlow,
    GradientXAttention, GradientRollout, Gae, TransformerAttribution, Dix, Occlusion, Shapley,
    Random,
)  # fmt: skip


def default_methods() -> list[str]:
    """The methods of comparisons, evaluations and audits in which no method is named.

    Not `shapley`, which runs the model thousands of times.
    """
    return [name for name in METHODS if name != Shapley.name]


def _problem(name: str, kind: Any) -> str | None:
    """Why a class cannot be added as a method of this name; None if it can."""
    is_method = isinstance(kind, type) and issubclass(kind, Method)
    if not is_method or not is_dataclass(kind):
        return f"{kind!r} is not a dataclass derived from wherefrom.Method"
    if getattr(kind, "name", None) != name:
        return f"its name is {getattr(kind, 'name', None)!r}, not {name!r}"
    required = [
        setting.name
        for setting in fields(kind)
        if setting.default is MISSING and setting.default_factory is MISSING
    ]
    return f"these settings have no default: {', '.join(required)}" if required else None


METHODS: PluginTable[type[Method]] = PluginTable(
    "wherefrom.methods", {kind.name: kind for kind in _BUILTIN}, _problem
)


# names in other libraries and papers, letters and digits only
_KNOWN_AS = {
    "integrated_gradients": "ig intgrad integratedgradient",
    "gradient": "saliency vanillagradient grad gradients sensitivity backprop",
    "gradient_x_input": "inputxgradient inputgradient gradientinput gradxinput gxi ixg",
    "smoothgrad": "noisetunnel smoothgradients",
    "occlusion": "erasure leaveoneout loo ablation featureablation perturbation",
    "shapley": "shap shapleyvalues shapleysampling permutationshap permutationexplainer "
    "samplingexplainer exactexplainer",
    "attention_rollout": "rollout attention attentions",
    "attention_flow": "flow maxflow",
    "attention_last": "lastattention rawattention",
    "transformer_attribution": "chefer transformerexplainability",
    "gae": "genericattention cheferbimodal bimodal",
    "gradient_x_attention": "attentiongradient",
    "secant": "deeplift rescale",
    "attn_lrp": "attnlrp lxt lxtattnlrp",
    "lrp_ah_ln": "ali alilrp",
}
_RELATED = {  # names of methods that are not here, by the most similar one
    "gradient_x_attention": "gradcam attcat",
    "lrp": "cplrp conservative zennit epsilonlrp deeptaylor",
}
_CAPTUM = {
    "kernelshap": "KernelShap", "gradientshap": "GradientShap", "lime": "Lime",
    "captum": "ShapleyValueSampling", "shapleyvaluesampling": "ShapleyValueSampling",
}  # fmt: skip


def _hint(name: str) -> str | None:
    """A hint for a name used elsewhere: its name here or a similar method; None if unknown."""
    plain = re.sub(r"[\W_]", "", name.lower())
    if plain in _CAPTUM:
        more = " scikit-learn" if _CAPTUM[plain] in ("Lime", "KernelShap") else ""
        return (
            f'Captum\'s attributors are "{PREFIX}NAME", such as "{PREFIX}{_CAPTUM[plain]}" '
            f'(pip install "wherefrom[captum]"{more}). "occlusion" and "lrp" need no other library.'
        )
    for table, words in ((_KNOWN_AS, "here it is called"), (_RELATED, "the nearest here is")):
        for own, names in table.items():
            if plain in names.split():
                return f'{words} "{own}".'
    return None


def method(name: str | Method, **settings: Any) -> Method:
    """The method of this name with these settings; `captum:NAME` is a Captum attributor."""
    if isinstance(name, Method) and not settings:
        return name
    if isinstance(name, str) and name.startswith(PREFIX):
        return Captum(name.removeprefix(PREFIX), settings)
    is_name = isinstance(name, str) and (name == Auto.name or name in METHODS)
    if not (is_name or isinstance(name, Method)):
        hint = _hint(str(name))
        raise MethodError(f'there is no method "{name}"; {hint or nearest(str(name), METHODS)}')
    kind = Auto if name == Auto.name else METHODS[name] if isinstance(name, str) else type(name)
    known = _setting_names(kind)
    for key in settings:
        if key not in known:
            has = f"it has: {', '.join(known)}" if known else "it has none"
            having = [name for name, other in METHODS.items() if key in _setting_names(other)]
            advice = (
                use_method(*having[:3], verb="Name a method:") if kind is Auto and having else {}
            )
            raise MethodError(f'{kind.name} has no setting "{key}"; {has}.', **advice)
    _check(kind, settings)
    return kind(**settings) if isinstance(name, str) else replace(name, **settings)  # type: ignore[type-var]


def _setting_names(kind: type[Method]) -> list[str]:
    return [setting.name for setting in fields(kind)]  # type: ignore[arg-type]


def _check(kind: type[Method], settings: dict[str, Any]) -> None:
    """Refuses values that do not fit the type of their setting."""
    hints = get_type_hints(kind) if settings else {}
    for key, value in settings.items():
        allowed = hints[key]
        choices = get_args(allowed) if get_origin(allowed) is Literal else ()
        if choices and value not in choices:
            listed = ", ".join(map(str, choices))
            raise MethodError(f'{kind.name} has no {key} "{value}"; there are: {listed}')
        if isinstance(value, Integral) and abs(int(value)) >= _LARGEST:
            raise MethodError(f"{kind.name}: {key} is too large, {len(str(value))} digits.")
        if not _fits(value, allowed):
            words = " or ".join(_NAMES.get(hint, "") for hint in _alternatives(allowed))
            raise MethodError(f"{kind.name}: {key} must be {words}, got {str(value)[:60]!r}.")


_NAMES = {int: "an integer", float: "a number", bool: "True or False", str: "text"}
_NAMES |= {type(None): "None"}
_LARGEST = 1 << 62


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value fits a type; types other than plain ones are not checked."""
    alternatives = _alternatives(hint)
    if any(alternative not in _NAMES for alternative in alternatives):
        return True
    if isinstance(value, bool):
        return bool in alternatives
    if isinstance(value, Integral):
        return int in alternatives or float in alternatives
    if isinstance(value, Real):
        return float in alternatives and isfinite(value)
    return isinstance(value, tuple(set(alternatives) - {int, float, bool}))


__all__ = ["METHODS", "Method", "Scores", "method"]
