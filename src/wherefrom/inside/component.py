"""Names of the components of a model: blocks, attention, heads, MLPs, neurons and experts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from wherefrom.errors import InputError
from wherefrom.inside.sites import Site

ComponentKind = Literal["stream", "attention", "head", "mlp", "neuron", "expert"]
_NAME = re.compile(
    r"layer\.(?P<layer>\d+)"
    r"(\.(?P<kind>attention|mlp|(head|neuron|expert)\.(?P<number>\d+)))?(@(?P<unit>\d+))?"
)


@dataclass(frozen=True, order=True)
class Component:
    """A part of a model, as `layer.5.head.3`; `@7` restricts it to unit 7.

    `layer.5` is the residual stream that enters block 5. The heads of a block's attention calls
    are numbered in the order of the calls, so in a decoder with cross-attention these come last.

    >>> Component.parse("layer.5.head.3@7")
    Component(layer=5, kind='head', number=3, unit=7)
    >>> str(Component.parse("layer.0.mlp")), str(Component.parse("layer.2@1"))
    ('layer.0.mlp', 'layer.2@1')
    """

    layer: int
    kind: ComponentKind = "stream"
    number: int | None = None
    unit: int | None = None

    @classmethod
    def parse(cls, name: str | Component) -> Component:
        """The component of a name."""
        if isinstance(name, Component):
            return name
        match = _NAME.fullmatch(name)
        if match is None:
            raise InputError(
                f"there is no component {name!r}: names are layer.5, layer.5.attention, "
                "layer.5.head.3, layer.5.mlp, layer.5.neuron.77 and layer.5.expert.2, each with "
                "@7 for unit 7 only."
            )
        layer, number, unit = (
            None if match[group] is None else int(match[group])
            for group in ("layer", "number", "unit")
        )
        assert layer is not None
        kind: Any = (match["kind"] or "stream").partition(".")[0]
        return cls(layer, kind, number, unit)

    def __str__(self) -> str:
        kind = "" if self.kind == "stream" else f".{self.kind}"
        number = "" if self.number is None else f".{self.number}"
        unit = "" if self.unit is None else f"@{self.unit}"
        return f"layer.{self.layer}{kind}{number}{unit}"

    def is_at(self, site: Site) -> bool:
        """Whether a site holds the component, or a part of it."""
        if site.layer != self.layer:
            return False
        if self.kind in ("attention", "head"):
            numbers = range(site.first_head, site.first_head + (site.heads or 0))
            return site.place == "heads" and (self.kind == "attention" or self.number in numbers)
        if self.kind == "expert":
            return site.expert is not None and site.expert == self.number
        return self.kind in ("mlp", "neuron") and site.place == "neurons"

    def mask(self, site: Site, tensor: Tensor, batch: int = 1) -> Tensor:
        """Which numbers of a site's tensor belong to the component, at all units."""
        if self.kind not in ("head", "neuron") or self.number is None:
            return torch.ones(tensor.shape, dtype=torch.bool, device=tensor.device)
        mask = torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
        if self.kind == "head":
            heads = mask.view(batch, -1, *tensor.shape[-2:])  # (B, H, Q, d)
            heads[:, self.number - site.first_head] = True
        elif self.number < tensor.shape[-1]:
            mask[..., self.number] = True
        else:
            raise InputError(f"there is no {self}: the layer reads {tensor.shape[-1]} neurons.")
        return mask
