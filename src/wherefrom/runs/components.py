"""Components ranked over many texts, on any engine, with the texts that speak most to each."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from wherefrom.core.runner import Rejected
from wherefrom.errors import InputError, WherefromError
from wherefrom.runs.engine import Engine, ModelSource
from wherefrom.storage.fingerprint import explainer_fingerprint

Ranks = Literal["neuron", "head", "mlp", "expert"]
_PART = 64  # texts that a worker gets at a time


@dataclass(frozen=True)
class RankedComponent:
    """A component, its relevance over all texts, and the texts in which it is largest."""

    component: str
    mean: float
    mean_size: float  # of its absolute value, by which components are ranked
    examples: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Ranking:
    """Ranked components, and what became of the texts."""

    components: tuple[RankedComponent, ...]
    explained: int
    rejected: tuple[Rejected, ...]


def rank_components(
    model: Any,
    texts: Iterable[str],
    kind: Ranks = "neuron",
    *,
    count: int = 20,
    examples: int = 5,
    engine: Engine | None = None,
    **options: Any,
) -> Ranking:
    """Ranks neurons, heads, MLPs or experts by the mean size of their relevance over texts.

    `model` is an explainer, or what `load` takes. All other options are those of
    `Explainer.inside`. A text that cannot be explained is left out and named in the result.
    """
    if kind not in Ranks.__args__:  # type: ignore[attr-defined]
        raise InputError(f'kind must be one of {", ".join(Ranks.__args__)}, got "{kind}".')  # type: ignore[attr-defined]
    source, engine = ModelSource(model), engine or Engine()
    totals: dict[str, _Total] = {}
    explained, rejected = 0, []
    with engine.connected(source.explainer) as explainer:
        fingerprint = explainer_fingerprint(explainer)
        work = _Rank(source, fingerprint, engine.gpus_per_worker > 0, kind, options)
        for results in engine.results([_parts(texts)], work):
            for number, text, relevance in results:
                if isinstance(relevance, str):
                    rejected.append(Rejected(number, InputError(relevance)))
                    continue
                explained += 1
                for component, value in relevance.items():
                    totals.setdefault(component, _Total()).add(value, text, examples)
    largest = heapq.nlargest(count, totals.items(), key=lambda item: item[1].size)
    return Ranking(
        tuple(
            RankedComponent(
                component, total.sum / explained, total.size / explained, total.examples()
            )
            for component, total in largest
        ),
        explained,
        tuple(rejected),
    )


def _parts(texts: Iterable[str]) -> Iterator[list[tuple[int, str]]]:
    part: list[tuple[int, str]] = []
    for numbered in enumerate(texts):
        part.append(numbered)
        if len(part) == _PART:
            yield part
            part = []
    if part:
        yield part


@dataclass
class _Total:
    sum: float = 0.0
    size: float = 0.0
    best: list[tuple[float, float, str]] = field(default_factory=list)  # a heap

    def add(self, value: float, text: str, most: int) -> None:
        """Counts one text."""
        self.sum += value
        self.size += abs(value)
        keep = heapq.heappush if len(self.best) < most else heapq.heappushpop
        keep(self.best, (abs(value), value, text))

    def examples(self) -> tuple[tuple[str, float], ...]:
        """The texts in which it is largest, the largest first."""
        return tuple((text, value) for _, value, text in sorted(self.best, reverse=True))


@dataclass
class _Rank:
    """The relevance of each component of one kind, for a part of the texts."""

    model: ModelSource
    fingerprint: Mapping[str, Any]
    on_gpu: bool
    kind: Ranks
    options: Mapping[str, Any]

    def __call__(self, part: list[tuple[int, str]]) -> list[tuple[int, str, Any]]:
        explainer = self.model.verified(self.fingerprint, self.on_gpu)
        results: list[tuple[int, str, Any]] = []
        for number, text in part:
            try:
                inside = explainer.inside(text, **self.options)
                results.append((number, text, dict(inside.top(self.kind, sys.maxsize))))
            except WherefromError as error:
                results.append((number, text, str(error)))
        return results
