"""Gradient × input through a model whose calls are made locally linear by a table."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from wherefrom.errors import NotConserved
from wherefrom.explanation import plural
from wherefrom.methods.intercept import At, ForwardPass, intercepted_forward, read_at
from wherefrom.methods.method import Method, RowsUnclear, Scores, warn_of_rounding
from wherefrom.rules.conservation import Balance, ConservationCheck
from wherefrom.rules.ledger import LedgerRecorder
from wherefrom.rules.mode import Table
from wherefrom.rules.sources import Place, Relevance
from wherefrom.rules.tables import TABLES
from wherefrom.subject import Inputs, Subject
from wherefrom.target import Target


def propagate(
    table: Table,
    subject: Subject,
    inputs: Inputs,
    target: Target,
    needs: str | None = None,
    ledger: bool = True,
    closes: bool = False,
    at: Place = "lookup",
    label: str = "gradient × input",
) -> Scores:
    """One forward and one backward pass; scores with their parts and the ledger's lines."""
    with intercepted_forward(table, subject, inputs, target, at=at, ledger=ledger) as forward:
        if needs:
            forward.need(needs)
        gradients = forward.at_sources()
    recorder, output = forward.view.ledger, forward.output.detach()
    if recorder.unclear is not None and len(inputs) > 1:
        raise RowsUnclear(recorder.unclear)
    relevance = forward.view.sources.relevance(gradients)
    scores = _collect(
        recorder, relevance, forward.view.sources.length, forward.logits.detach(), inputs
    )
    rounding = warn_of_rounding(label, scores.values, relevance.summed * inputs.mask, output.dtype)
    opened: dict[int, str] = {}
    if closes:
        opened = _warn_if_open(
            _Closing(table, subject, inputs, target, label), scores, output.double().cpu(), forward
        )
    samples = range(len(inputs)) if rounding or opened else ()
    return replace(
        scores,
        warnings=tuple(
            tuple(messages[i] for messages in (rounding, opened) if i in messages) for i in samples
        ),
    )


# what rounding may leave open, as a share of what is added up: far above what was ever seen of
# the number type in use, far below what a missing rule or rows in the wrong sample leave
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
_ROUNDINGS = 10  # of a narrower number type
_DETACHED = 0.01  # less, as of weights that are rounded on the way, is no other explanation


def _tolerance(dtype: torch.dtype) -> float:
    return _TOLERANCE.get(dtype) or _ROUNDINGS * torch.finfo(dtype).eps


@dataclass(frozen=True)
class _Closing:
    """A pass whose ledger must add up to the output."""

    table: Table
    subject: Subject
    inputs: Inputs
    target: Target
    label: str

    def first_open(self, sample: int, allowed: float) -> tuple[float, Balance | None]:
        """The sum of the ledger of one sample by itself, and the first call that loses."""
        inputs, target = self.inputs.take([sample]), self.target.take([sample])
        with intercepted_forward(
            self.table, self.subject, inputs, target, ledger=True, mode=ConservationCheck
        ) as forward:
            gradients = forward.at_sources()
        view = forward.view
        assert isinstance(view, ConservationCheck)
        relevance = view.sources.relevance(gradients)
        constants = sum(float(entry.total.sum()) for entry in view.ledger.entries.values())
        units = float(relevance.units.sum() + relevance.others.sum())
        return units + constants, view.first_open(allowed)


def _warn_if_open(
    closing: _Closing, scores: Scores, output: Tensor, forward: ForwardPass
) -> dict[int, str]:
    """Warns where the ledger misses the output by more than rounding; the warning by sample."""
    assert scores.lines is not None
    lines = torch.stack(list(scores.lines.values()))  # (lines, B)
    # what rounding is in proportion to: scores that cancel are larger than their sum
    added = torch.stack([lines.abs().sum(0), scores.values.abs().sum(1).cpu(), output.abs()])
    sizes = added.amax(0).clamp_min(1e-300)
    tolerance = max(map(_tolerance, {forward.output.dtype, *forward.view.precisions}))
    residual = output - lines.sum(0)
    detached = torch.zeros_like(output)
    for (_, kind), values in scores.lines.items():
        detached += values if kind == "detached" else 0
    lost = residual.abs() > tolerance * sizes
    cut = detached.abs() > _DETACHED * sizes
    messages: dict[int, str] = {}
    if bool(lost.any()):
        worst = int((residual.abs() / sizes).argmax())
        allowed = tolerance * float(sizes[worst])
        total, first = closing.first_open(worst, allowed)
        if len(output) > 1 and abs(total - float(lines[:, worst].sum())) > allowed:
            share = float((residual.abs() / sizes)[worst])
            raise RowsUnclear(f"the ledger of a batch misses the output by {share:.1%}")
        for i in lost.nonzero().flatten().tolist():
            messages[i] = _not_conserved(closing.label, output[i], residual[i], first, tolerance)
    for i in (cut & ~lost).nonzero().flatten().tolist():
        share = abs(float(detached[i])) / max(abs(float(output[i])), 1e-30)
        messages[i] = (
            f"{closing.label}: the units have no part of {float(detached[i]):.3g}, {share:.1%} of "
            f"the output, though it depends on them: the gradient ends {forward.view.detached[0]}. "
            'Let it pass there, or compare with method="occlusion".'
        )
    for message in list(messages.values())[:1]:  # one for the batch
        warnings.warn(message, NotConserved, stacklevel=2)
    return messages


def _not_conserved(
    label: str, output: Tensor, residual: Tensor, first: Balance | None, tolerance: float
) -> str:
    share = abs(float(residual)) / max(abs(float(output)), 1e-30)
    place = "" if first is None else f" It opens {first}, which has no rule that conserves."
    remedy = (
        "Run the model in float32"
        if first is None and tolerance > 1e-3
        else 'Compare with method="integrated_gradients" or "occlusion", which need no rules'
    )
    return (
        f"{label}: the ledger does not add up to the output {float(output):.4g}; the residual is "
        f"{float(residual):.3g}, {share:.1%} of it.{place} {remedy}."
    )


def _collect(
    recorder: LedgerRecorder,
    relevance: Relevance,
    width: int,
    logits: Tensor,
    inputs: Inputs,
) -> Scores:
    parts = {inputs.noun: relevance.units - relevance.biases}
    if bool(relevance.biases.any()):
        parts["norm"] = relevance.biases
    padding = relevance.others
    mask = inputs.mask.cpu()
    lines: dict[tuple[str, str], Tensor] = {}
    # the backward pass met the last module first
    for (where, kind), entry in reversed(recorder.entries.items()):
        rest = entry.total.cpu()
        if entry.places is not None:
            part = parts.setdefault(kind, torch.zeros_like(relevance.units))
            placed = entry.places.cpu()[:, :width]
            part[:, :width] += placed
            rest = rest - placed.sum(1)
        if entry.places is None or bool((rest.abs() > 1e-12 * entry.total.abs().cpu()).any()):
            key = (layer_of(where), kind)
            lines[key] = lines.get(key, 0) + rest
    totals: dict[tuple[str, str], Tensor] = {}
    for kind, part in parts.items():
        padding += (part * ~mask).sum(1)
        part *= mask
        totals["embedding norm" if kind == "norm" else plural(kind), kind] = part.sum(1)
    if bool(padding.any()):
        totals["places of no unit", "padding"] = padding
    return Scores(
        values=torch.stack(list(parts.values())).sum(0),
        logits=logits,
        parts=parts,
        lines={**totals, **lines} if recorder.enabled else None,
    )


def layer_of(where: str) -> str:
    """The block that a module belongs to, by its number.

    >>> layer_of("bert.encoder.layer.3.output.dense"), layer_of("bert.pooler.dense")
    ('bert.encoder.layer.3', 'bert.pooler')
    """
    path = where.split(".")
    for i, part in enumerate(path):
        if part.isdigit():
            return ".".join(path[: i + 1])
    return ".".join(path[:2]) or "model"


class Propagation(Method):
    """Gradient × input under a table."""

    needs: ClassVar[str | None] = None
    closes: ClassVar[bool] = False  # whether the ledger of this method adds up
    at: At

    @abstractmethod
    def table(self) -> Table:
        """The table of this method."""

    def scores(self, subject: Subject, inputs: Inputs, target: Target) -> Scores:
        def run(place: Place) -> Scores:
            return propagate(
                self.table(),
                subject,
                inputs,
                target,
                self.needs,
                closes=self.closes,
                at=place,
                label=self.label,
            )

        return read_at(self.at, inputs, run)


@dataclass(frozen=True)
class GradientXInput(Propagation):
    """Gradient × input: the first-order estimate of what each unit contributes."""

    name: ClassVar[str] = "gradient_x_input"
    paper: ClassVar[str] = "Shrikumar et al. 2017"
    at: At = "auto"

    def table(self) -> Table:
        return TABLES["plain"]


@dataclass(frozen=True)
class LrpAh(Propagation):
    """Gradient × input with attention weights held constant (AH rule)."""

    name: ClassVar[str] = "lrp_ah"
    paper: ClassVar[str] = "Ali et al. 2022"
    needs: ClassVar[str | None] = "attention"
    at: At = "auto"

    def table(self) -> Table:
        return TABLES["ah"]


@dataclass(frozen=True)
class LrpAhLn(Propagation):
    """Gradient × input with attention weights and norm scales held constant (AH and LN rules)."""

    name: ClassVar[str] = "lrp_ah_ln"
    paper: ClassVar[str] = "Ali et al. 2022"
    needs: ClassVar[str | None] = "attention"
    at: At = "auto"

    def table(self) -> Table:
        return TABLES["ah_ln"]


@dataclass(frozen=True)
class Lrp(Propagation):
    """Conservative propagation: AH and LN rules, secant activations, frozen gates; it adds up."""

    name: ClassVar[str] = "lrp"
    paper: ClassVar[str] = "Ali et al. 2022, closed"
    closes: ClassVar[bool] = True
    gate: Literal["frozen", "shared"] = "frozen"
    at: At = "lookup"

    def table(self) -> Table:
        return TABLES["conservative" if self.gate == "frozen" else "conservative_shared"]


@dataclass(frozen=True)
class AttnLrp(Propagation):
    """AttnLRP: relevance through the softmax as well, products shared."""

    name: ClassVar[str] = "attn_lrp"
    paper: ClassVar[str] = "Achtibat et al. 2024"
    needs: ClassVar[str | None] = "attention"
    at: At = "lookup"

    def table(self) -> Table:
        return TABLES["attn_lrp"]
