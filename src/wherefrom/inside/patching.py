"""Relevance patching: the effect of every component of one prompt on another, from few passes.

Patching a component replaces its value in the clean run by that of the corrupted run. Its effect is
estimated by gradient × difference of the values, in a model that is linear between both runs
(secants) for the residual stream and for attention, and in one with constant attention weights and
norm scales (AH and LN rules) for MLPs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from wherefrom.core.explanation import Unit
from wherefrom.core.scope import restores_state
from wherefrom.core.target import Case
from wherefrom.errors import InputError
from wherefrom.inside.circuit import components_of
from wherefrom.inside.component import Component, ComponentKind
from wherefrom.inside.cuts import Cuts
from wherefrom.inside.interventions import observed_run
from wherefrom.inside.sites import Site, SiteObserver
from wherefrom.methods.forward_pass import intercepted_forward
from wherefrom.methods.propagation import AH_LN
from wherefrom.rules.secants import TWO_POINTS
from wherefrom.tracing.catalogue import TorchCall
from wherefrom.tracing.tracer import RootActivations, Table, Tracer

Numbers = NDArray[np.float64]
KINDS: tuple[ComponentKind, ...] = ("stream", "attention", "mlp")
_KIND_AT: dict[str, ComponentKind] = {"block": "stream", "heads": "attention", "neurons": "mlp"}
_BATCH = 32  # patched runs at once


@dataclass(frozen=True)
class Patched:
    """A component, its estimated effect, and the effect that patching it really has."""

    component: Component
    estimate: float
    effect: float


@dataclass(frozen=True)
class Agreement:
    """Estimates against real effects: Pearson's r, and the mean error over the mean effect."""

    count: int
    correlation: float
    error: float


class Patching:
    """Estimated effects of patching each component at each unit; `verify` patches for real.

    An effect is the output with the component of the corrupted run minus the clean output. Made by
    `Explainer.patching`.
    """

    def __init__(
        self, clean: Case, corrupted: Case, estimates: dict[ComponentKind, Numbers]
    ) -> None:
        self.clean, self.corrupted = clean, corrupted
        self._values: _Values | None = None
        self.units: tuple[Unit, ...] = clean.batch.units[0]
        self.corrupted_units: tuple[Unit, ...] = corrupted.batch.units[0]
        self.estimates = estimates  # by kind, (layers, units); of heads (layers, heads, units)

    @staticmethod
    @restores_state
    def of(clean: Case, corrupted: Case) -> Patching:
        """Estimates from two forward passes at each input and two backward passes."""
        lengths = [len(case.batch.units[0]) for case in (clean, corrupted)]
        if lengths[0] != lengths[1]:
            raise InputError(
                f"patching needs two inputs of the same length, got {lengths[0]} and {lengths[1]} "
                "units."
            )
        root = RootActivations()
        reference = traced(TWO_POINTS, corrupted, root_activations=root)
        root.finish_root()
        between = traced(TWO_POINTS, clean, reference, root_activations=root)
        beside = traced(AH_LN, clean, traced(AH_LN, corrupted))
        estimates = estimated(between, lengths[0])
        estimates["mlp"] = estimated(beside, lengths[0])["mlp"]
        return Patching(clean, corrupted, estimates)

    def top(self, count: int = 20) -> list[Patched]:
        """The components with the largest estimates, patched for real."""
        found = []
        for kind in KINDS:
            values = self.estimates[kind]
            found += [
                (float(value), Component(int(layer), kind, unit=int(unit)))
                for (layer, unit), value in np.ndenumerate(values)
            ]
        found.sort(key=lambda pair: -abs(pair[0]))
        return self.verify([component for _, component in found[:count]])

    def estimate(self, component: str | Component) -> float:
        """The estimated effect of a component; over all units if it names none."""
        own = Component.parse(component)
        if own.kind not in self.estimates or own.layer >= len(self.estimates["stream"]):
            raise InputError(
                f"there is no estimate of {own}: there are of {', '.join(KINDS)}, head."
            )
        values = self.estimates[own.kind][own.layer]
        if own.kind == "head":
            values = values[own.number]
        return float(values.sum() if own.unit is None else values[own.unit])

    @restores_state
    def verify(self, components: Sequence[str | Component]) -> list[Patched]:
        """Patches each of these components for real, one forward pass each, in batches."""
        own = [Component.parse(component) for component in components]
        values = self._recorded()
        clean = float(self.clean.target(_observed(self.clean, None))[0])
        effects: list[float] = []
        for start in range(0, len(own), _BATCH):
            part = own[start : start + _BATCH]
            repeated = self.clean.take([0] * len(part))
            singles = [(component,) for component in part]
            logits = _observed(repeated, _Patches(repeated.runner.model, singles, values))
            effects += (repeated.target(logits).double() - clean).tolist()
        return [
            Patched(component, self.estimate(component), effect)
            for component, effect in zip(own, effects, strict=True)
        ]

    @restores_state
    def recovered(self, kept: Sequence[Collection[str | Component]]) -> list[float]:
        """The share of the outputs' difference that some heads and MLPs carry, for each choice.

        All other heads and MLPs are patched: 1 is the clean output, 0 the corrupted one.
        """
        values = self._recorded()
        everything = {component for site in values.sites for component in components_of(site)}
        own = [{Component.parse(component) for component in components} for components in kept]
        ends = [
            float(case.target(_observed(case, None))[0]) for case in (self.clean, self.corrupted)
        ]
        shares: list[float] = []
        for start in range(0, len(own), _BATCH):
            part = [everything - components for components in own[start : start + _BATCH]]
            repeated = self.clean.take([0] * len(part))
            logits = _observed(repeated, _Patches(repeated.runner.model, part, values))
            outputs = repeated.target(logits).double()
            shares += ((outputs - ends[1]) / (ends[0] - ends[1])).tolist()
        return shares

    def _recorded(self) -> _Values:
        if self._values is None:
            self._values = _Values(self.corrupted.runner.model)
            _observed(self.corrupted, self._values)
        return self._values

    @staticmethod
    def agreement(patched: Sequence[Patched]) -> dict[ComponentKind, Agreement]:
        """How well estimates agree with real effects, by kind of component."""
        result: dict[ComponentKind, Agreement] = {}
        for kind in dict.fromkeys(item.component.kind for item in patched):
            own = [item for item in patched if item.component.kind == kind]
            estimates, effects = (
                np.array(values)
                for values in zip(*((item.estimate, item.effect) for item in own), strict=True)
            )
            varies = len(own) > 1 and estimates.std() > 0 and effects.std() > 0
            correlation = float(np.corrcoef(estimates, effects)[0, 1]) if varies else float("nan")
            size = float(np.abs(effects).mean())
            error = float(np.abs(estimates - effects).mean()) / size if size else float("nan")
            result[kind] = Agreement(len(own), correlation, error)
        return result


def traced(table: Table, case: Case, reference: Cuts | None = None, **options: Any) -> Cuts:
    """The cuts of a forward and a backward pass; with a reference, of the difference to it."""
    cuts = Cuts(case.runner.model, None if reference is None else reference.taps)
    with intercepted_forward(table, case, observers=[cuts], **options) as forward:
        pass
    if reference is not None:
        forward.at_sources()
    return cuts


def estimated(cuts: Cuts, units: int) -> dict[ComponentKind, Numbers]:
    """−g · difference by kind, (layers, units); of heads (layers, heads, units)."""
    estimates: dict[ComponentKind, Numbers] = {
        kind: np.zeros((cuts.layers, units)) for kind in KINDS
    }
    heads: list[list[Numbers]] = [[] for _ in range(cuts.layers)]
    for number, (place, layer, _, site) in enumerate(cuts.moments, 1):
        if place == "end":
            continue
        for tap in cuts.taps:
            crossing = tap.crossing
            crosses = crossing.made < number <= crossing.used and crossing.site == site
            if crosses and crossing.rows is not None and crossing.rows.numel() % units == 0:
                rows = -crossing.rows.reshape(-1, units).cpu().numpy()
                estimates[_KIND_AT[place]][layer] += rows.sum(0)
                if place == "heads":
                    heads[layer].append(rows)
    if any(heads):
        estimates["head"] = np.array([np.concatenate(rows) for rows in heads])
    return estimates


def _observed(case: Case, observer: SiteObserver | None) -> Tensor:
    """The logits of a pass with an observer of its sites."""
    runner, tensors = case.runner, case.batch.model_tensors()
    if observer is None:
        with runner.evaluating(gradients=False):
            return runner.run(tensors, case.target.position)
    return observed_run(runner, tensors, case.target.position, observer)


class _Values(SiteObserver):
    """Records the residual stream, heads and neurons of a pass of one sample."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.streams: dict[int, Tensor] = {}
        self.sites: dict[Site, Tensor] = {}

    def on_block(self, tracer: Tracer, args: tuple[Any, ...]) -> tuple[Any, ...]:
        self.streams[self.layers - 1] = _state(args).detach().clone()
        return args

    def on_site(self, tracer: Tracer, site: Site, call: TorchCall, tensor: Tensor) -> Tensor:
        self.sites[site] = tensor.detach().clone()
        return tensor


class _Patches(SiteObserver):
    """Replaces components of each sample by their values in another pass."""

    def __init__(
        self, model: nn.Module, components: Sequence[Collection[Component]], values: _Values
    ) -> None:
        super().__init__(model)
        self._components, self._values = components, values

    def on_block(self, tracer: Tracer, args: tuple[Any, ...]) -> tuple[Any, ...]:
        state, layer = _state(args), self.layers - 1
        patched = state.clone()
        for i, components in enumerate(self._components):
            for component in components:
                if component.kind == "stream" and component.layer == layer:
                    rows = _index(component.unit)
                    patched[i, rows] = self._values.streams[layer][0, rows]
        return tuple(patched if arg is state else arg for arg in args)

    def on_site(self, tracer: Tracer, site: Site, call: TorchCall, tensor: Tensor) -> Tensor:
        groups = (site.heads or 1) if site.place == "heads" else 1
        shape = (groups, -1, tensor.shape[-1])  # heads, rows, features
        patched, value = tensor.clone(), self._values.sites[site].reshape(shape)
        parts = patched.view(len(self._components), *shape)
        for i, components in enumerate(self._components):
            for component in components:
                if component.is_at(site):
                    head = component.number if component.kind == "head" else None
                    neuron = component.number if component.kind == "neuron" else None
                    head = None if head is None else head - site.first_head
                    at = _index(head), _index(component.unit), _index(neuron)
                    parts[i][at] = value[at]
        return patched


def _index(number: int | None) -> slice:
    """A number as a slice; None is all."""
    return slice(None) if number is None else slice(number, number + 1)


def _state(args: tuple[Any, ...]) -> Tensor:
    """The residual stream among the arguments of a block."""
    return next(arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad)
