"""One input of a model, and altered models for which the right scores are known."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from wherefrom.core.runner import Batch, Case, Layout, ModelRunner
from wherefrom.core.torch_internals import function_modes, without_function_modes
from wherefrom.errors import ModelError, NotConserved, RoundingOnly
from wherefrom.methods import Method, Scores
from wherefrom.methods.embedded_inputs import EmbeddedInputs
from wherefrom.tracing.call_mode import CallMode
from wherefrom.tracing.catalogue import Kind, TorchCall
from wherefrom.tracing.tags import like, tag_of
from wherefrom.tracing.tracer import Tracer

Entered = Callable[[int, Tensor], Tensor]  # number of the lookup, embedded input -> replacement


def scores_at_input(case: Case, method: Method) -> Scores:
    """The method's scores, read where the input enters.

    Axioms are about the function of what enters the model. A state further on, such as the one
    that enters the first block, depends on all that enters at its position.
    """
    if getattr(method, "at", None) == "auto":
        method = replace(method, at="embeddings")  # type: ignore[type-var]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RoundingOnly)  # that they vanish is a finding here
        warnings.simplefilter("ignore", NotConserved)  # no rule sees what is altered
        return method(case)


def ordinary_units(case: Case) -> list[int]:
    """The units of the one input except special tokens."""
    return [i for i, unit in enumerate(case.batch.units[0]) if not unit.special]


def in_float64(runner: ModelRunner) -> ModelRunner:
    """A float64 copy of the model on the CPU, for tests that change weights or need precision."""
    try:
        model = copy.deepcopy(runner.model).cpu().double()
    except (RuntimeError, TypeError) as error:
        raise ModelError(f"{runner.name} cannot be copied: {error}") from error
    return ModelRunner(model, runner.forward)


def on_copy(case: Case, runner: ModelRunner) -> Case:
    """The same input for a float64 copy of the model, on its device."""
    device = runner.device
    tensors = {
        name: t.to(device, torch.float64 if t.is_floating_point() else t.dtype)
        for name, t in case.batch.tensors.items()
    }
    return Case(runner, replace(case.batch, tensors=tensors), case.target.to(device))


def with_equal_units(case: Case, i: int, j: int) -> Case:
    """The input with unit j replaced by unit i."""
    if len(case.batch.fields) != 1:
        raise ModelError(
            "this model embeds its units in several places, so two cannot be exchanged"
        )
    name = case.batch.fields[0]
    tensor = case.batch.tensors[name].clone()
    tensor[:, j] = tensor[:, i]
    return replace(case, batch=case.batch.with_tensors({name: tensor}))


class _Entering(CallMode):
    """Changes the embedded input between the lookup and the model."""

    def __init__(self, change: Entered) -> None:
        super().__init__()
        self.change = change
        self.count = 0

    def on_call(self, call: TorchCall) -> Any:
        out = call.run()
        # within a method's pass, embeddings of the input ids carry their stream
        if call.kind is not Kind.LOOKUP or tag_of(out).stream is None:
            return out
        self.count += 1
        return _through(self.change, self.count - 1, out)


def _through(change: Entered, number: int, value: Tensor, layout: Layout | None = None) -> Tensor:
    """The embedded input changed unit by unit; an image is split into its patches first."""
    with without_function_modes():  # not a call of the model
        rows = value if layout is None else layout.split(value)
        if rows.ndim != 3:
            shape = tuple(rows.shape)
            raise ModelError(
                f"the model's embedded input has shape {shape}, not (batch, places, …)"
            )
        changed = change(number, rows)
        if layout is not None:
            changed = layout.whole(changed)
    return like(changed, value)


def _run_changed(runner: ModelRunner, inputs: Batch, tensors: Any, change: Entered) -> Tensor:
    """The model on a changed embedded input: a float field itself, or the embeddings of ids."""
    changed = {
        name: _through(change, k, tensors[name], inputs.layout if k == 0 else None)
        for k, name in enumerate(inputs.fields)
        if tensors[name].is_floating_point()
    }
    with _Entering(change):
        return runner.run({**tensors, **changed})


def ignoring_unit(case: Case, unit: int) -> ModelRunner:
    """The model with one unit replaced by its current value before the model sees it."""
    embedded = EmbeddedInputs.capture(case)

    def change(number: int, value: Tensor) -> Tensor:
        row = embedded.spans[number].row_of(unit)
        if row is None or row >= value.shape[1]:
            return value
        here = torch.arange(value.shape[1], device=value.device) == row
        current = embedded.values[number].to(value)
        return torch.where(here[None, :, None], current, value)

    return ModelRunner(
        case.runner.model,
        lambda model, tensors: _run_changed(case.runner, case.batch, tensors, change),
    )


class _Sharing(CallMode):
    """Gives one unit the position of another: the same row of every table except the words'."""

    def __init__(self, order: list[int]) -> None:
        super().__init__()
        self.order = order

    def on_call(self, call: TorchCall) -> Any:
        out = call.run()
        other = call.kind is Kind.LOOKUP and tag_of(out).stream is None
        if not other or out.ndim < 2 or out.shape[-2] != len(self.order):
            return out
        return out[..., self.order, :]


def with_shared_position(case: Case, i: int, j: int) -> ModelRunner:
    """The model with the position of unit i at unit j too, if it has position embeddings."""
    order = list(range(case.batch.mask.shape[1]))
    order[j] = i

    def forward(model: Any, tensors: Any) -> Tensor:
        with _Sharing(order):
            return case.runner.run(tensors)

    return ModelRunner(case.runner.model, forward)


def is_symmetric(case: Case, i: int, j: int) -> bool:
    """Whether equal changes of two equal units change the output by the same amount."""
    embedded = EmbeddedInputs.capture(case)
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

    outputs = torch.zeros(3, dtype=torch.float64)  # unchanged, i pushed, j pushed
    for rows, chunk in embedded.outputs([(0, 0), (0, 1), (0, 2)], pushed):
        outputs[[number for _, number in rows]] = chunk
    return bool((outputs[1] - outputs[2]).abs() <= 1e-6 * (outputs[1:] - outputs[0]).abs().max())


def symmetrised(case: Case, i: int, j: int) -> ModelRunner:
    """The sum of the model's outputs for the input and for the input with two units exchanged."""
    embedded = EmbeddedInputs.capture(case)
    if len(embedded.values) != 1:
        raise ModelError(
            "this model embeds its units in several places, so two cannot be exchanged"
        )
    order = list(range(embedded.values[0].shape[1]))
    a, b = embedded.spans[0].row_of(i), embedded.spans[0].row_of(j)
    assert a is not None
    assert b is not None
    order[a], order[b] = order[b], order[a]

    def forward(model: Any, tensors: Any) -> Tensor:
        modes = function_modes()
        if any(isinstance(mode, Tracer) and mode.maps is not None for mode in modes):
            raise ModelError(
                "the method reads attention maps, and the sum of two runs has two sets"
            )
        entered: list[Tensor] = []

        def record(number: int, value: Tensor) -> Tensor:
            entered.append(value)
            return value

        def exchange(number: int, value: Tensor) -> Tensor:
            return (entered[0] if entered else value)[:, order]

        first = _run_changed(case.runner, case.batch, tensors, record)
        return first + _run_changed(case.runner, case.batch, tensors, exchange)

    return ModelRunner(case.runner.model, forward)
