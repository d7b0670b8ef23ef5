"""Random scores: the control for all methods."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import ClassVar

import torch

from wherefrom.core.runner import Batch
from wherefrom.core.target import Case
from wherefrom.methods.base import Method, Scores


@dataclass(frozen=True)
class Random(Method):
    """Random scores, the control; determined by input and seed."""

    name: ClassVar[str] = "random"
    seed: int = 0

    def scores(self, case: Case) -> Scores:
        values = torch.zeros(case.batch.mask.shape, dtype=torch.float64)
        for row, units in enumerate(case.batch.units):
            generator = torch.Generator().manual_seed(_checksum(case.batch, row) + self.seed)
            drawn = torch.randn(len(units), generator=generator, dtype=torch.float64)
            values[row, case.batch.mask[row]] = drawn
        return Scores(values)


def _checksum(inputs: Batch, row: int) -> int:
    """A checksum of the names of a sample's units and of its floats, if it has some."""
    checksum = zlib.crc32("\x1f".join(unit.text for unit in inputs.units[row]).encode())
    for name in inputs.fields:
        values = inputs.tensors[name]
        if values.is_floating_point():
            own = values[row]
            if (
                len(own) == inputs.mask.shape[1]
            ):  # without padding, so that it does not depend on the batch
                own = own[inputs.mask[row].to(own.device)]
            checksum = zlib.crc32(own.detach().cpu().double().numpy().tobytes(), checksum)
    return checksum
