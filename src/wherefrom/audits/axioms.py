"""The axioms of attribution (Sundararajan et al. 2017), each measured as a number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from wherefrom.audits.altered_models import (
    ignoring_unit,
    is_symmetric,
    scores_at_input,
    symmetrised,
    with_equal_units,
    with_shared_position,
)
from wherefrom.core.target import Case
from wherefrom.errors import InputError, ModelError
from wherefrom.methods import Method
from wherefrom.methods.embedded_inputs import EmbeddedInputs, baseline_values
from wherefrom.methods.forward_pass import run
from wherefrom.methods.occlusion import Occlusion

MATTERS = 0.01
"""A unit matters if its effect on the output is more than this share of the largest effect."""


@dataclass(frozen=True)
class Sum:
    """The sum of the scores, and the expected sum."""

    total: float
    expected: float
    baseline: bool  # the expected sum is f(x) − f(baseline) rather than f(x)
    ledger: bool  # the model's constants are counted too
    claimed: bool  # the method claims that its scores add up

    @property
    def gap(self) -> float:
        """Their difference, as a share of the expected sum."""
        return abs(self.total - self.expected) / max(abs(self.expected), 1e-30)


@dataclass(frozen=True)
class Least:
    """The unit with the smallest score among the units that matter."""

    share: float  # its score as a share of the largest
    unit: int
    effect: float  # drop of the output without it


class Share(NamedTuple):
    """A score, or a difference of two, as a share of the largest score."""

    total: float
    value: float  # without the part of the position


def completeness(method: Method, case: Case) -> Sum:
    """Σ scores, or the ledger's total, against f(x) or f(x) − f(baseline)."""
    scores = scores_at_input(case, method)
    logits = run(case) if scores.logits is None else scores.logits
    output = float(case.target(logits.detach()).double())
    lines = scores.lines or {}
    low = lines.get(("baseline", "baseline"))
    claimed = low is not None or bool(getattr(method, "closes", False))
    if low is not None:
        total = float(scores.values.sum())
        return Sum(total, output - float(low), True, False, claimed)
    total = float(sum(lines.values())) if lines else float(scores.values.sum())
    return Sum(total, output, False, bool(lines), claimed)


def effects(case: Case) -> Tensor:
    """The drop of the output when a unit's embedding becomes zero, for each unit, (units,)."""
    return Occlusion().scores(case).values[0]


def sensitivity(method: Method, case: Case, lost: Tensor, most: int = 2) -> Least:
    """A unit must not score zero if changing it alone changes the output.

    A method with a baseline or a root gets one that differs from the input only in that unit, for
    the `most` units with the largest effect; for other methods the baseline is zero. Special
    tokens never move to a root, so they are not tested then.
    """
    method = method.resolved(case.batch)
    setting = "baseline" if hasattr(method, "baseline") else "root"
    size = lost.abs()
    has_reference = getattr(method, setting, None) is not None
    if has_reference and setting == "root":
        size = size * ~case.batch.special()[0]
    order = [i for i in size.argsort(descending=True).tolist() if size[i] > MATTERS * size.max()]
    if not order:
        raise InputError("no unit of this input changes the output.")
    if not has_reference:
        values = scores_at_input(case, method).values[0].abs()
        least = min(order, key=lambda i: float(values[i]))
        return Least(_share(values[least], values), least, float(lost[least]))
    embedded = EmbeddedInputs.capture(case)
    if len(embedded.values) != 1:
        raise ModelError("this model embeds its units more than once, so none can differ alone")
    candidates = []
    for unit in order[:most]:
        base = embedded.values[0].clone()
        base[0, embedded.spans[0].row_of(unit)] = 0
        values = scores_at_input(case, replace(method, **{setting: base})).values[0].abs()  # type: ignore[type-var]
        candidates.append(Least(_share(values[unit], values), unit, float(lost[unit])))
    return min(candidates, key=lambda candidate: candidate.share)


def dummy(method: Method, case: Case, unit: int) -> Share:
    """The score of a unit that the function does not depend on.

    The altered model always uses the unit's current value, whatever the input.
    """
    baseline = getattr(method.resolved(case.batch), "baseline", "zero")
    if isinstance(baseline, str) and baseline == "remove":
        raise ModelError("units are removed from the mask, which the altered model reads as well")
    altered = replace(case, runner=ignoring_unit(case, unit))
    values, content = _scores(_with_numeric_baseline(method, case), altered)
    return Share(_share(values[unit], values), _share(content[unit], values))


def score_change(method: Method, case: Case, before: Tensor) -> float:
    """The largest change of a score since `before`, as a share of its largest score.

    Implementation invariance requires it to be zero within `Rewrite.applied()`.
    """
    return _share((scores_at_input(case, method).values - before).abs().max(), before)


def symmetry(method: Method, case: Case, i: int, j: int) -> Share:
    """The difference of the scores of two units that the function treats equally.

    The second unit is made equal to the first and gets its position. If the function still
    distinguishes them, it is replaced by f(x) + f(x with the two exchanged).
    """
    equal = with_equal_units(case, i, j)
    altered = replace(equal, runner=with_shared_position(equal, i, j))
    if not is_symmetric(altered, i, j):
        altered = replace(equal, runner=symmetrised(equal, i, j))
    values, content = _scores(_with_numeric_baseline(method, equal), altered)
    return Share(_share(values[i] - values[j], values), _share(content[i] - content[j], values))


def _scores(method: Method, case: Case) -> tuple[Tensor, Tensor]:
    """Scores, and the scores without positions if the method separates them."""
    scores = scores_at_input(case, method)
    return scores.values[0], scores.parts.get(case.batch.noun, scores.values)[0]


def _share(part: Tensor, whole: Tensor) -> float:
    return float(part.abs() / whole.abs().max().clamp_min(1e-30))


def _with_numeric_baseline(method: Method, case: Case) -> Method:
    """The method with its baseline as a tensor, since altered models look up no tokens."""
    method = method.resolved(case.batch)
    baseline = getattr(method, "baseline", "zero")
    if isinstance(baseline, Tensor) or baseline in ("zero", "remove"):
        return method
    embedded = EmbeddedInputs.capture(case)
    values = baseline_values(embedded, baseline)
    return replace(method, baseline=values[0])  # type: ignore[type-var]
