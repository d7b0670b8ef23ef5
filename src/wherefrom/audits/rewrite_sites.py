"""Where a model can be rewritten: places found in a trace, and the changes of weights there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wherefrom.audits.feature_trace import Trace, Weight

Change = tuple[nn.Parameter, Callable[[Tensor], Tensor]]


@dataclass(frozen=True)
class Site:
    """One place where a model can be rewritten: changes of parameters, made in this order."""

    kind: str
    changes: tuple[Change, ...]

    def apply(self) -> None:
        """Changes the parameters in place."""
        with torch.no_grad():
            for parameter, change in self.changes:
                parameter.copy_(change(parameter))


@dataclass(frozen=True)
class _Class:
    """Features that go together: the rows that make them and the columns that read them."""

    rows: Mapping[int, tuple[int, ...]]  # weight: its rows
    columns: Mapping[int, tuple[int, ...]]
    heads: frozenset[tuple[int, int, str]]
    kinds: frozenset[str]
    bent: bool
    spoiled: bool

    @property
    def movable(self) -> bool:
        """Whether all that happens to them is known."""
        contracted = any(kind == "qk" for _, _, kind in self.heads)
        return not self.spoiled and (bool(self.columns) or contracted)

    @property
    def likes(self) -> tuple[object, ...]:
        """What two classes must have in common to change places."""
        rows = frozenset((weight, len(own)) for weight, own in self.rows.items())
        columns = frozenset((weight, len(own)) for weight, own in self.columns.items())
        return rows, columns, self.heads


def _classes(trace: Trace) -> dict[int, _Class]:
    features: dict[int, list[int]] = {}
    for feature in trace.owners:
        features.setdefault(trace.root(feature), []).append(feature)
    read: dict[int, list[tuple[int, int]]] = {}
    for (weight, column), feature in trace.consumers.items():
        read.setdefault(trace.root(feature), []).append((weight, column))
    return {
        root: _Class(
            rows=_listed((id(trace.owners[f][0].weight), trace.owners[f][2]) for f in own),
            columns=_listed(read.get(root, ())),
            heads=frozenset(tag for f in own for tag in trace.of_head.get(f, ())),
            kinds=frozenset(trace.owners[f][1] for f in own),
            bent=any(f in trace.bent for f in own),
            spoiled=any(f in trace.spoiled for f in own),
        )
        for root, own in features.items()
    }


def _listed(pairs: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    found: dict[int, list[int]] = {}
    for weight, place in pairs:
        found.setdefault(weight, []).append(place)
    return {weight: tuple(sorted(places)) for weight, places in found.items()}


def sites_of(trace: Trace, chance: torch.Generator) -> list[Site]:
    """All places that a trace shows, of every kind, each with what to do there."""
    classes = _classes(trace)
    made = {id(by.weight): by for by, _, _ in trace.owners.values()}
    weights = {**trace.weights, **made}
    linear = {r: c for r, c in classes.items() if c.movable and c.kinds == {"linear"}}
    groups: dict[tuple[object, ...], list[int]] = {}
    for root, each in linear.items():
        groups.setdefault(each.likes, []).append(root)
    sites: list[Site] = []
    channels: dict[int, dict[int, int]] = {}
    for roots in groups.values():
        if len(roots) < 2:
            continue
        order = _shuffled(len(roots), chance)
        moves = {roots[i]: roots[j] for i, j in enumerate(order)}
        if not linear[roots[0]].heads:
            sites.append(Site("hidden", _moved(moves, classes, weights)))
        else:
            call = min(linear[roots[0]].heads)[0]
            channels.setdefault(call, {}).update(moves)
    sites += [Site("channels", _moved(moves, classes, weights)) for moves in channels.values()]
    sites += _head_sites(trace, linear, weights, chance)
    sites += _value_sites(linear, weights, chance)
    return sites + _norm_sites(trace, classes, weights)


def _shuffled(count: int, chance: torch.Generator) -> list[int]:
    """An order in which nothing stays where it was."""
    order = torch.randperm(count, generator=chance).tolist()
    after = dict(zip(order, order[1:] + order[:1], strict=True))
    return [after[i] for i in range(count)]


def _moved(
    moves: Mapping[int, int], classes: Mapping[int, _Class], weights: Mapping[int, Weight]
) -> tuple[Change, ...]:
    """Puts the class `moves[c]` where c was: its rows, their biases, and its columns."""
    orders: dict[tuple[int, bool], Tensor] = {}
    for target, origin in moves.items():
        for made, here, there in (
            (True, classes[target].rows, classes[origin].rows),
            (False, classes[target].columns, classes[origin].columns),
        ):
            for weight, places in here.items():
                by = weights[weight]
                axis = by.out if made else 1 - by.out
                order = orders.setdefault((weight, made), torch.arange(by.weight.shape[axis]))
                order[list(places)] = torch.tensor(there[weight])
    changes: list[Change] = []
    for (weight, made), order in orders.items():
        by = weights[weight]
        changes.append((by.weight, _taken(by.out if made else 1 - by.out, order)))
        if made and by.bias is not None:
            changes.append((by.bias, _taken(0, order)))
    return tuple(changes)


def _taken(axis: int, order: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda weight: weight.index_select(axis, order.to(weight.device))


def _head_sites(
    trace: Trace,
    classes: Mapping[int, _Class],
    weights: Mapping[int, Weight],
    chance: torch.Generator,
) -> list[Site]:
    """Heads change places with their queries, keys and values; those that share keys, together."""
    sites = []
    for heads in trace.heads:
        if heads.query is None or heads.key is None:
            continue
        sharing: dict[tuple[int, ...], list[int]] = {}
        for head, key in enumerate(heads.key.tolist()):
            sharing.setdefault(tuple(key), []).append(head)
        groups = list(sharing.values())
        if len(groups) < 2 or len({len(group) for group in groups}) > 1:
            continue
        moves: dict[int, int] = {}
        for here, there in zip(groups, _shuffled(len(groups), chance), strict=True):
            for a, b in zip(here, groups[there], strict=True):
                for part in (heads.query, heads.key, heads.value):
                    moves.update(
                        (trace.root(i), trace.root(j))
                        for i, j in zip(part[a].tolist(), part[b].tolist(), strict=True)
                    )
        if all(root in classes for root in moves):
            sites.append(Site("heads", _moved(moves, classes, weights)))
    return sites


def _value_sites(
    classes: Mapping[int, _Class], weights: Mapping[int, Weight], chance: torch.Generator
) -> list[Site]:
    """Values times a power of two, and the columns that read them divided by it."""
    calls: dict[int, list[_Class]] = {}
    for each in classes.values():
        if each.heads and not each.bent and all(kind == "v" for _, _, kind in each.heads):
            calls.setdefault(min(each.heads)[0], []).append(each)
    sites = []
    for own in calls.values():
        factors: dict[tuple[int, bool], Tensor] = {}
        for each in own:
            power = 2.0 ** int(torch.randint(-2, 3, (), generator=chance))
            for made, places in ((True, each.rows), (False, each.columns)):
                for weight, rows in places.items():
                    by = weights[weight]
                    size = by.weight.shape[by.out if made else 1 - by.out]
                    factor = factors.setdefault((weight, made), torch.ones(size))
                    factor[list(rows)] = power if made else 1 / power
        changes: list[Change] = []
        for (weight, made), factor in factors.items():
            by = weights[weight]
            changes.append((by.weight, _scaled(by.out if made else 1 - by.out, factor)))
            if made and by.bias is not None:
                changes.append((by.bias, _scaled(0, factor)))
        sites.append(Site("values", tuple(changes)))
    return sites


def _scaled(axis: int, factor: Tensor) -> Callable[[Tensor], Tensor]:
    def change(weight: Tensor) -> Tensor:
        shape = [1] * weight.ndim
        shape[axis] = -1
        return weight * factor.to(weight).reshape(shape)

    return change


def _norm_sites(
    trace: Trace, classes: Mapping[int, _Class], weights: Mapping[int, Weight]
) -> list[Site]:
    """A norm that only linear layers read: its scale, and where they have biases its shift."""
    features: dict[int, list[int]] = {}
    for feature, (by, kind, _) in trace.owners.items():
        if kind == "scale":
            features.setdefault(id(by.weight), []).append(feature)
    sites = []
    for norm, own in features.items():
        mine = [classes.get(trace.root(feature)) for feature in own]
        alone = [c for c in mine if c is not None and c.movable and not c.bent]
        if len(alone) < len(own) or any(c.rows != {norm: (i,)} for i, c in enumerate(alone)):
            continue
        readers: dict[int, list[tuple[int, int]]] = {}  # weight: channel, column
        for channel, each in enumerate(alone):
            for weight, columns in each.columns.items():
                readers.setdefault(weight, []).extend((channel, column) for column in columns)
        sites.append(Site("norms", _folded(weights[norm], readers, weights)))
    return sites


def _folded(
    norm: Weight, readers: Mapping[int, list[tuple[int, int]]], weights: Mapping[int, Weight]
) -> tuple[Change, ...]:
    scale = norm.weight.detach().clone()
    shift = None if norm.bias is None else norm.bias.detach().clone()
    biased = all(weights[weight].bias is not None for weight in readers)
    changes: list[Change] = []
    for weight, places in readers.items():
        by = weights[weight]
        axis = 1 - by.out
        channels, columns = (torch.tensor(each) for each in zip(*places, strict=True))
        factor = torch.ones(by.weight.shape[axis]).to(scale)
        factor[columns] = scale[channels]
        if shift is not None and biased and by.bias is not None:
            spread = torch.zeros(by.weight.shape[axis]).to(shift)
            spread[columns] = shift[channels]
            changes.append((by.bias, _shifted(by, spread)))
        changes.append((by.weight, _scaled(axis, factor)))
    if norm.bias is not None and shift is not None:
        rest = torch.zeros_like(shift) if biased else shift / scale
        changes.append((norm.bias, lambda _: rest))
    changes.append((norm.weight, torch.ones_like))
    return tuple(changes)


def _shifted(by: Weight, spread: Tensor) -> Callable[[Tensor], Tensor]:
    def change(bias: Tensor) -> Tensor:
        weight = by.weight.detach() if by.out == 0 else by.weight.detach().T
        return bias + weight @ spread

    return change
