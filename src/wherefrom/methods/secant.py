"""Secants between a reference and the input, and the method that is used if none is named."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import ClassVar, Self

import torch
from torch import Tensor

from wherefrom.core.runner import Batch
from wherefrom.core.target import Case
from wherefrom.errors import MethodError
from wherefrom.methods.base import Method, Scores
from wherefrom.methods.forward_graph import ForwardGraph
from wherefrom.methods.propagation import At, Lrp, Propagation, read_at
from wherefrom.methods.root import Root, Rooted
from wherefrom.rules.secants import TWO_POINTS
from wherefrom.tracing.tracer import Table


@dataclass(frozen=True)
class Secant(Propagation):
    """Splits f(x) − f(x′) call by call between the input and a reference: near Shapley values.

    `root` is the reference x′: by default the unknown word, the mean embedding of a language
    model, or zero. With `splits` the way there goes by halves: every second unit first, then the
    others, and the other way round; the second split takes units two by two, the third four by
    four. Each split takes four times as long and comes closer to Shapley values.
    """

    name: ClassVar[str] = "secant"
    paper: ClassVar[str] = "DeepLIFT (Shrikumar et al. 2017), extended to attention and norms"
    closes: ClassVar[bool] = True
    at: At = "embeddings"
    root: Root = "auto"
    splits: int = 0

    def __post_init__(self) -> None:
        if self.root is None:
            raise MethodError('secant needs a root, such as "zero".')
        if self.splits < 0:
            raise MethodError(f"splits must be 0 or more, got {self.splits}.")

    def resolved(self, inputs: Batch) -> Self:
        is_auto = isinstance(self.root, str) and self.root == "auto"
        return replace(self, root=inputs.missing or "zero") if is_auto else self

    def table(self) -> Table:
        return TWO_POINTS

    def rooted(self) -> Rooted:
        assert self.root is not None
        return Rooted(self.root, secants=True)

    def graph(self, case: Case) -> ForwardGraph | None:
        return super().graph(case) if self.splits == 0 else None

    def scores(self, case: Case) -> Scores:
        if self.splits == 0:
            return read_at(self.at, case, self._forward_graph).scores(case.target)
        rooted = self.resolved(case.batch).rooted()
        ranks = (case.batch.mask.cpu() & ~case.batch.special()).cumsum(1) - 1
        halves = [ranks >> split & 1 == side for split in range(self.splits) for side in (0, 1)]
        pieces = []
        for half in halves:
            last = self._between(case, replace(rooted, first=half))
            assert last.logits is not None
            case = case.resolved(last.logits)
            first = self._between(case, replace(rooted, second=half))
            pieces += [first, last]
        return _joined(pieces)

    def _between(self, case: Case, rooted: Rooted) -> Scores:
        run = partial(self._forward_graph, rooted=rooted)
        return read_at(self.at, case, run).scores(case.target)


def _joined(pieces: list[Scores]) -> Scores:
    """The mean over ways of two parts each; only the first part begins at the reference."""
    ways = len(pieces) // 2
    lines: dict[tuple[str, str], Tensor] = {}
    for number, piece in enumerate(pieces):
        for key, value in (piece.lines or {}).items():
            if key[1] != "reference" or number % 2 == 0:
                lines[key] = lines.get(key, torch.zeros_like(value)) + value / ways
    warned = zip(*(piece.warnings for piece in pieces if piece.warnings), strict=True)
    return Scores(
        torch.stack([piece.values for piece in pieces]).sum(0) / ways,
        pieces[1].logits,
        {
            name: torch.stack([piece.parts[name] for piece in pieces]).sum(0) / ways
            for name in pieces[0].parts
        },
        lines,
        tuple(tuple(dict.fromkeys(chain.from_iterable(each))) for each in warned),
    )


@dataclass(frozen=True)
class Auto(Method):
    """The method that measured best: `secant` for texts to classify, else `lrp`."""

    name: ClassVar[str] = "auto"
    root: Root = "auto"

    def resolved(self, inputs: Batch) -> Method:
        kind = Secant if inputs.missing == "unk" else Lrp
        return kind(root=self.root).resolved(inputs)

    def graph(self, case: Case) -> ForwardGraph | None:
        return self.resolved(case.batch).graph(case)

    def scores(self, case: Case) -> Scores:
        return self.resolved(case.batch).scores(case)
