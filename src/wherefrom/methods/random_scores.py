"""Random scores: the control that every method has to beat."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import ClassVar

import torch

from wherefrom.methods.method import Method, Scores
from wherefrom.subject import Inputs, Subject
from wherefrom.target import Target


@dataclass(frozen=True)
class Random(Method):
    """Random scores, the control: the same for the same units and seed."""

    name: ClassVar[str] = "random"
    seed: int = 0

    def scores(self, subject: Subject, inputs: Inputs, target: Target) -> Scores:
        values = torch.zeros(inputs.mask.shape, dtype=torch.float64)
        for row, units in enumerate(inputs.units):
            content = "\x1f".join(unit.text for unit in units)
            generator = torch.Generator().manual_seed(zlib.crc32(content.encode()) + self.seed)
            drawn = torch.randn(len(units), generator=generator, dtype=torch.float64)
            values[row, inputs.mask[row]] = drawn
        return Scores(values)
