"""Attention as explanation: the last map, rollout, flow, and their gradient-weighted kin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from wherefrom.errors import MethodError, ModelError
from wherefrom.explanation import plural
from wherefrom.inputs.patches import EXTRA_TOKENS
from wherefrom.methods.flow import flows
from wherefrom.methods.intercept import intercepted_forward
from wherefrom.methods.method import Method, Scores
from wherefrom.rules.maps import Map, Maps, Replace
from wherefrom.rules.sources import Span
from wherefrom.rules.tables import PLAIN
from wherefrom.subject import Inputs, Subject
from wherefrom.target import Target

Readout = Literal["auto", "all"]
State = dict[int, Tensor]  # what each field's places hold, (B, T)


@dataclass(frozen=True)
class Captured:
    """The attention of one pass: maps, their gradients, and which rows the head reads.

    `spans` says for each stream that maps run between which units its places hold.
    """

    maps: list[Tensor]  # each (B, heads, query, key)
    ways: list[tuple[int, int]]  # the fields of each map's queries and keys
    gradients: list[Tensor]
    readout: Tensor  # (B, query) of the last map, each row adding to 1
    spans: dict[int, Span]  # by stream
    valid: Tensor  # (B, query): 1 where the row is no padding
    logits: Tensor
    units: int

    def start(self, readout: Readout) -> State:
        """The rows that are read, as the state that travels back through the maps."""
        last = self.ways[-1][0]
        rows = self.valid if readout == "all" else self.readout
        state = {number: torch.zeros_like(rows[:, :0]) for number in self.spans}
        for (query, key), each in zip(self.ways, self.maps, strict=True):
            for number, size in ((query, each.shape[2]), (key, each.shape[3])):
                state[number] = rows.new_zeros(len(rows), size)
        state[last] = rows
        return state

    def to_units(self, state: State) -> Tensor:
        """What the fields' places hold, as numbers of the units, (B, units)."""
        total = torch.zeros(len(self.readout), self.units, dtype=torch.float64)
        for number, span in self.spans.items():
            if number in state:
                span.add_to(total, state[number])
        return total


def capture(
    subject: Subject,
    inputs: Inputs,
    target: Target,
    *,
    gradients: bool,
    replace: Replace | None = None,
    of: Sequence[int] | None = None,
) -> Captured:
    """Runs the model and keeps its attention, with the gradients of all maps or of some."""
    if inputs.layout is not None and not inputs.layout.cut:
        raise ModelError(
            f"{subject.name} attends from patch to patch, and no attention method can tell the "
            f'{plural(inputs.noun)} within one apart. Leave units= out, or try method="lrp".'
        )
    maps = Maps(len(inputs), replace)
    with intercepted_forward(PLAIN, subject, inputs, target, maps=maps) as forward:
        forward.need("attention")
        attention = maps.seen
        if maps.last is None:
            raise ModelError(
                f"{subject.name} has attention, but no state with a row for each place follows "
                "it, so it cannot be told which rows its head reads."
            )
        count = len(attention)
        chosen = range(count) if of is None else [range(count)[i] for i in of]
        wanted = [attention[i].weights for i in chosen] if gradients else []
        *of_maps, of_last = forward.gradients([*wanted, maps.last])
    read = (maps.last.detach() * of_last).sum(-1).abs()
    read = read.T if maps.places_first else read  # (B, query)
    whole = read.sum(1, keepdim=True)
    sources = forward.view.sources
    spans = {
        stream: span
        for stream in {source.span.stream for source in sources.entered}
        if (span := sources.span_in(stream)) is not None
    }
    if inputs.layout is not None:
        _check_places(subject, attention, sources.units + sources.rows_ahead.get(0, 0))
    valid = torch.ones_like(read)
    if (span := spans.get(attention[-1].query)) is not None:
        span.rows_of(inputs.mask.to(valid), valid)
    even = valid / valid.sum(1, keepdim=True)
    return Captured(
        maps=[one_map.weights.detach() for one_map in attention],
        ways=[(one_map.query, one_map.key) for one_map in attention],
        gradients=of_maps,
        readout=torch.where(whole > 0, read / whole.clamp_min(1e-30), even),
        spans=spans,
        valid=valid,
        logits=forward.logits.detach(),
        units=sources.units,
    )


def _check_places(subject: Subject, found: Sequence[Map], least: int) -> None:
    """Refuses maps of an image whose places are not its patches, and some tokens beside them."""
    sizes = {size for each in found for size in each.weights.shape[2:]}
    if len(sizes) > 1 or not least <= min(sizes) <= least + EXTRA_TOKENS:
        raise ModelError(
            f"the attention maps of {subject.name} have {', '.join(map(str, sorted(sizes)))} "
            f"places, its image {least}: patches are joined or pooled on the way. Attention "
            'methods cannot follow them; try method="lrp".'
        )


def roll_out(
    seen: Captured,
    steps: Sequence[Tensor | None],
    readout: Readout,
    normalise: bool,
    skip: bool = True,
) -> State:
    """The rows that are read, times I + step for every map, the last first.

    Between two fields the identity is that of the queries' own field. With `normalise` each row
    of I + step is divided by its sum. Without `skip`, what the rows say of themselves through the
    identities alone is left out.
    """
    state = seen.start(readout)
    last = seen.ways[-1][0]
    own = state[last]
    for (query, key), step in zip(reversed(seen.ways), reversed(steps), strict=True):
        if step is None:
            continue
        rows = state[query]
        if normalise:
            whole = 1 + step.sum(-1)
            share = torch.where(whole == 0, torch.zeros_like(whole), 1 / whole)
            rows = rows * share
            own = own * share if query == last else own
        read = torch.einsum("bq,bqk->bk", rows, step)
        state[query] = rows
        state[key] = state[key] + read
    if not skip:
        state[last] = state[last] - own
    return state


def own_dropped(seen: Captured, state: State, readout: Readout) -> Tensor:
    """The scores of units, zero at the one row that is read, such as [CLS], if it is one."""
    last = seen.ways[-1][0]
    rows = seen.start(readout)[last]
    alone = rows > 0.999 * rows.sum(1, keepdim=True)
    return seen.to_units({**state, last: state[last].masked_fill(alone, 0.0)})


@dataclass(frozen=True)
class AttentionLast(Method):
    """Where the rows that the head reads look in the last attention map (mean over heads)."""

    name: ClassVar[str] = "attention_last"
    paper: ClassVar[str] = "Hollenstein & Beinborn 2021"
    readout: Readout = "auto"

    def scores(self, subject: Subject, inputs: Inputs, target: Target) -> Scores:
        seen = capture(subject, inputs, target, gradients=False)
        rows = seen.start(self.readout)[seen.ways[-1][0]]
        read = torch.einsum("bq,bqk->bk", rows, seen.maps[-1].mean(1))
        return Scores(seen.to_units({seen.ways[-1][1]: read}) * inputs.mask, seen.logits)


@dataclass(frozen=True)
class AttentionRollout(Method):
    """The product of all attention maps, skip connections added, rows made to sum to one."""

    name: ClassVar[str] = "attention_rollout"
    paper: ClassVar[str] = "Abnar & Zuidema 2020"
    readout: Readout = "auto"

    def scores(self, subject: Subject, inputs: Inputs, target: Target) -> Scores:
        seen = capture(subject, inputs, target, gradients=False)
        steps = [each.mean(1) for each in seen.maps]
        state = roll_out(seen, steps, self.readout, normalise=True)
        return Scores(seen.to_units(state) * inputs.mask, seen.logits)


@dataclass(frozen=True)
class AttentionFlow(Method):
    """The maximum flow from the rows that are read down to each unit, maps as capacities."""

    name: ClassVar[str] = "attention_flow"
    paper: ClassVar[str] = "Abnar & Zuidema 2020"
    readout: Readout = "auto"

    def scores(self, subject: Subject, inputs: Inputs, target: Target) -> Scores:
        seen = capture(subject, inputs, target, gradients=False)
        steps = [each.mean(1).double().cpu() for each in seen.maps]
        values = torch.zeros(inputs.mask.shape, dtype=torch.float64)
        for row in range(len(inputs)):
            start = {n: s[row].double().cpu() for n, s in seen.start(self.readout).items()}
            found = flows([step[row] for step in steps], seen.ways, start)
            values[row] = seen.to_units({n: v.unsqueeze(0) for n, v in found.items()})[0]
        return Scores(values * inputs.mask, seen.logits)


@dataclass(frozen=True)
class GradientXAttention(Method):
    """The weights of one attention map times their gradients (of the last map by default)."""

    name: ClassVar[str] = "gradient_x_attention"
    paper: ClassVar[str] = "Serrano & Smith 2019"
    layer: int = -1

    def scores(self, subject: Subject, inputs: Inputs, target: Target) -> Scores:
        seen = capture(subject, inputs, target, gradients=True)
        if not -len(seen.maps) <= self.layer < len(seen.maps):
            raise MethodError(f"there is no layer {self.layer}: {len(seen.maps)} maps were seen.")
        read = (seen.maps[self.layer] * seen.gradients[self.layer]).mean(1).sum(1)
        return Scores(seen.to_units({seen.ways[self.layer][1]: read}) * inputs.mask, seen.logits)


@dataclass(frozen=True)
class GradientRollout(Method):
    """The product over all blocks of I plus the map times its gradient (mean over heads)."""

    name: ClassVar[str] = "gradient_rollout"
    paper: ClassVar[str] = "Barkan et al. 2023 (DIX), supplement"
    positive: bool = False
    normalise: bool = False
    skip: bool = False
    readout: Readout = "auto"

    def scores(self, subject: Subject, inputs: Inputs, target: Target) -> Scores:
        seen = capture(subject, inputs, target, gradients=True)
        steps = weighted(seen, self.positive)
        state = roll_out(seen, steps, self.readout, self.normalise, self.skip)
        return Scores(seen.to_units(state) * inputs.mask, seen.logits)


def weighted(seen: Captured, positive: bool) -> list[Tensor]:
    """E over heads of A ∘ ∇A for every map, negative entries dropped before the mean if asked."""
    products = [a * g for a, g in zip(seen.maps, seen.gradients, strict=True)]
    return [(p.clamp_min(0) if positive else p).mean(1) for p in products]
