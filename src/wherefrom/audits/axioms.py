"""The axioms of attribution (Sundararajan et al. 2017), each measured as a number."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wherefrom.audits.altered_models import (
    Case,
    at_one_place,
    made_equal,
    symmetrised,
    treats_alike,
    unseeing,
)
from wherefrom.errors import InputError, ModelError
from wherefrom.methods import Method, Scores
from wherefrom.methods.embedded_inputs import EmbeddedInputs, baseline_values
from wherefrom.methods.occlusion import Occlusion

MATTERS = 0.01
"""A unit matters if the output moves without it by this share of the most that one moves it."""


@dataclass(frozen=True)
class Sum:
    """What scores add up to, and what they should."""

    total: float
    expected: float
    baseline: bool  # whether that is f(x) − f(baseline) rather than f(x)
    ledger: bool  # whether the model's own constants are counted too
    claimed: bool  # whether the method says that they add up

    @property
    def gap(self) -> float:
        """How far they are off, as a share of what they should be."""
        return abs(self.total - self.expected) / max(abs(self.expected), 1e-30)


@dataclass(frozen=True)
class Least:
    """The unit that matters and scores least: its score as a share of the largest."""

    share: float
    unit: int
    effect: float  # what the output loses without it


def completeness(method: Method, case: Case) -> Sum:
    """Σ scores, or the ledger's total, against the output or its rise over the baseline's."""
    found = case.scores(method)
    logits = found.logits
    if logits is None:
        with case.subject.evaluating(), torch.no_grad():
            logits = case.subject.run(case.inputs.tensors)
    output = float(case.target(logits.detach()).double())
    lines = found.lines or {}
    low = lines.get(("baseline", "baseline"))
    claimed = low is not None or bool(getattr(method, "closes", False))
    if low is not None:
        total = float(found.values.sum())
        return Sum(total, output - float(low), True, False, claimed)
    total = float(sum(lines.values())) if lines else float(found.values.sum())
    return Sum(total, output, False, bool(lines), claimed)


def effects(case: Case) -> Tensor:
    """What the output loses when one unit's embedding becomes zero, for each, (units,)."""
    return Occlusion().scores(case.subject, case.inputs, case.target).values[0]


def sensitivity(method: Method, case: Case, lost: Tensor, most: int = 2) -> Least:
    """A unit whose change alone changes the output must not score zero.

    A method that is told its baseline is told one that differs from the input in that unit only,
    for the `most` units that matter most. The others see the input itself: their baseline is zero.
    """
    size = lost.abs()
    order = [i for i in size.argsort(descending=True).tolist() if size[i] > MATTERS * size.max()]
    if not order:
        raise InputError("no unit of this input changes the output.")
    if not hasattr(method, "baseline"):
        values = case.scores(method).values[0].abs()
        least = min(order, key=lambda i: float(values[i]))
        return Least(_share(values[least], values), least, float(lost[least]))
    mover, _ = EmbeddedInputs.capture(case.subject, case.inputs)
    if len(mover.values) != 1:
        raise ModelError("units enter this model at several places, so no one differs alone")
    found = []
    for unit in order[:most]:
        base = mover.values[0].clone()
        base[0, mover.spans[0].row_of(unit)] = 0
        values = case.scores(replace(method, baseline=base)).values[0].abs()  # type: ignore[type-var]
        found.append(Least(_share(values[unit], values), unit, float(lost[unit])))
    return min(found, key=lambda each: each.share)


def dummy(method: Method, case: Case, unit: int) -> tuple[float, float]:
    """The score of a unit that the function does not depend on, as a share of the largest.

    The model is shown what the unit is now, whatever the unit becomes. The second number is that
    of the unit's own value alone, without the position that its place still has.
    """
    blind = replace(case, subject=unseeing(case, unit))
    values, own = _whole_and_own(blind.scores(_told(method, case)))
    return _share(values[unit], values), _share(own[unit], values)


def moved(method: Method, case: Case, before: Tensor) -> float:
    """How far scores are from those before, as a share of the largest of these.

    Implementation invariance says that this is zero within `Rewrite.applied()`.
    """
    return _share((case.scores(method).values - before).abs().max(), before)


def symmetry(method: Method, case: Case, i: int, j: int) -> tuple[float, float]:
    """The difference of two units' scores where the function treats them alike, of the largest.

    The second is made equal to the first and given its position. Where that alone does not make
    the function treat them alike, it becomes f(x) + f(x with the two exchanged). The second
    number is that of the units' own values, without the positions of their places.
    """
    equal = made_equal(case, i, j)
    alike = replace(equal, subject=at_one_place(equal, i, j))
    if not treats_alike(alike, i, j):
        alike = replace(equal, subject=symmetrised(equal, i, j))
    values, own = _whole_and_own(alike.scores(_told(method, equal)))
    return _share(values[i] - values[j], values), _share(own[i] - own[j], values)


def _whole_and_own(found: Scores) -> tuple[Tensor, Tensor]:
    """Scores, and their part by the unit's own value where the method tells it apart."""
    return found.values[0], found.parts.get("word", found.values)[0]


def _share(part: Tensor, whole: Tensor) -> float:
    return float(part.abs() / whole.abs().max().clamp_min(1e-30))


def _told(method: Method, case: Case) -> Method:
    """The method with its baseline as numbers: a token cannot be looked up in changed inputs."""
    given = getattr(method, "baseline", "zero")
    if isinstance(given, Tensor) or given == "zero":
        return method
    mover, _ = EmbeddedInputs.capture(case.subject, case.inputs)
    values = baseline_values(case.subject, case.inputs, mover, given)
    return replace(method, baseline=values[0])  # type: ignore[type-var]
