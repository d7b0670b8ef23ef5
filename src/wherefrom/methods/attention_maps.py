"""The attention maps of one pass, their gradients, and how they are rolled out over the blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from wherefrom.core.explanation import plural
from wherefrom.core.runner import Case, ModelRunner
from wherefrom.core.scope import restores_state
from wherefrom.errors import MethodError, ModelError, use_method
from wherefrom.inputs.patches import EXTRA_TOKENS
from wherefrom.methods.forward_pass import ForwardPass, intercepted_forward
from wherefrom.methods.reading import require_samples_as_rows
from wherefrom.rules.tables import PLAIN
from wherefrom.tracing.observers.attention_maps import Map, Maps, Replace
from wherefrom.tracing.observers.entry_points import Span

Readout = Literal["auto", "all"]
ReadoutRow = Literal["zero", "minimum"]
State = dict[int, Tensor]  # what each field's places hold, (B, T)


@dataclass(frozen=True)
class CapturedAttention:
    """The attention of one pass: maps, their gradients, and which rows the head reads.

    `spans` says for each stream that maps run between which units its places hold.
    """

    maps: list[Tensor]  # each (B, heads, query, key)
    streams: list[tuple[int, int]]  # of each map's queries and keys
    gradients: list[Tensor]
    readout: Tensor  # (B, query) of the last map, each row adding to 1
    spans: dict[int, Span]  # by stream
    valid: Tensor  # (B, query): 1 where the row is no padding
    logits: Tensor
    mask: Tensor  # (B, units): the units that are no padding

    def start(self, readout: Readout) -> State:
        """The rows that are read, as the state that travels back through the maps.

        In float64 on the CPU: a sum of 1 and small products loses their digits in fewer.
        """
        last = self.streams[-1][0]
        rows = (self.valid if readout == "all" else self.readout).cpu().double()
        state = {number: torch.zeros_like(rows[:, :0]) for number in self.spans}
        for (query, key), weights in zip(self.streams, self.maps, strict=True):
            for number, size in ((query, weights.shape[2]), (key, weights.shape[3])):
                state[number] = rows.new_zeros(len(rows), size)
        state[last] = rows
        return state

    def to_units(self, state: State) -> Tensor:
        """What the places of the streams hold, as numbers of the units, (B, units)."""
        total = torch.zeros(self.mask.shape, dtype=torch.float64)
        if not self.spans.keys() & state.keys():
            raise ModelError(
                "the attention map that is read runs to places of no unit, such as latents or a "
                "decoder's start: it says nothing of the units.",
                **use_method("attention_rollout", "lrp", verb="Try"),
            )
        for number, span in self.spans.items():
            if number in state:
                span.add_to(total, state[number])
        return total * self.mask


@restores_state
def capture(
    case: Case,
    *,
    gradients: bool,
    replace: Replace | None = None,
    of: Sequence[int] | None = None,
) -> CapturedAttention:
    """Runs the model and keeps its attention, with the gradients of all maps or of some."""
    if case.batch.layout is not None and not case.batch.layout.cut:
        raise ModelError(
            f"{case.runner.name} attends from patch to patch, and no attention method can tell "
            f"the {plural(case.batch.noun)} within one apart.",
            **use_method("lrp", verb="Try"),
        )
    require_samples_as_rows(case)
    maps = Maps(len(case.batch), replace)
    with intercepted_forward(PLAIN, case, maps=maps) as forward:
        forward.need("attention")
        if maps.last is None:
            raise ModelError(
                f"{case.runner.name} has attention, but no state with a row for each place follows "
                "it, so the rows that its head reads are not known."
            )
        count = len(maps.seen)
        layers = range(count) if of is None else [range(count)[i] for i in of]
        wanted = [maps.seen[i] for i in layers] if gradients else []
        *of_maps, of_last = map_gradients(forward, wanted, maps.last)
    read = (maps.last.detach() * of_last).sum(-1).abs()
    read = read.T if maps.places_first else read  # (B, query)
    whole = read.sum(1, keepdim=True)
    sources = forward.tracer.entry_points
    spans = {
        stream: span
        for stream in {source.span.stream for source in sources.entered}
        if (span := sources.span_in(stream)) is not None
    }
    if case.batch.layout is not None:
        _check_places(case.runner, maps.seen, sources.units + sources.rows_ahead.get(0, 0))
    else:
        for source in sources.entered:
            stream = source.span.stream
            rows = source.by_sample(source.leaf, len(case.batch)).shape[1]
            least = rows + sources.rows_ahead.get(stream, 0)
            _check_length(case.runner, maps.seen, stream, least, plural(case.batch.noun))
    _check_sizes(case.runner, maps.seen)
    valid = torch.ones_like(read)
    if (span := spans.get(maps.seen[-1].query)) is not None:
        span.rows_of(case.batch.mask.to(valid), valid)
    even = valid / valid.sum(1, keepdim=True)
    return CapturedAttention(
        maps=[one_map.weights.detach() for one_map in maps.seen],
        streams=[(one_map.query, one_map.key) for one_map in maps.seen],
        gradients=of_maps,
        readout=torch.where(whole > 0, read / whole.clamp_min(1e-30), even),
        spans=spans,
        valid=valid,
        logits=forward.logits.detach(),
        mask=case.batch.mask.cpu(),
    )


def map_gradients(forward: ForwardPass, maps: Sequence[Map], *others: Tensor) -> list[Tensor]:
    """∂ output / ∂ each map, (B, heads, query, key) each, and by other tensors."""
    heads = [head for one_map in maps for head in one_map.heads]
    gradients = iter(forward.gradients([*heads, *others]))
    by_map = [torch.cat([next(gradients) for _ in one_map.heads], 1) for one_map in maps]
    return [*by_map, *gradients]


def _check_sizes(runner: ModelRunner, maps: Sequence[Map]) -> None:
    """Refuses maps of one stream that have several sizes: its places are not the same units."""
    sizes: dict[int, set[int]] = {}
    for one_map in maps:
        sizes.setdefault(one_map.query, set()).add(one_map.size[0])
        sizes.setdefault(one_map.key, set()).add(one_map.size[1])
    several = next((extents for extents in sizes.values() if len(extents) > 1), None)
    if several is not None:
        raise ModelError(
            f"the attention maps of {runner.name} have {', '.join(map(str, sorted(several)))} "
            "places along one input. Either places "
            "are pooled on the way, or a second sequence, such as the decoder's, is not among "
            "the inputs (prefix).",
            **use_method("lrp", verb="Try"),
        )


def _check_length(
    runner: ModelRunner, maps: Sequence[Map], stream: int, least: int, units: str
) -> None:
    """Refuses maps along an input that have fewer places than it, or far more."""
    sizes = {one_map.size[0] for one_map in maps if one_map.query == stream}
    sizes |= {one_map.size[1] for one_map in maps if one_map.key == stream}
    if len(sizes) == 1 and not least <= min(sizes) <= least + EXTRA_TOKENS:
        raise ModelError(
            f"the attention maps of {runner.name} have {min(sizes)} places, its input {least}: "
            "the model shortens it or cuts it into "
            f"other pieces, so the places are not the {units}. Attention methods cannot follow "
            "that.",
            **use_method("lrp", verb="Try"),
        )


def _check_places(runner: ModelRunner, maps: Sequence[Map], least: int) -> None:
    """Refuses maps of an image whose places are not its patches, and some tokens beside them."""
    sizes = {size for one_map in maps for size in one_map.size}
    if len(sizes) > 1 or not least <= min(sizes) <= least + EXTRA_TOKENS:
        raise ModelError(
            f"the attention maps of {runner.name} have {', '.join(map(str, sorted(sizes)))} "
            f"places, its image {least}: patches are "
            "joined or pooled on the way. Attention methods cannot follow them.",
            **use_method("lrp", verb="Try"),
        )


def layer_index(layer: int, count: int) -> int:
    """The number of a layer of so many; a negative one counts from the end."""
    if not -count <= layer < count:
        raise MethodError(
            f"there is no layer {layer}: the model has attention layers 0 to {count - 1}."
        )
    return range(count)[layer]


def roll_out(
    attention: CapturedAttention,
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
    state = attention.start(readout)
    last = attention.streams[-1][0]
    identity_alone = state[last]
    for (query, key), step in zip(reversed(attention.streams), reversed(steps), strict=True):
        if step is None:
            continue
        rows = state[query]
        step = step.to(rows)
        if normalise:
            whole = 1 + step.sum(-1)
            share = torch.where(whole == 0, torch.zeros_like(whole), 1 / whole)
            rows = rows * share
            identity_alone = identity_alone * share if query == last else identity_alone
        read = torch.einsum("bq,bqk->bk", rows, step)
        state[query] = rows
        state[key] = state[key] + read
    if not skip:
        state[last] = state[last] - identity_alone
    return state


def without_readout_row(
    attention: CapturedAttention, state: State, readout: Readout, fill: ReadoutRow = "zero"
) -> Tensor:
    """The scores of units; where one row is read, such as [CLS], its own score is filled in.

    With "zero" it is zero, with "minimum" the least score of the sample.
    """
    last = attention.streams[-1][0]
    rows = attention.start(readout)[last]
    single = rows > 0.999 * rows.sum(1, keepdim=True)
    values = state[last]
    least = values.masked_fill(attention.valid.cpu() == 0, math.inf).amin(1, keepdim=True)
    filled = torch.zeros_like(values) if fill == "zero" else least.expand_as(values)
    return attention.to_units({**state, last: torch.where(single, filled, values)})


def weighted_maps(attention: CapturedAttention, positive: bool) -> list[Tensor]:
    """E over heads of A ∘ ∇A for every map; with `positive` of its positive entries."""
    products = [a * g for a, g in zip(attention.maps, attention.gradients, strict=True)]
    return [(p.clamp_min(0) if positive else p).mean(1) for p in products]
