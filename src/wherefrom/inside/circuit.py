"""Circuits: the heads and MLPs that carry an output, and the relevance from each to the next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wherefrom.errors import InputError
from wherefrom.inside.component import Component
from wherefrom.inside.cuts import Tap
from wherefrom.inside.sites import Site
from wherefrom.tracing.tags import widened

if TYPE_CHECKING:
    from wherefrom.inside.inside import Inside

INPUT, CONSTANTS, OUTPUT = "input", "constants", "output"
_HALVINGS = 10


@dataclass(frozen=True)
class Edge:
    """The relevance that flows from one node to the next directly, through no other component."""

    source: str
    target: str
    relevance: float


@dataclass(frozen=True)
class Circuit:
    """Components and edges with a relevance of at least `threshold` in size.

    What flows along these edges from the output back to the input and to constants is `share` of
    the output.
    """

    threshold: float
    share: float
    nodes: dict[Component, float]  # with the relevance that flows through each along the edges
    edges: tuple[Edge, ...]

    def largest(self) -> list[Component]:
        """The components by the size of their relevance."""
        return sorted(self.nodes, key=lambda node: -abs(self.nodes[node]))


def circuit(inside: Inside, share: float) -> Circuit:
    """The circuit of the largest threshold whose share of the output misses 1 by 1 − `share`.

    Thresholds are the output, halved up to ten times.
    """
    if not 0 < share <= 1:
        raise InputError(f"share must be above 0 and at most 1, got {share}.")
    whole = inside.flow
    for halvings in range(1, _HALVINGS + 1):
        found = _Search(inside, abs(whole) / 2**halvings).run()
        if abs(found.share - 1) <= 1 - share + 1e-9:
            break
    return found


@dataclass(eq=False)
class _Search:
    """Follows relevance from the output to components, and from each to earlier ones."""

    inside: Inside
    threshold: float
    edges: list[Edge] = field(default_factory=list)
    seeds: dict[Component, dict[int, Tensor]] = field(default_factory=dict)  # by number of the tap
    ended: float = 0.0  # relevance of the input and of constants

    def run(self) -> Circuit:
        taps = [tap for tap in self.inside.taps if tap.crossing.site is not None]
        self._follow(OUTPUT, self.inside.scalar, taps, ())
        nodes: dict[Component, float] = {}
        for site in reversed(self.inside.sites):
            for component in components_of(site):
                seeds = self.seeds.get(component)
                if seeds is None:
                    continue
                own = [taps[number] for number in seeds]
                nodes[component] = sum(map(_product, seeds.values(), own))
                with torch.enable_grad():
                    parts = [
                        (tap.tensor * seed).sum()
                        for tap, seed in zip(own, seeds.values(), strict=True)
                    ]
                    output = torch.stack(parts).sum()
                self._follow(str(component), output, taps, own)
        return Circuit(self.threshold, self.ended / self.inside.flow, nodes, tuple(self.edges))

    def _follow(
        self, target: str, output: Tensor, taps: Sequence[Tap], passing: Collection[Tap]
    ) -> None:
        """Adds the edges into a node, whose part of the output is given."""
        gradients, at_input, constants = self.inside.direct(output, taps, passing)
        weights: dict[Component, float] = {}
        seeds: dict[Component, dict[int, Tensor]] = {}
        for number, (tap, gradient) in enumerate(zip(taps, gradients, strict=True)):
            site = tap.crossing.site
            if site is None or tap in passing or not bool(gradient.any()):
                continue
            for component in components_of(site):
                seed = gradient * component.mask(site, tap.value)
                weights[component] = weights.get(component, 0.0) + _product(seed, tap)
                seeds.setdefault(component, {})[number] = seed
        for source, relevance in ((INPUT, at_input), (CONSTANTS, constants)):
            self.ended += relevance
            if abs(relevance) >= self.threshold:
                self.edges.append(Edge(source, target, relevance))
        for component, relevance in weights.items():
            if abs(relevance) >= self.threshold:
                self.edges.append(Edge(str(component), target, relevance))
                known = self.seeds.setdefault(component, {})
                for number, seed in seeds[component].items():
                    known[number] = known[number] + seed if number in known else seed


def components_of(site: Site) -> list[Component]:
    """The components of a site: its heads, or its MLP or expert."""
    if site.place == "heads":
        numbers = range(site.first_head, site.first_head + (site.heads or 0))
        whole = [Component(site.layer, "attention")]
        return [Component(site.layer, "head", number) for number in numbers] or whole
    if site.expert is not None:
        return [Component(site.layer, "expert", site.expert)]
    return [Component(site.layer, "mlp")]


def _product(seed: Tensor, tap: Tap) -> float:
    return float((widened(seed) * widened(tap.value)).sum(dtype=torch.float64))
