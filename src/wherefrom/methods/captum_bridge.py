"""Captum's attributors as methods, such as `captum:ShapleyValueSampling`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from wherefrom.core.target import Case
from wherefrom.errors import MethodError, MissingExtra, nearest
from wherefrom.methods.base import Method, Scores, as_json
from wherefrom.methods.embedded_inputs import EmbeddedInputs, over_sources
from wherefrom.methods.forward_pass import intercepted_forward
from wherefrom.methods.propagation import PLAIN

PREFIX = "captum:"


@dataclass(frozen=True)
class Captum(Method):
    """A Captum attributor on the embedded input, with each unit as one feature."""

    name: ClassVar[str] = "captum"
    paper: ClassVar[str] = "Kokhlikyan et al. 2020"
    attributor: str = "ShapleyValueSampling"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # results are keyed by the name, so each attributor needs one
        object.__setattr__(self, "name", f"{PREFIX}{self.attributor}")

    def settings(self) -> dict[str, Any]:
        return {key: as_json(value) for key, value in self.options.items()}

    @property
    def label(self) -> str:
        options = ", ".join(f"{key}={value}" for key, value in self.settings().items())
        return f"{self.name}({options})" if options else self.name

    @property
    def short_label(self) -> str:
        return self.label

    def scores(self, case: Case) -> Scores:
        kind = _attributor(self.attributor)
        embedded = EmbeddedInputs.capture(case)
        if len(embedded.values) != 1:
            raise MethodError(
                f"the input enters {case.runner.name} at {len(embedded.values)} points; Captum's "
                "attributors take one tensor."
            )
        rows = [
            self._one(kind, embedded.case.take([i]), embedded.values[0][i : i + 1])
            for i in range(len(case.batch))
        ]
        return Scores(over_sources(embedded, [torch.cat(rows)]) * case.batch.mask, embedded.logits)

    def _one(self, kind: Any, case: Case, value: Tensor) -> Tensor:
        def forward(x: Tensor) -> Tensor:
            many = case.take([0] * len(x))
            with intercepted_forward(PLAIN, many, change=lambda _: x) as forward:
                return forward.output

        first, *more = inspect.signature(kind).parameters.values()
        if first.name != "forward_func" or any(p.default is p.empty for p in more):
            raise MethodError(
                f"Captum's {self.attributor} needs the module or a layer; use an attributor that "
                "needs a function of the input only."
            )
        attribute = kind(forward).attribute
        known = inspect.signature(attribute).parameters
        options: dict[str, Any] = dict(self.options)
        for name in options:
            if name not in known:
                raise MethodError(f'{self.attributor} has no option "{name}".')
        if "feature_mask" in known:
            options.setdefault(
                "feature_mask",
                torch.arange(value.shape[1])[None, :, None].expand_as(value).contiguous(),
            )
        if "sliding_window_shapes" in known:
            options.setdefault("sliding_window_shapes", (1, value.shape[2]))
        if "baselines" in known:
            options.setdefault("baselines", torch.zeros_like(value))
        attributions: Tensor = attribute(value.clone().requires_grad_(), **options).detach()
        # attributors that perturb whole units repeat a unit's score for each of its features
        whole_units = "feature_mask" in known or "sliding_window_shapes" in known
        return attributions.mean(-1) if whole_units else attributions.sum(-1)


def _attributor(name: str) -> Any:
    try:
        import captum.attr
    except ImportError as error:
        raise MissingExtra("Captum", "captum", f"the method {PREFIX}{name}") from error
    kind = getattr(captum.attr, name, None)
    if kind is None or not hasattr(kind, "attribute"):
        known = [n for n in dir(captum.attr) if hasattr(getattr(captum.attr, n), "attribute")]
        raise MethodError(f'Captum has no attributor "{name}"; {nearest(name, known)}')
    return kind
