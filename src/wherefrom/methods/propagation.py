"""Gradient × input through a model whose calls are made locally linear by a table."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from wherefrom.explanation import plural
from wherefrom.methods.intercept import MixedRows, intercepted_forward
from wherefrom.methods.method import Method, Scores
from wherefrom.rules.ledger import LedgerRecorder
from wherefrom.rules.mode import Table
from wherefrom.rules.sources import Sources
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
) -> Scores:
    """One forward and one backward pass; scores with their parts and the ledger's lines."""
    with intercepted_forward(table, subject, inputs, target, ledger=ledger) as run:
        if needs:
            run.need(needs)
        gradients = run.at_sources()
    mixed = run.view.ledger.mixed or (ledger and run.view.sources.mixed)
    if mixed and len(inputs) > 1:
        raise MixedRows
    scores = _collect(run.view.ledger, run.view.sources, gradients, run.logits.detach(), inputs)
    if closes and len(inputs) > 1 and not _adds_up(scores, run.output.detach()):
        raise MixedRows  # of a matrix whose rows are not sample by sample
    return scores


def _adds_up(scores: Scores, output: Tensor) -> bool:
    """Whether the ledger closes for each sample, well within what rounding explains."""
    lines = torch.stack(list((scores.lines or {}).values()))
    gap = (lines.sum(0) - output.double().cpu()).abs()
    size = lines.abs().sum(0)
    return bool((gap <= size * (1e-6 if output.dtype == torch.float64 else 1e-3)).all())


def _collect(
    books: LedgerRecorder, sources: Sources, gradients: list[Tensor], logits: Tensor, inputs: Inputs
) -> Scores:
    words, padding = sources.relevance(gradients)
    parts = {inputs.noun: words}
    mask = inputs.mask
    lines: dict[tuple[str, str], Tensor] = {}
    width = sources.length
    # the backward pass met the last module first
    for (where, kind), entry in reversed(books.entries.items()):
        rest = entry.total.cpu()
        if entry.places is not None:
            part = parts.setdefault(kind, torch.zeros_like(words))
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
        totals[plural(kind), kind] = part.sum(1)
    if bool(padding.any()):
        totals["places of no unit", "padding"] = padding
    return Scores(
        values=torch.stack(list(parts.values())).sum(0),
        logits=logits,
        parts=parts,
        lines={**totals, **lines} if books.open else None,
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

    @abstractmethod
    def table(self) -> Table:
        """The table of this method."""

    def scores(self, subject: Subject, inputs: Inputs, target: Target) -> Scores:
        return propagate(self.table(), subject, inputs, target, self.needs, closes=self.closes)


@dataclass(frozen=True)
class GradientXInput(Propagation):
    """Gradient × input: the first-order guess at what each unit contributes."""

    name: ClassVar[str] = "gradient_x_input"
    paper: ClassVar[str] = "Shrikumar et al. 2017"

    def table(self) -> Table:
        return TABLES["plain"]


@dataclass(frozen=True)
class LrpAh(Propagation):
    """Gradient × input with attention weights held constant (AH rule)."""

    name: ClassVar[str] = "lrp_ah"
    paper: ClassVar[str] = "Ali et al. 2022"
    needs: ClassVar[str | None] = "attention"

    def table(self) -> Table:
        return TABLES["ah"]


@dataclass(frozen=True)
class LrpAhLn(Propagation):
    """Gradient × input with attention weights and norm scales held constant (AH and LN rules)."""

    name: ClassVar[str] = "lrp_ah_ln"
    paper: ClassVar[str] = "Ali et al. 2022"
    needs: ClassVar[str | None] = "attention"

    def table(self) -> Table:
        return TABLES["ah_ln"]


@dataclass(frozen=True)
class Lrp(Propagation):
    """Conservative propagation: AH and LN rules, secant activations, frozen gates; it adds up."""

    name: ClassVar[str] = "lrp"
    paper: ClassVar[str] = "Ali et al. 2022, closed"
    closes: ClassVar[bool] = True
    gate: Literal["frozen", "shared"] = "frozen"

    def table(self) -> Table:
        return TABLES["conservative" if self.gate == "frozen" else "conservative_shared"]


@dataclass(frozen=True)
class AttnLrp(Propagation):
    """AttnLRP: relevance through the softmax as well, products shared."""

    name: ClassVar[str] = "attn_lrp"
    paper: ClassVar[str] = "Achtibat et al. 2024"
    needs: ClassVar[str | None] = "attention"

    def table(self) -> Table:
        return TABLES["attn_lrp"]
