"""Rewrites of a model that preserve its function: other weights, the same outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from wherefrom.audits.feature_trace import Trace, Weight
from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.core.scope import restores_state
from wherefrom.core.target import Case
from wherefrom.errors import NotFinite
from wherefrom.methods.forward_pass import run

PRESERVED = 1e-6
"""Rewrites may change outputs by at most this share of the largest output."""

KINDS = {
    "hidden": "hidden units permuted",
    "heads": "attention heads permuted",
    "channels": "channels within heads permuted",
    "values": "values scaled, and scaled back in the layers that read them",
    "norms": "a norm's scale and shift folded into the layers that read it",
}


WeightChange = tuple[nn.Parameter, Callable[[Tensor], Tensor]]


@dataclass(frozen=True)
class Site:
    """One possible rewrite of a model: changes of parameters, in order."""

    kind: str
    changes: tuple[WeightChange, ...]

    def apply(self) -> None:
        """Changes the parameters in place."""
        with torch.no_grad():
            for parameter, change in self.changes:
                parameter.copy_(change(parameter))


@dataclass(frozen=True)
class Rewrite:
    """All sites of a model where one kind of rewrite preserves the outputs."""

    kind: str
    sites: tuple[Site, ...]
    dropped: int  # candidates where the outputs changed
    output_change: float  # as a share of the largest output, with all sites rewritten

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Rewrites the model within this context, and restores all weights."""
        with _restored([p for site in self.sites for p, _ in site.changes]):
            for site in self.sites:
                site.apply()
            yield


@restores_state
def rewrites(runner: ModelRunner, samples: Sequence[Batch], seed: int = 0) -> list[Rewrite]:
    """Every kind of rewrite, found by tracing one run; each site is tested on all samples.

    For a float64 copy of the user's model: weights are changed and restored.
    """
    trace = Trace()
    with runner.evaluating(), trace:
        runner.run(samples[0].take([0]).model_tensors())
    before = [run(Case(runner, inputs)) for inputs in samples]

    def output_change() -> float:
        """The largest relative change of an output; infinite if an output is not finite."""
        try:
            after = [run(Case(runner, inputs)) for inputs in samples]
        except NotFinite:
            return float("inf")
        pairs = zip(before, after, strict=True)
        return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)) for b, a in pairs)

    results = []
    sites = sites_of(trace, torch.Generator().manual_seed(seed))
    for kind in KINDS:
        candidates = [site for site in sites if site.kind == kind]
        preserving = []
        for site in candidates:
            with _restored([p for p, _ in site.changes]):
                site.apply()
                if output_change() <= PRESERVED:
                    preserving.append(site)
        rewrite = Rewrite(kind, tuple(preserving), len(candidates) - len(preserving), 0.0)
        with rewrite.applied():
            results.append(replace(rewrite, output_change=output_change()))
    return results


@contextmanager
def _restored(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    saved = {id(p): (p, p.detach().clone()) for p in parameters}
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in saved.values():
                parameter.copy_(value)


# Sites of a model, from a trace of its features


@dataclass(frozen=True)
class _Features:
    """Tied features: the rows that compute them, and the columns that read them."""

    rows: Mapping[int, tuple[int, ...]]  # weight: its rows
    columns: Mapping[int, tuple[int, ...]]
    heads: frozenset[tuple[int, int, str]]
    kinds: frozenset[str]
    bent: bool
    spoiled: bool

    @property
    def movable(self) -> bool:
        """Whether all calls that use the features are known."""
        contracted = any(kind == "qk" for _, _, kind in self.heads)
        return not self.spoiled and (bool(self.columns) or contracted)

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal for groups of features that can be exchanged."""
        rows = frozenset((weight, len(indices)) for weight, indices in self.rows.items())
        columns = frozenset((weight, len(indices)) for weight, indices in self.columns.items())
        return rows, columns, self.heads


def _grouped(trace: Trace) -> dict[int, _Features]:
    features: dict[int, list[int]] = {}
    for feature in trace.owners:
        features.setdefault(trace.root(feature), []).append(feature)
    read: dict[int, list[tuple[int, int]]] = {}
    for (weight, column), feature in trace.consumers.items():
        read.setdefault(trace.root(feature), []).append((weight, column))
    return {
        root: _Features(
            rows=_by_weight((id(trace.owners[f][0].weight), trace.owners[f][2]) for f in members),
            columns=_by_weight(read.get(root, ())),
            heads=frozenset(tag for f in members for tag in trace.of_head.get(f, ())),
            kinds=frozenset(trace.owners[f][1] for f in members),
            bent=any(f in trace.bent for f in members),
            spoiled=any(f in trace.spoiled for f in members),
        )
        for root, members in features.items()
    }


def _by_weight(pairs: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    indices: dict[int, list[int]] = {}
    for weight, index in pairs:
        indices.setdefault(weight, []).append(index)
    return {weight: tuple(sorted(listed)) for weight, listed in indices.items()}


def sites_of(trace: Trace, generator: torch.Generator) -> list[Site]:
    """The sites of all kinds, from a trace."""
    groups = _grouped(trace)
    layers = {**trace.weights, **{id(owner.weight): owner for owner, _, _ in trace.owners.values()}}
    linear = {r: g for r, g in groups.items() if g.movable and g.kinds == {"linear"}}
    alike: dict[tuple[object, ...], list[int]] = {}
    for root, group in linear.items():
        alike.setdefault(group.signature, []).append(root)
    sites: list[Site] = []
    channels: dict[int, dict[int, int]] = {}
    for roots in alike.values():
        if len(roots) < 2:
            continue
        order = _shuffled(len(roots), generator)
        moves = {roots[i]: roots[j] for i, j in enumerate(order)}
        if not linear[roots[0]].heads:
            sites.append(Site("hidden", _permuted(moves, groups, layers)))
        else:
            call = min(linear[roots[0]].heads)[0]
            channels.setdefault(call, {}).update(moves)
    sites += [Site("channels", _permuted(moves, groups, layers)) for moves in channels.values()]
    sites += _head_sites(trace, linear, layers, generator)
    sites += _value_sites(linear, layers, generator)
    return sites + _norm_sites(trace, groups, layers)


def _shuffled(count: int, generator: torch.Generator) -> list[int]:
    """A permutation without fixed points."""
    order = torch.randperm(count, generator=generator).tolist()
    after = dict(zip(order, order[1:] + order[:1], strict=True))
    return [after[i] for i in range(count)]


def _permuted(
    moves: Mapping[int, int], groups: Mapping[int, _Features], layers: Mapping[int, Weight]
) -> tuple[WeightChange, ...]:
    """Moves the features `moves[root]` to those of root: rows, biases and columns."""
    orders: dict[tuple[int, bool], Tensor] = {}
    for target, origin in moves.items():
        for outputs, here, there in (
            (True, groups[target].rows, groups[origin].rows),
            (False, groups[target].columns, groups[origin].columns),
        ):
            for weight, indices in here.items():
                size = layers[weight].size(outputs)
                order = orders.setdefault((weight, outputs), torch.arange(size))
                order[list(indices)] = torch.tensor(there[weight])
    changes: list[WeightChange] = []
    for (weight, outputs), order in orders.items():
        layer = layers[weight]
        changes.append((layer.weight, _taken(layer.axis(outputs), order)))
        if outputs and layer.bias is not None:
            changes.append((layer.bias, _taken(0, order)))
    return tuple(changes)


def _taken(axis: int, order: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda weight: weight.index_select(axis, order.to(weight.device))


def _head_sites(
    trace: Trace,
    groups: Mapping[int, _Features],
    layers: Mapping[int, Weight],
    generator: torch.Generator,
) -> list[Site]:
    """Permutes heads with their queries, keys and values; heads that share keys move together."""
    sites = []
    for heads in trace.heads:
        if heads.query is None or heads.key is None:
            continue
        sharing: dict[tuple[int, ...], list[int]] = {}
        for head, key in enumerate(heads.key.tolist()):
            sharing.setdefault(tuple(key), []).append(head)
        sets = list(sharing.values())
        if len(sets) < 2 or len({len(members) for members in sets}) > 1:
            continue
        moves: dict[int, int] = {}
        for here, there in zip(sets, _shuffled(len(sets), generator), strict=True):
            for a, b in zip(here, sets[there], strict=True):
                for part in (heads.query, heads.key, heads.value):
                    moves.update(
                        (trace.root(i), trace.root(j))
                        for i, j in zip(part[a].tolist(), part[b].tolist(), strict=True)
                    )
        if all(root in groups for root in moves):
            sites.append(Site("heads", _permuted(moves, groups, layers)))
    return sites


def _value_sites(
    groups: Mapping[int, _Features], layers: Mapping[int, Weight], generator: torch.Generator
) -> list[Site]:
    """Multiplies values by a power of two, and divides the columns that read them."""
    calls: dict[int, list[_Features]] = {}
    for group in groups.values():
        if group.heads and not group.bent and all(kind == "v" for _, _, kind in group.heads):
            calls.setdefault(min(group.heads)[0], []).append(group)
    sites = []
    for values in calls.values():
        factors: dict[tuple[int, bool], Tensor] = {}
        for group in values:
            power = 2.0 ** int(torch.randint(-2, 3, (), generator=generator))
            for outputs, by_weight in ((True, group.rows), (False, group.columns)):
                for weight, indices in by_weight.items():
                    size = layers[weight].size(outputs)
                    factor = factors.setdefault((weight, outputs), torch.ones(size))
                    factor[list(indices)] = power if outputs else 1 / power
        changes: list[WeightChange] = []
        for (weight, outputs), factor in factors.items():
            layer = layers[weight]
            changes.append((layer.weight, _scaled(layer.axis(outputs), factor)))
            if outputs and layer.bias is not None:
                changes.append((layer.bias, _scaled(0, factor)))
        sites.append(Site("values", tuple(changes)))
    return sites


def _scaled(axis: int, factor: Tensor) -> Callable[[Tensor], Tensor]:
    def change(weight: Tensor) -> Tensor:
        shape = [1] * weight.ndim
        shape[axis] = -1
        return weight * factor.to(weight).reshape(shape)

    return change


def _norm_sites(
    trace: Trace, groups: Mapping[int, _Features], layers: Mapping[int, Weight]
) -> list[Site]:
    """Folds scales of norms into linear layers, and shifts if these have biases."""
    features: dict[int, list[int]] = {}
    for feature, (owner, kind, _) in trace.owners.items():
        if kind == "scale":
            features.setdefault(id(owner.weight), []).append(feature)
    sites = []
    for norm, members in features.items():
        candidates = [groups.get(trace.root(feature)) for feature in members]
        foldable = [g for g in candidates if g is not None and g.movable and not g.bent]
        if len(foldable) < len(members) or any(
            g.rows != {norm: (i,)} for i, g in enumerate(foldable)
        ):
            continue
        readers: dict[int, list[tuple[int, int]]] = {}  # weight: channel, column
        for channel, group in enumerate(foldable):
            for weight, columns in group.columns.items():
                readers.setdefault(weight, []).extend((channel, column) for column in columns)
        sites.append(Site("norms", _folded(layers[norm], readers, layers)))
    return sites


def _folded(
    norm: Weight, readers: Mapping[int, list[tuple[int, int]]], layers: Mapping[int, Weight]
) -> tuple[WeightChange, ...]:
    scale = norm.weight.detach().clone()
    shift = None if norm.bias is None else norm.bias.detach().clone()
    biased = all(layers[weight].bias is not None for weight in readers)
    changes: list[WeightChange] = []
    for weight, pairs in readers.items():
        layer = layers[weight]
        channels, columns = (torch.tensor(indices) for indices in zip(*pairs, strict=True))
        factor = torch.ones(layer.size(outputs=False)).to(scale)
        factor[columns] = scale[channels]
        if shift is not None and biased and layer.bias is not None:
            spread = torch.zeros(layer.size(outputs=False)).to(shift)
            spread[columns] = shift[channels]
            changes.append((layer.bias, _shifted(layer, spread)))
        changes.append((layer.weight, _scaled(layer.axis(outputs=False), factor)))
    if norm.bias is not None and shift is not None:
        rest = torch.zeros_like(shift) if biased else shift / scale
        changes.append((norm.bias, lambda _: rest))
    changes.append((norm.weight, torch.ones_like))
    return tuple(changes)


def _shifted(layer: Weight, spread: Tensor) -> Callable[[Tensor], Tensor]:
    def change(bias: Tensor) -> Tensor:
        weight = layer.weight.detach() if layer.out == 0 else layer.weight.detach().T
        return bias + weight @ spread

    return change
