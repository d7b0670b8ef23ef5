"""Passes on copies of the inputs of which some units are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wherefrom.core.runner import Batch
from wherefrom.core.target import Case
from wherefrom.errors import MethodError
from wherefrom.methods.embedded_inputs import (
    Budget,
    EmbeddedInputs,
    Pair,
    baseline_values,
    over_sources,
)
from wherefrom.methods.forward_pass import run
from wherefrom.tracing.observers.entry_points import Place

Baseline = str | int | Tensor
Present = Callable[[int, int], Tensor]  # sample, copy -> which units are present, (units,) bool
Outputs = Callable[[Sequence[Pair], Present], Iterator[tuple[list[Pair], Tensor]]]


@dataclass(frozen=True)
class MaskedInputs:
    """A batch, and the model's outputs for copies of it of which some units are missing."""

    case: Case  # with the most likely class as its target, if it had none
    logits: Tensor
    removable: Tensor  # (B, units) bool: units that differ from the baseline
    outputs: Outputs  # the target for each copy, chunk by chunk

    @property
    def whole(self) -> Tensor:
        """The target with all units, (B,)."""
        return self.case.target(self.logits).double().cpu()

    @staticmethod
    def of(case: Case, baseline: Baseline, at: Place = "embeddings") -> MaskedInputs:
        """The `baseline` replaces missing units; "remove" takes them out of the model's mask."""
        if isinstance(baseline, str) and baseline == "remove":
            return _removed(case)
        return _replaced(EmbeddedInputs.capture(case, at), baseline)


def _replaced(embedded: EmbeddedInputs, baseline: Baseline) -> MaskedInputs:
    blank = baseline_values(embedded, baseline)

    def outputs(pairs: Sequence[Pair], present: Present) -> Iterator[tuple[list[Pair], Tensor]]:
        def mixed(k: int, i: int, copy: int) -> Tensor:
            value = embedded.values[k][i]
            rows = torch.ones(1, len(value), dtype=torch.bool)
            rows = embedded.spans[k].rows_of(present(i, copy)[None], rows)
            return torch.where(rows[0, :, None], value, blank[k][i])

        return embedded.outputs(pairs, mixed)

    changes = [(v != b).any(-1) for v, b in zip(embedded.values, blank, strict=True)]
    removable = embedded.case.batch.mask.cpu() & (over_sources(embedded, changes) > 0)
    return MaskedInputs(embedded.case, embedded.logits, removable, outputs)


def _removed(case: Case) -> MaskedInputs:
    name = mask_name(case.batch)
    if name is None:
        raise MethodError(
            'the baseline "remove" needs a mask that tells the model which units exist; use "zero".'
        )
    logits = run(case)
    case = case.resolved(logits)

    def outputs(pairs: Sequence[Pair], present: Present) -> Iterator[tuple[list[Pair], Tensor]]:
        def target(rows: list[Pair]) -> Tensor:
            some = case.take([i for i, _ in rows])
            mask = some.batch.tensors[name]
            kept = torch.stack([present(i, copy) for i, copy in rows]).to(mask.device)
            batch = some.batch.with_tensors({name: mask * kept})
            return some.target(run(replace(some, batch=batch))).double().cpu()

        return Budget(case, gradients=False).chunks(pairs, target)

    return MaskedInputs(case, logits, case.batch.mask.cpu(), outputs)


def mask_name(inputs: Batch) -> str | None:
    """The name of the mask that tells the model which units are present; None without one."""
    for name in ("mask", "attention_mask"):
        mask = inputs.tensors.get(name)
        if mask is not None and mask.shape == inputs.mask.shape:
            return name
    return None
