"""Checks that a ledger adds up to the output within the precision in use."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from wherefrom.core.batching import RowsUnclear
from wherefrom.core.memory import is_out_of_memory
from wherefrom.core.runner import Case
from wherefrom.methods.base import Notes, Scores, notes_on_zeros
from wherefrom.methods.forward_pass import ForwardPass, intercepted_forward
from wherefrom.tracing.observers.balances import Balance, Balances
from wherefrom.tracing.tracer import Table, Tracer

# the residual allowed for rounding, relative to the terms: far above all rounding errors that were
# measured, far below the residual of a missing rule or of mixed samples
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
_ROUNDINGS = 10  # machine epsilons of narrower types
_MIXED = 0.1  # of the tolerance: beyond it a batch is compared with one of its samples alone
_DETACHED = 0.01  # a smaller detached share, such as that of rounded weights, is no warning


def _tolerance(dtype: torch.dtype) -> float:
    return _TOLERANCE.get(dtype) or _ROUNDINGS * torch.finfo(dtype).eps


@dataclass(frozen=True)
class ConservationCheck:
    """Checks a pass whose ledger must add up to the output."""

    table: Table
    case: Case
    label: str
    diagnosed: bool = True  # find the call that loses relevance by a second pass

    def _first_open(
        self, sample: int, total: float, allowed: float, share: Tensor
    ) -> Balance | None:
        """The first call that loses relevance when a sample runs alone; None if it is unknown.

        Raises `RowsUnclear` if the ledger of the sample alone has another sum.
        """
        unclear = RowsUnclear(
            f"the ledger of a batch misses the output by {100 * float(share.abs()[sample]):.1f} %"
        )
        if not self.diagnosed:
            if len(self.case.batch) > 1:
                raise unclear
            return None
        balances = Balances()
        try:
            with intercepted_forward(
                self.table, self.case.take([sample]), ledger=True, observers=[balances]
            ) as forward:
                gradients = forward.at_sources()
        except Exception as error:  # it needs more memory than the pass itself
            if not is_out_of_memory(error):
                raise
            if len(self.case.batch) > 1:
                raise unclear from None
            return None
        tracer = forward.tracer
        relevance = tracer.entry_points.relevance(gradients)
        constants = sum(float(entry.total.sum()) for entry in tracer.ledger.entries.values())
        units = float(relevance.units.sum() + relevance.others.sum())
        if len(self.case.batch) > 1 and abs(units + constants - total) > allowed:
            raise unclear
        return balances.first_open(allowed)

    def messages(self, scores: Scores, output: Tensor, forward: ForwardPass) -> dict[int, str]:
        """The warnings of samples whose ledger misses the output by more than rounding."""
        assert scores.lines is not None
        lines = torch.stack(list(scores.lines.values()))  # (lines, B)
        # rounding is proportional to the terms, which can cancel in the sum
        added = torch.stack([lines.abs().sum(0), scores.values.abs().sum(1).cpu(), output.abs()])
        sizes = added.amax(0).clamp_min(1e-300)
        tolerance = max(map(_tolerance, {forward.output.dtype, *forward.tracer.ledger.precisions}))
        residual = output - lines.sum(0)
        detached = torch.zeros_like(output)
        for (_, kind), values in scores.lines.items():
            detached += values if kind == "detached" else 0
        lost = ~(residual.abs() <= tolerance * sizes)  # NaN too
        broken = detached.abs() > _DETACHED * sizes
        # rows in the wrong sample can open a ledger by less than what rounding may
        limit = tolerance if len(self.case.batch) == 1 else _MIXED * tolerance
        messages: dict[int, str] = {}
        if bool((~(residual.abs() <= limit * sizes)).any()):
            worst = int((residual.abs() / sizes).argmax())
            allowed = limit * float(sizes[worst])
            first = None
            if math.isfinite(allowed):
                total = float(lines[:, worst].sum())
                first = self._first_open(worst, total, allowed, residual / sizes)
            for i in lost.nonzero().flatten().tolist():
                messages[i] = _not_conserved(self.label, output[i], residual[i], first, tolerance)
        for i in (broken & ~lost).nonzero().flatten().tolist():
            share = 100 * abs(float(detached[i])) / max(abs(float(output[i])), 1e-30)
            messages[i] = (
                f"{self.label}: the scores miss {float(detached[i]):.3g}, {share:.1f} % of the "
                "output, which depends on the units without a gradient: it ends "
                f"{forward.tracer.ledger.detached[0]}. Let it pass there, or compare with the "
                "method occlusion."
            )
        return messages


def notes_on_cuts(label: str, scores: Scores, tracer: Tracer, closes: bool) -> list[Notes]:
    """Caveats of each sample on gradients that end, and on numbers that leave the graph."""
    notes = [notes_on_zeros(label, scores.values)]
    if tracer.cut is not None:
        message = (
            f"{label}: the gradient of numbers that depend on the units ends {tracer.cut}: what "
            "the model computes from the result gets no relevance."
        )
        notes.append(dict.fromkeys(range(len(scores.values)), message))
    lines = scores.lines or {}
    detached = [values for (_, kind), values in lines.items() if kind == "detached"]
    if detached and not closes:  # or the check says so
        total = torch.stack(detached).sum(0)
        notes.append(
            {
                i: f"{label}: {float(total[i]):.3g} of the output depends on the units without a "
                f"gradient, which ends {tracer.ledger.detached[0]}."
                for i in total.nonzero().flatten().tolist()
            }
        )
    return notes


def _not_conserved(
    label: str, output: Tensor, residual: Tensor, first: Balance | None, tolerance: float
) -> str:
    share = 100 * abs(float(residual)) / max(abs(float(output)), 1e-30)
    place = "" if first is None else f" Relevance is lost {first}, for which there is no rule."
    remedy = (
        "Run the model in float32"
        if first is None and tolerance > 1e-3
        else "Compare with integrated_gradients or occlusion, which need no rules"
    )
    return (
        f"{label}: the ledger does not add up to the output {float(output):.4g}; the residual is "
        f"{float(residual):.3g}, {share:.1f} % of it.{place} {remedy}."
    )
