"""The attention maps of one pass, their gradients, and rollout over the blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from wherefrom.core.explanation import plural
from wherefrom.core.runner import ModelRunner
from wherefrom.core.scope import restores_state
from wherefrom.core.target import Case
from wherefrom.errors import MethodError, ModelError, use_method
from wherefrom.inputs.patches import EXTRA_TOKENS
from wherefrom.methods.forward_pass import ForwardPass, intercepted_forward
from wherefrom.methods.propagation import PLAIN, require_samples_as_rows
from wherefrom.tracing.observers.attention_maps import Map, Maps, Replace
from wherefrom.tracing.observers.entry_points import Span

Readout = Literal["auto", "all"]
ReadoutRow = Literal["zero", "minimum"]
State = dict[int, Tensor]  # by stream: a value for each position, (B, T)


@dataclass(frozen=True)
class CapturedAttention:
    """The attention of one pass: maps, their gradients, and which rows the head reads.

    `spans` has the units of each stream that the maps connect.
    """

    maps: list[Tensor]  # each (B, heads, query, key)
    streams: list[tuple[int, int]]  # of queries and keys, for each map
    gradients: list[Tensor]
    readout: Tensor  # (B, query) of the last map; sums to 1
    spans: dict[int, Span]  # by stream
    valid: Tensor  # (B, query): 0 for padding
    logits: Tensor
    mask: Tensor  # (B, units): False for padding

    def start(self, readout: Readout) -> State:
        """The rows that are read, as the start of a rollout.

        In float64 on the CPU: adding small products to 1 loses digits in float32.
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
        """The values of positions as values of their units, (B, units)."""
        total = torch.zeros(self.mask.shape, dtype=torch.float64)
        if not self.spans.keys() & state.keys():
            raise ModelError(
                "the attention map that is read has keys of no unit, such as latents or a "
                "decoder's start token, so units get no score.",
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
    """Runs the model and returns its attention, with the gradients of all maps or those in `of`."""
    if case.batch.layout is not None and not case.batch.layout.cut:
        raise ModelError(
            f"{case.runner.name} attends from patch to patch, so attention methods cannot score "
            f"the {plural(case.batch.noun)} within a patch.",
            **use_method("lrp", verb="Try"),
        )
    require_samples_as_rows(case)
    maps = Maps(len(case.batch), replace)
    with intercepted_forward(PLAIN, case, maps=maps) as forward:
        forward.need("attention")
        if maps.last is None:
            raise ModelError(
                f"{case.runner.name} has attention, but no state with a row for each position "
                "follows it, so the rows that its head reads are unknown."
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
        _check_patches(case.runner, maps.seen, sources.units + sources.rows_ahead.get(0, 0))
    else:
        for source in (source for source in sources.entered if source.span.order is None):
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
    """∂ output / ∂ each map, (B, heads, query, key), and ∂ output / ∂ other tensors."""
    heads = [head for one_map in maps for head in one_map.heads]
    gradients = iter(forward.gradients([*heads, *others]))
    by_map = [torch.cat([next(gradients) for _ in one_map.heads], 1) for one_map in maps]
    return [*by_map, *gradients]


def _check_sizes(runner: ModelRunner, maps: Sequence[Map]) -> None:
    """Refuses maps of different sizes along one stream: their positions are not the same units."""
    sizes: dict[int, set[int]] = {}
    for one_map in maps:
        sizes.setdefault(one_map.query, set()).add(one_map.size[0])
        sizes.setdefault(one_map.key, set()).add(one_map.size[1])
    several = next((extents for extents in sizes.values() if len(extents) > 1), None)
    if several is not None:
        raise ModelError(
            f"the attention maps of {runner.name} have {', '.join(map(str, sorted(several)))} "
            "positions along one input. Either the model pools positions, or a second sequence, "
            "such as the decoder's, is not an input (prefix).",
            **use_method("lrp", verb="Try"),
        )


def _check_length(
    runner: ModelRunner, maps: Sequence[Map], stream: int, least: int, units: str
) -> None:
    """Refuses maps along an input with fewer positions than the input, or far more."""
    sizes = {one_map.size[0] for one_map in maps if one_map.query == stream}
    sizes |= {one_map.size[1] for one_map in maps if one_map.key == stream}
    if len(sizes) == 1 and not least <= min(sizes) <= least + EXTRA_TOKENS:
        raise ModelError(
            f"the attention maps of {runner.name} have {min(sizes)} positions, its input {least}: "
            f"the model shortens or divides it, so the positions are not the {units}. "
            "Attention methods do not support this.",
            **use_method("lrp", verb="Try"),
        )


def _check_patches(runner: ModelRunner, maps: Sequence[Map], least: int) -> None:
    """Refuses maps of an image whose positions are not its patches plus a few tokens."""
    sizes = {size for one_map in maps for size in one_map.size}
    if len(sizes) > 1 or not least <= min(sizes) <= least + EXTRA_TOKENS:
        raise ModelError(
            f"the attention maps of {runner.name} have {', '.join(map(str, sorted(sizes)))} "
            f"positions, its image {least}: the model joins or pools patches. Attention methods "
            "do not support this.",
            **use_method("lrp", verb="Try"),
        )


def layer_index(layer: int, count: int) -> int:
    """The index of a layer among `count` layers; negative ones count from the end."""
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
    """The rows that are read, multiplied by I + step for every map, from the last to the first.

    In cross-attention the identity keeps the queries' stream. With `normalise` each row of
    I + step is divided by its sum. Without `skip`, the product of the identities alone is
    subtracted.
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
    """The scores of units; if a single row such as [CLS] is read, its own score is replaced.

    By zero with "zero", by the lowest score of the sample with "minimum".
    """
    last = attention.streams[-1][0]
    rows = attention.start(readout)[last]
    single = rows > 0.999 * rows.sum(1, keepdim=True)
    values = state[last]
    least = values.masked_fill(attention.valid.cpu() == 0, math.inf).amin(1, keepdim=True)
    filled = torch.zeros_like(values) if fill == "zero" else least.expand_as(values)
    return attention.to_units({**state, last: torch.where(single, filled, values)})


def weighted_maps(attention: CapturedAttention, positive: bool) -> list[Tensor]:
    """The mean over heads of A ∘ ∇A for every map; with `positive`, of its positive entries."""
    products = [a * g for a, g in zip(attention.maps, attention.gradients, strict=True)]
    return [(p.clamp_min(0) if positive else p).mean(1) for p in products]
