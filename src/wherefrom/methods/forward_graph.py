"""A forward pass whose graph is kept: each backward pass explains a target."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from wherefrom.core.explanation import plural
from wherefrom.core.memory import is_out_of_memory
from wherefrom.core.runner import Batch, RowsUnclear
from wherefrom.core.target import Case, SpanTarget, Target
from wherefrom.errors import MethodError, NotConserved
from wherefrom.methods.base import (
    Advance,
    Notes,
    Scores,
    by_sample,
    notes_on_zeros,
    require_finite,
    warn_of_rounding,
)
from wherefrom.methods.forward_pass import ForwardPass, intercepted_forward
from wherefrom.methods.root import Rooted, RootPass
from wherefrom.tracing.observers import Observer
from wherefrom.tracing.observers.balances import Balance, Balances
from wherefrom.tracing.observers.entry_points import Place, Relevance
from wherefrom.tracing.observers.ledger import LedgerEntry, LedgerRecorder
from wherefrom.tracing.tracer import RootActivations, Table, Tracer

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
    constants: bool = True  # constants are in the ledger, each for the rows of a sample

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
        together = self.constants and len(self.case.batch) > 1
        limit = _MIXED * tolerance if together else tolerance
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


def _notes_on_cuts(
    label: str, gradients: list[Tensor], scores: Scores, tracer: Tracer, closes: bool
) -> list[Notes]:
    """Caveats of each sample on gradients that end, and on numbers that leave the graph."""
    # scores are zero without a caveat where the input is equal to the root
    sizes = torch.stack([gradient.abs().flatten(1).sum(1).cpu() for gradient in gradients], 1)
    notes = [notes_on_zeros(label, sizes)]
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
        observer: Callable[[RootActivations | None], Observer] | None = None,
    ) -> ForwardGraph:
        """Runs the model; only the positions of the target matter.

        `observer` makes one for each pass: at the root of secants, and at the input.
        """

        def run(root: RootPass | None) -> ForwardPass:
            root_activations = None if root is None else root.root_activations
            with intercepted_forward(
                table,
                case,
                at=at,
                change=None if rooted is None else rooted.end(case.batch),
                ledger=ledger,
                root_activations=root_activations,
                observers=[] if observer is None else [observer(root_activations)],
            ) as forward:
                if needs:
                    forward.need(needs)
            return forward

        with case.runner.evaluating():  # once for all passes
            root = (
                None if rooted is None else RootPass.of(rooted, table, case, at, observer=observer)
            )
            forward = run(root)
            if rooted is not None and root is not None and root.left_route:
                del forward  # its graph leads through the root alone
                root = RootPass.of(rooted, table, case, at, own_route=root, observer=observer)
                forward = run(root)
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
        recorder.entries, recorder.by_moment = {}, {}  # those of this target alone
        with runner.evaluating():
            forward = replace(self.forward, output=target(self.forward.logits))
            gradients = forward.at_sources(retain)
        if recorder.unclear is not None and len(self.case.batch) > 1:
            raise RowsUnclear(recorder.unclear)
        return self._scored(forward, gradients, target, diagnosed)

    def scores_of(self, forward: ForwardPass, gradients: list[Tensor]) -> Scores:
        """The scores of a part of the output, without what it is at the reference of secants."""
        sources, recorder = forward.tracer.entry_points, forward.tracer.ledger
        relevance = sources.relevance(gradients, self._root_values)
        secants = self.root is not None and self.root.root_activations is not None
        at_root = None if self.root is None or secants else relevance.root
        batch, length = self.case.batch, sources.length
        return _collect(recorder, relevance, length, self.logits, batch, at_root, "root")

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
        route = None
        if self.root is not None and root_activations is not None:
            resolved = target.resolved(self.logits)
            at_root = self.root.output(resolved)
            if self.root.own_route is not None:
                own = self.root.own_route.output(resolved)
                route, at_root = at_root - own, own
        kind = "root" if root_activations is None else "reference"
        scores = _collect(recorder, relevance, sources.length, self.logits, inputs, at_root, kind)
        require_finite(scores, self.label, self.case, recorder.last_finite())
        summed = relevance.summed * inputs.mask
        rounding = warn_of_rounding(self.label, scores.values, summed, output.dtype)
        if route is not None and scores.lines is not None:
            scores.lines["the input's route at the reference", "route"] = route
        offset = target.offset(self.logits)
        if offset is not None and root_activations is not None:
            raise MethodError(
                "secant explains logits and contrasts; lrp explains log-probabilities too."
            )
        if offset is not None and scores.lines is not None:
            scores.lines["normaliser of the log-probability", "normaliser"] = offset.double().cpu()
        opened: dict[int, str] = {}
        if self.closes:
            closing = ConservationCheck(
                self.table,
                self.case.with_target(target),
                self.label,
                diagnosed=diagnosed and root_activations is None,
                constants=root_activations is None,
            )
            opened = closing.messages(scores, output.double().cpu(), forward)
            for message in list(opened.values())[:1]:  # one for the batch
                warnings.warn(message, NotConserved, stacklevel=2)
        cuts = _notes_on_cuts(self.label, gradients, scores, forward.tracer, self.closes)
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
