"""One input of a model, and models altered so that the truth about its units is known."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack

from wherefrom.errors import InputError, ModelError
from wherefrom.methods import Method, Scores
from wherefrom.methods.embedded_inputs import EmbeddedInputs
from wherefrom.rules.catalogue import Kind, TorchCall
from wherefrom.rules.mode import CallMode, LocallyLinear
from wherefrom.rules.tags import like, tag_of
from wherefrom.subject import Inputs, Subject
from wherefrom.target import Target

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


def made_equal(case: Case, i: int, j: int) -> Case:
    """The input with unit i at the place of unit j too."""
    if len(case.inputs.fields) != 1:
        raise ModelError("units enter this model at several places, so no two can be exchanged")
    name = case.inputs.fields[0]
    tensor = case.inputs.tensors[name].clone()
    tensor[:, j] = tensor[:, i]
    return replace(case, inputs=case.inputs.with_tensors({name: tensor}))


class _Entering(CallMode):
    """Changes the embedded input on its way from the lookup into the model."""

    def __init__(self, change: Entered) -> None:
        super().__init__()
        self.change = change
        self.count = 0

    def on_call(self, call: TorchCall) -> Any:
        out = call.run()
        # within a method's pass, what was looked up by the input's ids carries their stream
        if call.kind is not Kind.LOOKUP or tag_of(out).stream is None:
            return out
        self.count += 1
        return _through(self.change, self.count - 1, out)


def _through(change: Entered, number: int, value: Tensor) -> Tensor:
    if value.ndim != 3:
        raise ModelError("this model embeds its input in another shape than (batch, places, …)")
    with torch._C.DisableTorchFunction():  # no call of the model
        changed = change(number, value)
    return like(changed, value)


def _run_changed(subject: Subject, inputs: Inputs, tensors: Any, change: Entered) -> Tensor:
    """The model on a changed embedded input: a float field as it is, or what ids look up."""
    floats = [name for name in inputs.fields if tensors[name].is_floating_point()]
    given = {name: _through(change, k, tensors[name]) for k, name in enumerate(floats)}
    with _Entering(change):
        return subject.run({**tensors, **given})


def unseeing(case: Case, unit: int) -> Subject:
    """The model with one unit replaced by what it is now before the model sees it."""
    embedded, _ = EmbeddedInputs.capture(case.subject, case.inputs)

    def change(number: int, value: Tensor) -> Tensor:
        row = embedded.spans[number].row_of(unit)
        if row is None or row >= value.shape[1]:
            return value
        here = torch.arange(value.shape[1], device=value.device) == row
        now = embedded.values[number].to(value)
        return torch.where(here[None, :, None], now, value)

    return Subject(
        case.subject.model,
        lambda model, tensors: _run_changed(case.subject, case.inputs, tensors, change),
    )


class _Sharing(CallMode):
    """Gives one place the position of another: the same row of every table but the words'."""

    def __init__(self, order: list[int]) -> None:
        super().__init__()
        self.order = order

    def on_call(self, call: TorchCall) -> Any:
        out = call.run()
        other = call.kind is Kind.LOOKUP and tag_of(out).stream is None
        if not other or out.ndim < 2 or out.shape[-2] != len(self.order):
            return out
        return out[..., self.order, :]


def at_one_place(case: Case, i: int, j: int) -> Subject:
    """The model with the position of unit i at unit j too, where it looks positions up."""
    order = list(range(case.inputs.mask.shape[1]))
    order[j] = i

    def forward(model: Any, tensors: Any) -> Tensor:
        with _Sharing(order):
            return case.subject.run(tensors)

    return Subject(case.subject.model, forward)


def treats_alike(case: Case, i: int, j: int) -> bool:
    """Whether the same push at the one or the other of two equal units moves the output alike."""
    embedded, _ = EmbeddedInputs.capture(case.subject, case.inputs)
    if len(embedded.values) != 1:
        return False
    span, value = embedded.spans[0], embedded.values[0][0]
    chance = torch.Generator().manual_seed(0)
    push = torch.randn(value.shape[-1:], generator=chance, dtype=torch.float64).to(value)

    def pushed(k: int, sample: int, number: int) -> Tensor:
        point = value.clone()
        if number:
            point[span.row_of(i if number == 1 else j)] += (
                push * value.square().mean().sqrt().clamp_min(1e-3)
            )
        return point

    found = torch.zeros(3, dtype=torch.float64)
    for rows, outputs in embedded.outputs(
        case.subject, case.target, [(0, 0), (0, 1), (0, 2)], pushed
    ):
        found[[number for _, number in rows]] = outputs
    return bool((found[1] - found[2]).abs() <= 1e-6 * (found[1:] - found[0]).abs().max())


def symmetrised(case: Case, i: int, j: int) -> Subject:
    """The sum of the model's outputs at the input and at the input with two units exchanged."""
    embedded, _ = EmbeddedInputs.capture(case.subject, case.inputs)
    if len(embedded.values) != 1:
        raise ModelError("units enter this model at several places, so no two can be exchanged")
    order = list(range(embedded.values[0].shape[1]))
    a, b = embedded.spans[0].row_of(i), embedded.spans[0].row_of(j)
    assert a is not None
    assert b is not None
    order[a], order[b] = order[b], order[a]

    def forward(model: Any, tensors: Any) -> Tensor:
        modes = _get_current_function_mode_stack()
        if any(isinstance(mode, LocallyLinear) and mode.maps is not None for mode in modes):
            raise ModelError("it reads attention maps, of which a sum of two runs has two sets")
        seen: list[Tensor] = []

        def kept(number: int, value: Tensor) -> Tensor:
            seen.append(value)
            return value

        def exchanged(number: int, value: Tensor) -> Tensor:
            return (seen[0] if seen else value)[:, order]

        first = _run_changed(case.subject, case.inputs, tensors, kept)
        return first + _run_changed(case.subject, case.inputs, tensors, exchanged)

    return Subject(case.subject.model, forward)
