"""A forward pass whose graph is kept: each backward pass explains a target."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from wherefrom.core.batching import RowsUnclear
from wherefrom.core.explanation import plural
from wherefrom.core.memory import is_out_of_memory
from wherefrom.core.runner import Batch, Case
from wherefrom.core.target import SpanTarget, Target
from wherefrom.errors import MethodError, NotConserved
from wherefrom.methods.base import Advance, Scores, by_sample, require_finite, warn_of_rounding
from wherefrom.methods.conservation_check import ConservationCheck, notes_on_cuts
from wherefrom.methods.forward_pass import ForwardPass, intercepted_forward
from wherefrom.methods.root import Rooted, RootPass
from wherefrom.tracing.observers.entry_points import Place, Relevance
from wherefrom.tracing.observers.ledger import LedgerEntry, LedgerRecorder
from wherefrom.tracing.tracer import Table

Key = tuple[str, str]  # module and kind of a ledger's entry
_MOST = 8  # backward passes at once; more are no faster on a CPU


@dataclass(frozen=True, eq=False)
class ForwardGraph:
    """A finished forward pass, and the scores of backward passes through its graph.

    The tracer is closed: torch and the model are as before. Blocks that the backward pass runs a
    second time open a tracer of their own.
    """

    table: Table
    case: Case
    forward: ForwardPass
    root: RootPass | None
    closes: bool  # whether the ledger must add up
    label: str

    @staticmethod
    def of(
        table: Table,
        case: Case,
        *,
        needs: str | None = None,
        ledger: bool = True,
        closes: bool = False,
        at: Place = "embeddings",
        label: str = "gradient × input",
        rooted: Rooted | None = None,
    ) -> ForwardGraph:
        """Runs the model; only the positions of the target matter."""
        root = None if rooted is None else RootPass.of(rooted, table, case, at)
        root_activations = None if root is None else root.root_activations
        with intercepted_forward(
            table,
            case,
            at=at,
            ledger=ledger,
            root_activations=root_activations,
        ) as forward:
            if needs:
                forward.need(needs)
        return ForwardGraph(table, case, forward, root, closes, label)

    @property
    def logits(self) -> Tensor:
        """The model's output, detached."""
        return self.forward.logits.detach()

    @cached_property
    def _root_values(self) -> list[Tensor] | None:
        return None if self.root is None else self.root.values(self.forward)

    def scores(self, target: Target, *, retain: bool = False, diagnosed: bool = True) -> Scores:
        """One backward pass: the scores of a target at the positions of the pass.

        With `retain` the graph is kept for further passes. If the ledger does not add up,
        `diagnosed` runs the model once more to find the call that loses relevance.
        """
        runner, recorder = self.forward.runner, self.forward.tracer.ledger
        recorder.entries = {}  # those of this target alone
        with runner.evaluating():
            forward = replace(self.forward, output=target(self.forward.logits))
            gradients = forward.at_sources(retain)
        if recorder.unclear is not None and len(self.case.batch) > 1:
            raise RowsUnclear(recorder.unclear)
        return self._scored(forward, gradients, target, diagnosed)

    def each(
        self, target: SpanTarget, places: range, advance: Advance | None = None
    ) -> list[Scores]:
        """The scores of each position of a target; `advance(done, all)` reports progress."""
        together, count = self._together(), len(places)
        rows: list[Scores] = []
        while len(rows) < count:
            part = places[len(rows) : len(rows) + together]
            try:
                rows += self._rows(target, part.start, part.stop)
            except RuntimeError as error:
                if together == 1 or not (_is_of_vmap(error) or is_out_of_memory(error)):
                    raise
                together = 1  # the same numbers, one backward pass after the other
            if advance is not None:
                advance(len(rows), count)
        return rows

    def _together(self) -> int:
        """How many backward passes memory suffices for at once.

        Blocks that are run a second time cannot be so within `torch.vmap`.
        """
        saved = self.forward.saved
        if saved.recomputes or len(self.case.batch) > 1:
            return 1
        each = 2 * saved.largest_block + 4 * self.forward.logits.nbytes
        allowed = self.forward.runner.allowed_memory - saved.bytes
        return max(1, min(_MOST, int(allowed / 2 / max(1, each))))

    def _rows(self, target: SpanTarget, first: int, last: int) -> list[Scores]:
        """The scores of each of the positions `first` to `last` − 1."""
        singles = [target.within(place, place + 1) for place in range(first, last)]
        if len(singles) == 1:  # the call that loses relevance is named for spans only
            return [self.scores(singles[0], retain=True, diagnosed=False)]
        recorder = self.forward.tracer.ledger
        with self.forward.runner.evaluating():
            outputs = target.within(first, last).terms(self.forward.logits)[0]
            forward = replace(self.forward, output=outputs)

            def backward(seed: Tensor) -> tuple[list[Tensor], dict[Key, Tensor], dict[Key, Tensor]]:
                recorder.entries = {}
                gradients = forward.at_sources(retain=True, seed=seed)
                entries = recorder.entries.items()
                totals = {key: entry.total for key, entry in entries}
                return gradients, totals, {k: e.places for k, e in entries if e.places is not None}

            seeds = torch.eye(len(singles), dtype=outputs.dtype, device=outputs.device)
            with warnings.catch_warnings():  # slow calls are correct too
                warnings.filterwarnings("ignore", "There is a performance drop")
                gradients, totals, places = torch.vmap(backward)(seeds)
        rows = []
        for row, single in enumerate(singles):
            recorder.entries = {
                key: LedgerEntry(total[row], places[key][row] if key in places else None)
                for key, total in totals.items()
            }
            own = replace(self.forward, output=outputs[row : row + 1])
            rows.append(self._scored(own, [g[row] for g in gradients], single, diagnosed=False))
        return rows

    def _scored(
        self, forward: ForwardPass, gradients: list[Tensor], target: Target, diagnosed: bool
    ) -> Scores:
        """The scores of a backward pass, with their parts and ledger lines."""
        recorder, output, inputs = forward.tracer.ledger, forward.output.detach(), self.case.batch
        root_activations = None if self.root is None else self.root.root_activations
        sources = forward.tracer.entry_points
        relevance = sources.relevance(gradients, self._root_values)
        at_root = None if self.root is None else relevance.root
        if self.root is not None and root_activations is not None:
            at_root = self.root.output(target.resolved(self.logits))
        kind = "root" if root_activations is None else "reference"
        scores = _collect(recorder, relevance, sources.length, self.logits, inputs, at_root, kind)
        require_finite(scores, self.label, self.case, recorder.last_finite())
        summed = relevance.summed * inputs.mask
        rounding = warn_of_rounding(self.label, scores.values, summed, output.dtype)
        offset = target.offset(self.logits)
        if offset is not None and root_activations is not None:
            raise MethodError(
                'secants at the "root" explain logits and contrasts; log-probabilities need '
                'secants at "zero".'
            )
        if offset is not None and scores.lines is not None:
            scores.lines["normaliser of the log-probability", "normaliser"] = offset.double().cpu()
        opened: dict[int, str] = {}
        if self.closes:
            closing = ConservationCheck(
                self.table,
                self.case.with_target(target),
                self.label,
                diagnosed and root_activations is None,
            )
            opened = closing.messages(scores, output.double().cpu(), forward)
            for message in list(opened.values())[:1]:  # one for the batch
                warnings.warn(message, NotConserved, stacklevel=2)
        cuts = notes_on_cuts(self.label, scores, forward.tracer, self.closes)
        return replace(scores, warnings=by_sample(len(inputs), rounding, *cuts, opened))


def _collect(
    recorder: LedgerRecorder,
    relevance: Relevance,
    width: int,
    logits: Tensor,
    inputs: Batch,
    at_root: Tensor | None,
    root_kind: str,
) -> Scores:
    noun = inputs.noun
    parts = {noun: relevance.units - relevance.biases}
    if bool(relevance.biases.any()):
        parts["norm"] = relevance.biases
    padding = relevance.others
    mask = inputs.mask.cpu()
    lines: dict[tuple[str, str], Tensor] = {}
    # the backward pass recorded the last module first
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
            totals[root_kind, root_kind] = at_root
    if at_root is not None:
        # a missing unit leaves its position: what positions add is not the unit's
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
    """The numbered block that a module belongs to.

    >>> layer_of("bert.encoder.layer.3.output.dense"), layer_of("bert.pooler.dense")
    ('bert.encoder.layer.3', 'bert.pooler')
    """
    path = where.split(".")
    for i, part in enumerate(path):
        if part.isdigit():
            return ".".join(path[: i + 1])
    return ".".join(path[:2]) or "model"


def _is_of_vmap(error: RuntimeError) -> bool:
    """Whether an error says that a call, such as a custom autograd Function, cannot be vmapped."""
    return "vmap" in str(error) or "Batching rule" in str(error)
