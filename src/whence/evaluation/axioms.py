"""The axioms of attribution (Sundararajan et al. 2017), each measured as a number."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from whence.errors import InputError, ModelError
from whence.methods import Method, Scores
from whence.methods.erasure import Occlusion
from whence.methods.moved import Mover, baseline_values
from whence.rules.calls import Call, calls, set_stream, stream_of
from whence.rules.mode import LocallyLinear
from whence.subject import Inputs, Subject
from whence.target import Target

MATTERS = 0.01
"""A unit matters if the output moves without it by this share of the most that one moves it."""

_LOOKUPS = frozenset(calls("embedding"))
Entered = Callable[[int, Tensor], Tensor]  # number of the place, embedded input -> what to use


@dataclass(frozen=True)
class Case:
    """One input of a model, a batch of one, and what is asked of it."""

    subject: Subject
    inputs: Inputs
    target: Target

    def __post_init__(self) -> None:
        if len(self.inputs) != 1:
            raise InputError(f"an axiom is measured on one input, not on {len(self.inputs)}.")

    def scores(self, method: Method) -> Scores:
        """The method's scores, as they are."""
        return method(self.subject, self.inputs, self.target)

    def plain(self) -> list[int]:
        """The units that are no special tokens."""
        return [i for i, unit in enumerate(self.inputs.units[0]) if not unit.special]


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


def in_float64(subject: Subject) -> Subject:
    """A copy of the model in float64 on the CPU, for tests that change weights or need digits."""
    try:
        model = copy.deepcopy(subject.model).cpu().double()
    except (RuntimeError, TypeError) as error:
        raise ModelError(f"{subject.name} cannot be copied: {error}") from error
    return Subject(model, subject.forward)


def on_copy(case: Case, subject: Subject) -> Case:
    """The same input for a copy of the model on the CPU."""
    tensors = {
        name: t.cpu().double() if t.is_floating_point() else t.cpu()
        for name, t in case.inputs.tensors.items()
    }
    parts = (case.target.index, case.target.against, case.target.position)
    target = Target(*(None if part is None else part.cpu() for part in parts))
    return Case(subject, replace(case.inputs, tensors=tensors, mask=case.inputs.mask.cpu()), target)


def completeness(method: Method, case: Case) -> Sum:
    """Σ scores, or the ledger's total, against the output or its rise over the baseline's."""
    found = case.scores(method)
    logits = found.logits
    if logits is None:
        with case.subject.steady(), torch.no_grad():
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
    mover, _ = Mover.capture(case.subject, case.inputs)
    if len(mover.values) != 1:
        raise ModelError("units enter this model at several places, so no one differs alone")
    found = []
    for unit in order[:most]:
        start, shift, _ = mover.places[0]
        base = mover.values[0].clone()
        base[0, unit - start + shift] = 0
        values = case.scores(replace(method, baseline=base)).values[0].abs()  # type: ignore[type-var]
        found.append(Least(_share(values[unit], values), unit, float(lost[unit])))
    return min(found, key=lambda each: each.share)


def dummy(method: Method, case: Case, unit: int) -> tuple[float, float]:
    """The score of a unit that the function does not depend on, as a share of the largest.

    The model is shown what the unit is now, whatever the unit becomes. The second number is that
    of the unit's own value alone, without the position that its place still has.
    """
    blind = replace(case, subject=_unseeing(case, unit))
    values, own = _whole_and_own(blind.scores(_told(method, case)))
    return _share(values[unit], values), _share(own[unit], values)


def moved(method: Method, case: Case, before: Tensor) -> float:
    """How far scores are from those before, as a share of the largest of these.

    Implementation invariance says that this is zero within `Rewrite.applied()`.
    """
    return _share((case.scores(method).values - before).abs().max(), before)


def symmetry(method: Method, case: Case, i: int, j: int) -> tuple[float, float]:
    """The difference of two units' scores where the function treats them alike, of the largest.

    The second is made equal to the first, and the function f(x) + f(x with the two exchanged).
    The second number is that of the units' own values, without the positions of their places.
    """
    equal = _made_equal(case, i, j)
    alike = replace(equal, subject=_symmetrised(equal, i, j))
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
    mover, _ = Mover.capture(case.subject, case.inputs)
    values = baseline_values(case.subject, case.inputs, mover, given)
    return replace(method, baseline=values[0])  # type: ignore[type-var]


def _made_equal(case: Case, i: int, j: int) -> Case:
    name = case.inputs.fields[0]
    tensor = case.inputs.tensors[name].clone()
    tensor[:, j] = tensor[:, i]
    return replace(case, inputs=case.inputs.with_tensors({name: tensor}))


class _Entering(TorchFunctionMode):
    """Changes the embedded input on its way from the lookup into the model."""

    def __init__(self, change: Entered) -> None:
        super().__init__()
        self.change = change
        self.count = 0

    def __torch_function__(
        self,
        func: Call,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        # within a method's pass, what was looked up by the input's ids carries their stream
        if func not in _LOOKUPS or stream_of(out) is None:
            return out
        self.count += 1
        return _through(self.change, self.count - 1, out)


def _through(change: Entered, number: int, value: Tensor) -> Tensor:
    if value.ndim != 3:
        raise ModelError("this model embeds its input in another shape than (batch, places, …)")
    with torch._C.DisableTorchFunction():  # no call of the model
        changed = change(number, value)
    stream = stream_of(value)
    return changed if stream is None else set_stream(changed, stream)  # type: ignore[no-any-return]


def _run_changed(subject: Subject, inputs: Inputs, tensors: Any, change: Entered) -> Tensor:
    """The model on a changed embedded input: a float field as it is, or what ids look up."""
    floats = [name for name in inputs.fields if tensors[name].is_floating_point()]
    given = {name: _through(change, k, tensors[name]) for k, name in enumerate(floats)}
    with _Entering(change):
        return subject.run({**tensors, **given})


def _unseeing(case: Case, unit: int) -> Subject:
    """The model with one unit replaced by what it is now before the model sees it."""
    mover, _ = Mover.capture(case.subject, case.inputs)

    def change(number: int, value: Tensor) -> Tensor:
        start, shift, width = mover.places[number]
        place = unit - start + shift
        if not 0 <= unit - start < width or place >= value.shape[1]:
            return value
        here = torch.arange(value.shape[1], device=value.device) == place
        now = mover.values[number].to(value)
        return torch.where(here[None, :, None], now, value)

    return Subject(
        case.subject.model,
        lambda model, tensors: _run_changed(case.subject, case.inputs, tensors, change),
    )


def _symmetrised(case: Case, i: int, j: int) -> Subject:
    """The sum of the model's outputs at the input and at the input with two units exchanged."""
    mover, _ = Mover.capture(case.subject, case.inputs)
    if len(mover.values) != 1:
        raise ModelError("units enter this model at several places, so no two can be exchanged")
    start, shift, _ = mover.places[0]
    order = list(range(mover.values[0].shape[1]))
    a, b = i - start + shift, j - start + shift
    order[a], order[b] = order[b], order[a]

    def forward(model: Any, tensors: Any) -> Tensor:
        modes = _get_current_function_mode_stack()
        if any(isinstance(mode, LocallyLinear) and mode.maps is not None for mode in modes):
            raise ModelError("it reads attention maps, and the sum of two runs has two sets of them")
        seen: list[Tensor] = []

        def kept(number: int, value: Tensor) -> Tensor:
            seen.append(value)
            return value

        def exchanged(number: int, value: Tensor) -> Tensor:
            return (seen[0] if seen else value)[:, order]

        first = _run_changed(case.subject, case.inputs, tensors, kept)
        return first + _run_changed(case.subject, case.inputs, tensors, exchanged)

    return Subject(case.subject.model, forward)
