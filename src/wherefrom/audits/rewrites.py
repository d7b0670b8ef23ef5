"""Rewrites of a model that leave its function as it is: other weights, the same outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from wherefrom.audits.feature_trace import Trace
from wherefrom.audits.rewrite_sites import Site, sites_of
from wherefrom.errors import NotFinite
from wherefrom.methods.intercept import run
from wherefrom.subject import Inputs, Subject

PRESERVED = 1e-6
"""How far the outputs may move, as a share of the largest, for a rewrite to be used."""

KINDS = {
    "hidden": "hidden units permuted",
    "heads": "attention heads permuted",
    "channels": "channels within heads permuted",
    "values": "values scaled, their readers scaled back",
    "norms": "a norm's scale and shift folded into the layers that read it",
}


@dataclass(frozen=True)
class Rewrite:
    """All places of a model where one kind of rewrite leaves the outputs as they are."""

    kind: str
    sites: tuple[Site, ...]
    dropped: int  # places that looked like one, but where the outputs moved
    moved: float  # by how much the outputs move, as a share of the largest, all sites at once

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model rewritten; afterwards every weight is as it was."""
        with _restored([p for site in self.sites for p, _ in site.changes]):
            for site in self.sites:
                site.apply()
            yield


def rewrites(subject: Subject, texts: Sequence[Inputs], seed: int = 0) -> list[Rewrite]:
    """Every kind of rewrite, found by watching the model run, each place tried on the texts.

    Meant for a copy of the user's model in float64: weights are changed and put back.
    """
    trace = Trace()
    with subject.evaluating(), trace:
        subject.run(texts[0].take([0]).tensors)
    before = [run(subject, each) for each in texts]

    def moved() -> float:
        """The largest change of an output, or infinity where one is not even finite."""
        try:
            after = [run(subject, each) for each in texts]
        except NotFinite:
            return float("inf")
        pairs = zip(before, after, strict=True)
        return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)) for b, a in pairs)

    found = []
    sites = sites_of(trace, torch.Generator().manual_seed(seed))
    for kind in KINDS:
        mine = [site for site in sites if site.kind == kind]
        kept = []
        for site in mine:
            with _restored([p for p, _ in site.changes]):
                site.apply()
                if moved() <= PRESERVED:
                    kept.append(site)
        together = Rewrite(kind, tuple(kept), len(mine) - len(kept), 0.0)
        with together.applied():
            total = moved()
        found.append(Rewrite(kind, tuple(kept), len(mine) - len(kept), total))
    return found


@contextmanager
def _restored(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    kept = {id(p): (p, p.detach().clone()) for p in parameters}
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, was in kept.values():
                parameter.copy_(was)
