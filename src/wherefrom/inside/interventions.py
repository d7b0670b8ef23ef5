"""Interventions: components that are scaled, removed or shifted while the model runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.core.runner import ModelRunner
from wherefrom.core.torch_internals import function_modes, without_function_modes
from wherefrom.errors import InputError
from wherefrom.inside.component import Component
from wherefrom.inside.sites import Site, SiteObserver
from wherefrom.methods.propagation import PLAIN
from wherefrom.tracing.catalogue import TorchCall
from wherefrom.tracing.observers.entry_points import EntryPoints
from wherefrom.tracing.tags import tag_of
from wherefrom.tracing.tracer import Tracer


@dataclass(frozen=True)
class Interventions:
    """Runs a model with changed components, as `ModelRunner.around`.

    A number scales a component, so 0 removes it; a tensor is added to it.
    """

    changes: Mapping[Component, float | Tensor]

    def __call__(
        self, runner: ModelRunner, tensors: Mapping[str, Tensor], positions: Tensor | None
    ) -> Tensor:
        observer = _Changes(runner.model, self.changes)
        tracers = [mode for mode in function_modes() if isinstance(mode, Tracer)]
        if tracers and torch.is_grad_enabled():
            with tracers[-1].observed(observer):
                logits = runner.run(tensors, positions)
        else:
            logits = observed_run(runner, tensors, positions, observer)
        missing = [str(component) for component in self.changes if component not in observer.met]
        if missing:
            raise InputError(
                f"{runner.name} has no {', '.join(missing)} in this pass: it has {observer.layers} "
                "blocks.",
                "explainer.inside(input) shows their heads and neurons.",
                command="wherefrom inside shows their heads and neurons.",
            )
        return logits


def observed_run(
    runner: ModelRunner,
    tensors: Mapping[str, Tensor],
    positions: Tensor | None,
    observer: SiteObserver,
) -> Tensor:
    """The logits, detached, of a pass with an observer of its sites."""
    copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    # within another traced pass the fields of the input keep their numbers
    fields = [name for name in tensors if tag_of(tensors[name]).stream is not None]
    fields.sort(key=lambda name: tag_of(tensors[name]).stream or 0)
    if not fields:
        fields = [n for n, x in copies.items() if x.is_floating_point() or n.endswith("input_ids")]
    with runner.evaluating():
        sources = EntryPoints([copies[name] for name in fields])
        for number, name in enumerate(fields):
            if copies[name].is_floating_point():
                entered = sources.enter(copies[name], sources.span_of(number))
                copies[name] = sources.begin(entered, sources.span_of(number))
        with Tracer(PLAIN, sources, model=runner.model, ledger=False, observers=[observer]):
            return runner.run(copies, positions).detach()


class _Changes(SiteObserver):
    """Changes components where they are complete."""

    def __init__(self, model: nn.Module, changes: Mapping[Component, float | Tensor]) -> None:
        super().__init__(model)
        self.met: set[Component] = set()
        self._changes = changes

    def on_block(self, tracer: Tracer, args: tuple[Any, ...]) -> tuple[Any, ...]:
        for component, change in self._changes.items():
            state = next((i for i, x in enumerate(args) if _is_state(x)), None)
            if component == Component(self.layers - 1) and state is not None:
                self.met.add(component)
                changed = _changed(tracer, args[state], change)
                args = (*args[:state], changed, *args[state + 1 :])
        return args

    def on_site(self, tracer: Tracer, site: Site, call: TorchCall, tensor: Tensor) -> Tensor:
        for component, change in self._changes.items():
            if component.is_at(site):
                self.met.add(component)
                mask = component.mask(site, tensor, tracer.entry_points.batch)
                tensor = _changed(tracer, tensor, change, mask)
        return tensor


def _is_state(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad and value.is_floating_point()


def _changed(
    tracer: Tracer, tensor: Tensor, change: float | Tensor, mask: Tensor | None = None
) -> Tensor:
    """The tensor, scaled or shifted where the mask is true."""
    with without_function_modes():
        if isinstance(change, Tensor):
            added = change.detach().to(tensor).expand(tensor.shape)
            added = added if mask is None else added * mask
            changed = tensor + added
            if tracer.root_activations is None:  # of two points it is the same at both
                tracer.ledger.record(changed, added, tracer.where, "bias")
        else:
            scale = torch.full((), change, dtype=tensor.dtype, device=tensor.device)
            changed = tensor * (scale if mask is None else torch.where(mask, scale, 1.0))
    for name, value in vars(tensor).items():  # tags and marks
        if name.startswith("wherefrom_"):
            setattr(changed, name, value)
    return changed
