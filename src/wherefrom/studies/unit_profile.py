"""Relevance of each unit after each block, for one sample."""

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
from wherefrom.studies.layer_profile import ActivationRecorder
from wherefrom.subject import Inputs, Subject
from wherefrom.target import Target


@dataclass(frozen=True)
class UnitProfile:
    """Σ gradient × activation of one sample, for each unit after each block.

    `others` is the relevance at positions without a unit, such as a class token that the model
    puts in front.
    """

    output: float
    units: dict[str, NDArray[np.float64]]  # each (units,)
    others: dict[str, float]


def unit_profile(
    subject: Subject, inputs: Inputs, target: Target, table: Table = CONSERVATIVE
) -> UnitProfile:
    """Relevance of one sample by unit and block, under the rules of a table."""
    recorder = ActivationRecorder.of(subject.model)
    with recorder.open(), intercepted_forward(table, subject, inputs, target) as forward:
        gradients = forward.gradients(list(recorder.blocks.values()))
    sources = forward.view.sources
    units: dict[str, NDArray[np.float64]] = {}
    others: dict[str, float] = {}
    for (name, value), gradient in zip(recorder.blocks.items(), gradients, strict=True):
        rows = (gradient.double() * value.detach().double()).sum(-1).cpu().numpy()
        rows = rows[0] if len(rows) == 1 else rows[:, 0]  # some models put positions first
        start, shift, width = _extent(sources, value)
        if len(rows) < shift + width:
            continue
        row = np.zeros(sources.units)
        row[start : start + width] = rows[shift : shift + width]
        units[name] = row
        others[name] = float(rows.sum() - row.sum())
    if not units:
        raise ModelError(f"{subject.name} has no numbered blocks with a row for each position.")
    return UnitProfile(float(forward.output.detach().sum()), units, others)


def _extent(sources: Sources, value: Tensor) -> tuple[int, int, int]:
    """Of the field whose positions a tensor has: its first unit, its shift, and its width."""
    stream = stream_of(value) or 0
    source = next((s for s in sources.found if sources.stream(s) == stream), sources.found[0])
    shift = source.shift + sources.ahead.get(sources.stream(source), 0)
    return source.start, shift, sources.width(source)
