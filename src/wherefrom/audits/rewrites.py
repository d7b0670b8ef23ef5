"""Rewrites of a model that keep its function: other weights, the same outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from wherefrom.audits.feature_trace import Trace
from wherefrom.audits.rewrite_sites import Site, sites_of
from wherefrom.core.runner import Batch, Case, ModelRunner
from wherefrom.core.scope import restores_state
from wherefrom.errors import NotFinite
from wherefrom.methods.forward_pass import run

PRESERVED = 1e-6
"""How far outputs may change, as a share of the largest, for a rewrite to be used."""

KINDS = {
    "hidden": "hidden units permuted",
    "heads": "attention heads permuted",
    "channels": "channels within heads permuted",
    "values": "values scaled, their readers scaled back",
    "norms": "a norm's scale and shift folded into the layers that read it",
}


@dataclass(frozen=True)
class Rewrite:
    """All places of a model where one kind of rewrite keeps the outputs."""

    kind: str
    sites: tuple[Site, ...]
    dropped: int  # candidates where the outputs changed
    output_change: float  # as a share of the largest output, all sites rewritten at once

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model rewritten; afterwards every weight is restored."""
        with _restored([p for site in self.sites for p, _ in site.changes]):
            for site in self.sites:
                site.apply()
            yield


@restores_state
def rewrites(runner: ModelRunner, samples: Sequence[Batch], seed: int = 0) -> list[Rewrite]:
    """Every kind of rewrite, found by tracing one run, each site tried on all samples.

    Meant for a float64 copy of the user's model: weights are changed and restored.
    """
    trace = Trace()
    with runner.evaluating(), trace:
        runner.run(samples[0].take([0]).model_tensors())
    before = [run(Case(runner, inputs)) for inputs in samples]

    def output_change() -> float:
        """The largest relative change of an output; infinite where one is not finite."""
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
