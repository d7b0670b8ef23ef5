"""Gradient × input through a model whose calls are made locally linear by a table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from wherefrom.errors import MethodError
from wherefrom.explanation import plural
from wherefrom.methods.closing import Closing
from wherefrom.methods.intercept import At, ForwardPass, intercepted_forward, read_at
from wherefrom.methods.method import (
    Advance,
    Method,
    RowsUnclear,
    Scores,
    by_sample,
    warn_of_rounding,
)
from wherefrom.methods.root import Root, Rooted, RootPass
from wherefrom.rules.ledger import LedgerRecorder
from wherefrom.rules.mode import Table
from wherefrom.rules.needed_rows import RowsRead
from wherefrom.rules.sources import Place, Relevance
from wherefrom.rules.tables import TABLES, conservative
from wherefrom.scope import restores_state
from wherefrom.subject import Inputs, Subject
from wherefrom.target import SpanTarget, Target
from wherefrom.torch_internals import without_function_modes

Result = TypeVar("Result")


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
    rooted: Rooted | None = None,
    narrow: bool = False,
) -> Scores:
    """One forward and one backward pass; scores with their parts and the ledger's lines."""
    root = None if rooted is None else RootPass.of(rooted, table, subject, inputs, target, at)
    tape = None if root is None else root.tape
    with intercepted_forward(
        table,
        subject,
        inputs,
        target,
        at=at,
        ledger=ledger,
        tape=tape,
        narrow=narrow and tape is None,
    ) as forward:
        if needs:
            forward.need(needs)
        gradients = forward.at_sources()
    closing = None
    if closes:
        closing = Closing(table, subject, inputs, target, label, diagnosed=tape is None)
    return _scored(forward, gradients, inputs, target, label, root, closing)


def propagate_each(
    table: Table,
    subject: Subject,
    inputs: Inputs,
    target: SpanTarget,
    needs: str | None = None,
    closes: bool = False,
    at: Place = "lookup",
    label: str = "gradient × input",
    rooted: Rooted | None = None,
    narrow: bool = False,
    advance: Advance | None = None,
) -> list[Scores]:
    """`propagate` for each place of a span: one forward pass, then a backward pass for each."""
    assert target.position is not None
    root = None if rooted is None else RootPass.of(rooted, table, subject, inputs, target, at)
    tape = None if root is None else root.tape
    count = target.position.shape[1]
    rows: list[Scores] = []
    with intercepted_forward(
        table,
        subject,
        inputs,
        target,
        at=at,
        ledger=True,
        tape=tape,
        narrow=narrow and tape is None,
    ) as forward:
        if needs:
            forward.need(needs)
        for row in range(count):
            single = target.only(row)
            with without_function_modes():  # choosing a logit is no call of the model
                output = single(forward.logits)
            forward.view.ledger.entries = {}  # lines of this row alone
            backward = replace(forward, output=output)
            gradients = backward.at_sources(retain=row + 1 < count)
            closing = None
            if closes:  # which call loses is said of the span, if at all
                closing = Closing(table, subject, inputs, single, label, diagnosed=False)
            with without_function_modes():
                rows.append(_scored(backward, gradients, inputs, single, label, root, closing))
            if advance is not None:
                advance(row + 1, count)
    return rows


def _scored(
    forward: ForwardPass,
    gradients: list[Tensor],
    inputs: Inputs,
    target: Target,
    label: str,
    root: RootPass | None,
    closing: Closing | None,
) -> Scores:
    """What a backward pass gave: scores with their parts and the ledger's lines."""
    recorder, output = forward.view.ledger, forward.output.detach()
    if recorder.unclear is not None and len(inputs) > 1:
        raise RowsUnclear(recorder.unclear)
    sources = forward.view.sources
    relevance = sources.relevance(gradients, None if root is None else root.values(forward))
    logits = forward.logits.detach()
    at_root = None if root is None else relevance.root
    if root is not None and root.tape is not None:
        at_root = root.output(target.resolved(logits))
    scores = _collect(recorder, relevance, sources.length, logits, inputs, at_root)
    rounding = warn_of_rounding(label, scores.values, relevance.summed * inputs.mask, output.dtype)
    offset = target.offset(logits)
    if offset is not None and root is not None and root.tape is not None:
        raise MethodError(
            'secants="root" explains logits and contrasts; log-probabilities need secants="zero".'
        )
    if offset is not None and scores.lines is not None:
        scores.lines["normaliser of the log-probability", "normaliser"] = offset.double().cpu()
    opened: dict[int, str] = {}
    if closing is not None:
        opened = closing.warn_if_open(scores, output.double().cpu(), forward)
    return replace(scores, warnings=by_sample(len(inputs), rounding, opened))


def _collect(
    recorder: LedgerRecorder,
    relevance: Relevance,
    width: int,
    logits: Tensor,
    inputs: Inputs,
    at_root: Tensor | None,
) -> Scores:
    noun = inputs.noun
    parts = {noun: relevance.units - relevance.biases}
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
        if kind == noun and at_root is not None:
            totals["root", "root"] = at_root
    if at_root is not None:
        # places are as they were when a unit is missing: what they add is not the unit's
        parts = {noun: parts[noun]}
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
    """Gradient × (input − root) under a table."""

    needs: ClassVar[str | None] = None
    closes: ClassVar[bool] = False  # whether the ledger of this method adds up
    at: At

    @abstractmethod
    def table(self) -> Table:
        """The table of this method."""

    def rooted(self, inputs: Inputs) -> Rooted | None:
        """The root that these inputs are compared with, if any."""
        root: Root = getattr(self, "root", None)
        return None if root is None else Rooted(root)

    def scores(self, subject: Subject, inputs: Inputs, target: Target) -> Scores:
        return self._propagated(propagate, subject, inputs, target)

    @restores_state
    def each(
        self,
        subject: Subject,
        inputs: Inputs,
        target: SpanTarget,
        advance: Advance | None = None,
    ) -> list[Scores]:
        return self._propagated(propagate_each, subject, inputs, target, advance=advance)

    def _propagated(
        self,
        run: Callable[..., Result],
        subject: Subject,
        inputs: Inputs,
        target: Target | SpanTarget,
        **more: Any,
    ) -> Result:
        """What `run` gives of a pass under this method's table, read where `at` says."""
        method = self.resolved(inputs)
        assert isinstance(method, Propagation)

        def at_place(place: Place) -> Result:
            return run(
                method.table(),
                subject,
                inputs,
                target,
                self.needs,
                closes=self.closes,
                at=place,
                label=self.label,
                rooted=method.rooted(inputs),
                narrow=True,
                **more,
            )

        try:
            return read_at(self.at, inputs, at_place)
        except RowsRead:  # from now on all rows of this model are computed
            return read_at(self.at, inputs, at_place)


@dataclass(frozen=True)
class GradientXInput(Propagation):
    """Gradient × input: the first-order estimate of what each unit contributes."""

    name: ClassVar[str] = "gradient_x_input"
    paper: ClassVar[str] = "Shrikumar et al. 2017"
    at: At = "auto"
    root: Root = None

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
    root: Root = None

    def table(self) -> Table:
        return TABLES["ah_ln"]


@dataclass(frozen=True)
class Lrp(Propagation):
    """Conservative propagation: AH and LN rules, secant activations, shared gates; it adds up.

    `attention` is the share of the relevance of an attention layer that goes to its weights: 0 is
    the AH rule, ½ that of AttnLRP. "auto" is what was most faithful for the kind of input: of
    tokens the AH rule and the root that their reader names, of pixels and nodes a share of ¼ and
    no root.
    """

    name: ClassVar[str] = "lrp"
    paper: ClassVar[str] = "Ali et al. 2022, closed"
    closes: ClassVar[bool] = True
    gate: Literal["frozen", "shared"] = "shared"
    attention: float | Literal["auto"] = "auto"
    at: At = "lookup"
    root: Root = "auto"
    secants: Literal["zero", "root"] = "zero"

    def __post_init__(self) -> None:
        share = self.attention
        if share != "auto" and not (isinstance(share, (int, float)) and 0 <= share <= 1):
            raise MethodError(f'attention must be "auto" or from 0 to 1, got {share!r}.')
        if share not in ("auto", 0) and self.secants == "root":
            raise MethodError('attention= must be 0 with secants="root".')

    def resolved(self, inputs: Inputs) -> Lrp:
        attention = self.attention
        if attention == "auto":
            numbers = any(inputs.tensors[name].is_floating_point() for name in inputs.fields)
            attention = 0.25 if numbers and self.secants == "zero" else 0.0
        root = inputs.missing if isinstance(self.root, str) and self.root == "auto" else self.root
        return replace(self, attention=attention, root=root)

    def table(self) -> Table:
        if self.secants == "root":
            return TABLES["two_points"]
        assert self.attention != "auto"
        return conservative(self.gate, self.attention)

    def rooted(self, inputs: Inputs) -> Rooted | None:
        if self.root is None:
            if self.secants == "root":
                raise MethodError('secants="root" needs a root, such as root="mean".')
            return None
        return Rooted(self.root, self.secants == "root")


@dataclass(frozen=True)
class AttnLrp(Propagation):
    """AttnLRP: relevance through the softmax as well, products shared; it adds up."""

    name: ClassVar[str] = "attn_lrp"
    paper: ClassVar[str] = "Achtibat et al. 2024"
    needs: ClassVar[str | None] = "attention"
    closes: ClassVar[bool] = True
    at: At = "lookup"
    root: Root = None

    def table(self) -> Table:
        return TABLES["attn_lrp"]
