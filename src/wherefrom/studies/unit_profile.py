"""Relevance of each unit after each block, for one sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wherefrom.core.runner import Batch, Case, ModelRunner
from wherefrom.core.scope import restores_state
from wherefrom.core.target import Target
from wherefrom.errors import ModelError
from wherefrom.methods.forward_pass import intercepted_forward
from wherefrom.studies.layer_profile import ActivationRecorder
from wherefrom.tracing.observers.entry_points import stream_of
from wherefrom.tracing.tracer import Table


@dataclass(frozen=True)
class UnitProfile:
    """Σ gradient × activation of one sample, for each unit after each block.

    `others` is the relevance at positions without a unit, such as a class token that the model
    puts in front.
    """

    output: float
    units: dict[str, NDArray[np.float64]]  # each (units,)
    others: dict[str, float]


@restores_state
def unit_profile(runner: ModelRunner, inputs: Batch, target: Target, table: Table) -> UnitProfile:
    """Relevance of one sample by unit and block, under the rules of a table."""
    recorder = ActivationRecorder.of(runner.model)
    with recorder.open(), intercepted_forward(table, Case(runner, inputs, target)) as forward:
        gradients = forward.gradients(list(recorder.blocks.values()))
    sources = forward.tracer.entry_points
    units: dict[str, NDArray[np.float64]] = {}
    others: dict[str, float] = {}
    for (name, value), gradient in zip(recorder.blocks.items(), gradients, strict=True):
        rows = (gradient.double() * value.detach().double()).sum(-1).cpu().numpy()
        rows = rows[0] if len(rows) == 1 else rows[:, 0]  # places first, as some models have it
        span = sources.span_in(stream_of(value)) or sources.span_in(0)
        if span is None or len(rows) < span.shift + span.width:
            continue
        row = np.zeros(sources.units)
        row[span.start : span.start + span.width] = rows[span.shift : span.shift + span.width]
        units[name] = row
        others[name] = float(rows.sum() - row.sum())
    if not units:
        raise ModelError(f"{runner.name} has no numbered blocks with a row for each position.")
    return UnitProfile(float(forward.output.detach().sum()), units, others)
