"""Gradients along a path from a baseline to the input."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from wherefrom.core.explanation import plural
from wherefrom.core.runner import Batch
from wherefrom.core.target import Case
from wherefrom.core.torch_internals import without_function_modes
from wherefrom.errors import MethodError, NotComplete
from wherefrom.methods.base import Method, Scores, by_sample
from wherefrom.methods.embedded_inputs import EmbeddedInputs, Pair, baseline_values, over_sources
from wherefrom.methods.propagation import PLAIN, At, plain_table, read_at
from wherefrom.tracing.observers.entry_points import Place
from wherefrom.tracing.tracer import Table

_INCOMPLETE = 0.5  # relative gap from which on a warning is given
Baseline = str | int | Tensor
PathFunction = Callable[[Tensor, Tensor, float], Tensor]  # baseline, input, a in [0, 1] -> point


def straight(start: Tensor, end: Tensor, a: float) -> Tensor:
    """The straight line from the baseline to the input."""
    return start + a * (end - start)


def nodes(steps: int, rule: str) -> tuple[list[float], list[float]]:
    """Nodes and weights of a quadrature rule on [0, 1]."""
    if steps < 1:
        raise MethodError(f"a path needs at least one step, got {steps}.")
    if rule == "gauss":
        points, weights = np.polynomial.legendre.leggauss(steps)
        return list(0.5 * (points + 1)), list(0.5 * weights)
    if rule == "right":
        return [(k + 1) / steps for k in range(steps)], [1 / steps] * steps
    if rule == "middle":
        return [(k + 0.5) / steps for k in range(steps)], [1 / steps] * steps
    raise MethodError(f'there is no rule "{rule}"; there are: gauss, right, middle.')


class _AlongPath(Method):
    """The common part of methods that integrate gradients along a path."""

    baseline: Baseline
    steps: int
    softplus: float | None
    at: At

    def resolved(self, inputs: Batch) -> Self:
        if not isinstance(self.baseline, str) or self.baseline != "auto":
            return self
        baseline = "mean" if inputs.missing == "mean" else "zero"
        return replace(self, baseline=baseline)  # type: ignore[type-var]

    def scores(self, case: Case) -> Scores:
        return read_at(self.at, case, self.resolved(case.batch)._scores)

    def _scores(self, case: Case, at: Place) -> Scores:
        embedded = EmbeddedInputs.capture(case, at)
        start = baseline_values(embedded, self.baseline)
        low = self._at(embedded, start)
        high = embedded.case.target(embedded.logits).double().cpu()
        rise = high - low
        if self.softplus is not None:
            table = plain_table(self.softplus)
            rise = self._at(embedded, embedded.values, table) - self._at(embedded, start, table)
        values = self._until_close(embedded, start, rise)
        advice = "choose another baseline"
        is_mean = isinstance(self.baseline, str) and self.baseline == "mean"
        if case.batch.missing == "mean" and not is_mean:
            advice = "use the mean as baseline"
        gaps = self._warn_if_incomplete(values.sum(1) - rise, rise, advice)
        values = values * case.batch.mask
        noun = case.batch.noun
        lines = {(plural(noun), noun): values.sum(1), ("baseline", "baseline"): low}
        warned = by_sample(len(case.batch), gaps)
        return Scores(values, embedded.logits, {noun: values}, lines, warnings=warned)

    def _warn_if_incomplete(self, gaps: Tensor, rise: Tensor, advice: str) -> dict[int, str]:
        """Warns of samples whose integral misses f(x) − f(x′) by half of it or more."""
        messages = {
            i: f"{self.label}: the scores add up to {float(rise[i] + gaps[i]):.3g} instead of "
            f"f(x) − f(x′) = {float(rise[i]):.3g}: the gradient changes too much along the path. "
            f"Take more steps, set a tolerance, {advice}, or use the method lrp."
            for i in (gaps.abs() > _INCOMPLETE * rise.abs()).nonzero().flatten().tolist()
        }
        for message in list(messages.values())[:1]:  # one for the batch
            warnings.warn(message, NotComplete, stacklevel=4)
        return messages

    def _at(self, embedded: EmbeddedInputs, point: list[Tensor], table: Table = PLAIN) -> Tensor:
        """The target at an embedded input of each sample."""
        values = torch.zeros(len(embedded.case.batch), dtype=torch.float64)
        samples = [(i, 0) for i in range(len(values))]
        for rows, outputs in embedded.outputs(samples, lambda k, i, _: point[k][i], table):
            values[[i for i, _ in rows]] = outputs
        return values

    def _until_close(self, embedded: EmbeddedInputs, start: list[Tensor], rise: Tensor) -> Tensor:
        """The integral, with the steps doubled until the gap is within the tolerance."""
        steps = self.steps
        while True:
            values = self._integral(embedded, start, steps)
            gap = (values.sum(1) - rise).abs().max()
            tolerance = self._tolerance()
            if tolerance is None or not float(gap) > tolerance:  # or NaN, which is refused later
                return values
            if steps >= 4096:
                raise MethodError(
                    f"the completeness gap is still {float(gap):.2g} after {steps} steps, over "
                    f"the tolerance {tolerance:g}. Pass a larger one."
                )
            steps *= 2

    def _tolerance(self) -> float | None:
        return None

    @abstractmethod
    def _integral(self, embedded: EmbeddedInputs, start: list[Tensor], steps: int) -> Tensor:
        """The sum of gradient times step along the path, as values of units."""

    def _weighted(
        self,
        embedded: EmbeddedInputs,
        count: int,
        point: Callable[[int, int, int], Tensor],
        steps: Callable[[int, list[Pair]], Tensor],
    ) -> Tensor:
        """Σ gradient · step over the copies, as values of units; `steps` returns (rows, T, D)."""
        totals = [torch.zeros(v.shape[:2], dtype=torch.float64) for v in embedded.values]
        pairs = [(i, copy) for copy in range(count) for i in range(len(embedded.case.batch))]
        table = plain_table(self.softplus)
        for rows, gradients in embedded.gradients(pairs, point, table):
            samples = torch.tensor([i for i, _ in rows])
            with without_function_modes():  # the tracer is still open
                for k, gradient in enumerate(gradients):
                    amounts = (gradient * steps(k, rows)).sum(-1).double()
                    totals[k].index_add_(0, samples, amounts)
        return over_sources(embedded, totals)


@dataclass(frozen=True)
class IntegratedGradients(_AlongPath):
    """The mean gradient on the line from a baseline x′ to x, times x − x′; sums to f(x) − f(x′).

    The baseline "auto" is the mean embedding for texts of a generative model, else zero.
    """

    name: ClassVar[str] = "integrated_gradients"
    paper: ClassVar[str] = "Sundararajan et al. 2017"
    steps: int = 32
    baseline: Baseline = "auto"
    rule: Literal["gauss", "right", "middle"] = "gauss"
    tolerance: float | None = None
    softplus: float | None = None
    at: At = "embeddings"

    def _tolerance(self) -> float | None:
        return self.tolerance

    def _integral(self, embedded: EmbeddedInputs, start: list[Tensor], steps: int) -> Tensor:
        points, weights = nodes(steps, self.rule)
        whole = [end - begin for begin, end in zip(start, embedded.values, strict=True)]

        def increments(k: int, rows: list[Pair]) -> Tensor:
            samples, copies = zip(*rows, strict=True)
            shares = torch.tensor([weights[copy] for copy in copies], dtype=torch.float64).to(
                whole[k]
            )
            return whole[k][list(samples)] * shares[:, None, None]

        return self._weighted(
            embedded,
            steps,
            lambda k, i, copy: straight(start[k][i], embedded.values[k][i], points[copy]),
            increments,
        )


@dataclass(frozen=True)
class PathGradients(_AlongPath):
    """The gradient along any path from a baseline to the input (a straight one by default)."""

    name: ClassVar[str] = "path_gradients"
    paper: ClassVar[str] = "Friedman 2004; Sundararajan et al. 2017"
    path: PathFunction = field(default=straight)
    steps: int = 64
    baseline: Baseline = "auto"
    softplus: float | None = None
    at: At = "embeddings"

    def _integral(self, embedded: EmbeddedInputs, start: list[Tensor], steps: int) -> Tensor:
        def at(k: int, i: int, a: float) -> Tensor:
            return self.path(start[k][i], embedded.values[k][i], a)

        def increments(k: int, rows: list[Pair]) -> Tensor:
            ends = [(i, copy / steps, (copy + 1) / steps) for i, copy in rows]
            return torch.stack([at(k, i, b) - at(k, i, a) for i, a, b in ends])

        self._check_ends(start, embedded.values)
        middle, _ = nodes(steps, "middle")
        return self._weighted(
            embedded,
            steps,
            lambda k, i, copy: at(k, i, middle[copy]),
            increments,
        )

    def _check_ends(self, start: list[Tensor], end: list[Tensor]) -> None:
        for a, b in zip(start, end, strict=True):
            for place, wanted in ((0.0, a[0]), (1.0, b[0])):
                if not torch.allclose(self.path(a[0], b[0], place), wanted, atol=1e-5):
                    raise MethodError(
                        f"the path does not lead from the baseline to the input at a = {place:g}.",
                        "It must be a function path(baseline, input, a) with a from 0 to 1.",
                        command="",
                    )
