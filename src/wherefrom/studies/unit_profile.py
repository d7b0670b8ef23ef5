"""Where relevance is on its way down: at each place, after each block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.errors import ModelError
from wherefrom.methods.intercept import intercepted_forward
from wherefrom.rules.calls import stream_of
from wherefrom.rules.mode import Table
from wherefrom.rules.sources import Sources
from wherefrom.rules.tables import CONSERVATIVE
from wherefrom.studies.layer_profile import Watch
from wherefrom.subject import Inputs, Subject
from wherefrom.target import Target


@dataclass(frozen=True)
class UnitProfile:
    """Σ gradient × activation of one sample, for each unit after each block.

    `others` is what lies on places of no unit, such as a class token that the model puts in front.
    """

    output: float
    units: dict[str, NDArray[np.float64]]  # each (units,)
    others: dict[str, float]


def unit_profile(
    subject: Subject, inputs: Inputs, target: Target, table: Table = CONSERVATIVE
) -> UnitProfile:
    """Follows the relevance of one sample place by place."""
    watch = Watch({id(part): name for name, part in subject.model.named_modules()})
    with watch.open(), intercepted_forward(table, subject, inputs, target) as forward:
        gradients = forward.gradients(list(watch.blocks.values()))
    sources = forward.view.sources
    units: dict[str, NDArray[np.float64]] = {}
    others: dict[str, float] = {}
    for (name, value), gradient in zip(watch.blocks.items(), gradients, strict=True):
        rows = (gradient.double() * value.detach().double()).sum(-1).cpu().numpy()
        rows = rows[0] if len(rows) == 1 else rows[:, 0]  # places first, as some models have it
        start, shift, width = _extent(sources, value)
        if len(rows) < shift + width:
            continue
        row = np.zeros(sources.units)
        row[start : start + width] = rows[shift : shift + width]
        units[name] = row
        others[name] = float(rows.sum() - row.sum())
    if not units:
        raise ModelError(f"{subject.name} has no numbered blocks with a row for each place.")
    return UnitProfile(float(forward.output.detach().sum()), units, others)


def _extent(sources: Sources, value: Tensor) -> tuple[int, int, int]:
    """The first unit of the field that a tensor runs along with, its shift, and its width."""
    stream = stream_of(value) or 0
    own = next((s for s in sources.found if sources.stream(s) == stream), sources.found[0])
    return own.start, own.shift + sources.ahead.get(sources.stream(own), 0), sources.width(own)
