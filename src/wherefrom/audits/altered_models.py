"""Altered models for which the correct scores are known."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from wherefrom.core.runner import Batch, Layout, ModelRunner
from wherefrom.core.target import Case
from wherefrom.core.torch_internals import function_modes, without_function_modes
from wherefrom.errors import ModelError, NotConserved, RoundingOnly
from wherefrom.methods import Method, Scores
from wherefrom.methods.embedded_inputs import EmbeddedInputs
from wherefrom.tracing.catalogue import Kind, TorchCall
from wherefrom.tracing.tags import like, tag_of
from wherefrom.tracing.tracer import CallMode, Tracer

EmbeddingChange = Callable[
    [int, Tensor], Tensor
]  # (index of the lookup, embedded input) -> replacement


def scores_at_input(case: Case, method: Method) -> Scores:
    """The method's scores, read at the embedded input.

    Axioms concern the model as a function of its input. A later state, such as the input of the
    first block, depends on everything that enters at its position.
    """
    if getattr(method, "at", None) == "auto":
        method = replace(method, at="embeddings")  # type: ignore[type-var]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RoundingOnly)  # vanishing scores are a finding here
        warnings.simplefilter("ignore", NotConserved)  # the alterations bypass the rules
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
        raise ModelError("this model embeds its units more than once, so two cannot be exchanged")
    name = case.batch.fields[0]
    tensor = case.batch.tensors[name].clone()
    tensor[:, j] = tensor[:, i]
    return replace(case, batch=case.batch.with_tensors({name: tensor}))


class _ChangeEmbeddings(CallMode):
    """Changes the embedded input between the lookup and the model."""

    def __init__(self, change: EmbeddingChange) -> None:
        super().__init__()
        self.change = change
        self.count = 0

    def on_call(self, call: TorchCall) -> Any:
        out = call.run()
        # within a method's pass, embeddings of input ids are tagged with their stream
        if call.kind is not Kind.LOOKUP or tag_of(out).stream is None:
            return out
        self.count += 1
        return _changed_by(self.change, self.count - 1, out)


def _changed_by(
    change: EmbeddingChange, index: int, value: Tensor, layout: Layout | None = None
) -> Tensor:
    """The changed embedded input; an image is first split into its patches."""
    with without_function_modes():  # not a call of the model
        rows = value if layout is None else layout.split(value)
        if rows.ndim != 3:
            shape = tuple(rows.shape)
            raise ModelError(
                f"the model's embedded input has shape {shape}, not (batch, positions, …)"
            )
        changed = change(index, rows)
        if layout is not None:
            changed = layout.whole(changed)
    return like(changed, value)


def _run_changed(
    runner: ModelRunner, inputs: Batch, tensors: Any, change: EmbeddingChange
) -> Tensor:
    """Runs the model on a changed embedded input: a float field, or the embeddings of ids."""
    changed = {
        name: _changed_by(change, k, tensors[name], inputs.layout if k == 0 else None)
        for k, name in enumerate(inputs.fields)
        if tensors[name].is_floating_point()
    }
    with _ChangeEmbeddings(change):
        return runner.run({**tensors, **changed})


def ignoring_unit(case: Case, unit: int) -> ModelRunner:
    """The model with the embedding of one unit fixed at its current value."""
    embedded = EmbeddedInputs.capture(case)

    def change(index: int, value: Tensor) -> Tensor:
        row = embedded.spans[index].row_of(unit)
        if row is None or row >= value.shape[1]:
            return value
        is_unit = torch.arange(value.shape[1], device=value.device) == row
        current = embedded.values[index].to(value)
        return torch.where(is_unit[None, :, None], current, value)

    return ModelRunner(
        case.runner.model,
        lambda model, tensors: _run_changed(case.runner, case.batch, tensors, change),
    )


class _SharePosition(CallMode):
    """Gives one unit the position of another, by reordering all but the token embeddings."""

    def __init__(self, order: list[int]) -> None:
        super().__init__()
        self.order = order

    def on_call(self, call: TorchCall) -> Any:
        out = call.run()
        is_other_lookup = call.kind is Kind.LOOKUP and tag_of(out).stream is None
        if not is_other_lookup or out.ndim < 2 or out.shape[-2] != len(self.order):
            return out
        return out[..., self.order, :]


def with_shared_position(case: Case, i: int, j: int) -> ModelRunner:
    """The model with the position embedding of unit i also at unit j, if it has any."""
    order = list(range(case.batch.mask.shape[1]))
    order[j] = i

    def forward(model: Any, tensors: Any) -> Tensor:
        with _SharePosition(order):
            return case.runner.run(tensors)

    return ModelRunner(case.runner.model, forward)


def is_symmetric(case: Case, i: int, j: int) -> bool:
    """Whether equal changes of two equal units change the output by the same amount."""
    embedded = EmbeddedInputs.capture(case)
    if len(embedded.values) != 1:
        return False
    span, value = embedded.spans[0], embedded.values[0][0]
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(value.shape[-1:], generator=generator, dtype=torch.float64).to(value)

    def moved(k: int, sample: int, point: int) -> Tensor:
        embeddings = value.clone()
        if point:
            embeddings[span.row_of(i if point == 1 else j)] += (
                direction * value.square().mean().sqrt().clamp_min(1e-3)
            )
        return embeddings

    outputs = torch.zeros(3, dtype=torch.float64)  # unchanged, i moved, j moved
    for rows, chunk in embedded.outputs([(0, 0), (0, 1), (0, 2)], moved):
        outputs[[point for _, point in rows]] = chunk
    return bool((outputs[1] - outputs[2]).abs() <= 1e-6 * (outputs[1:] - outputs[0]).abs().max())


def symmetrised(case: Case, i: int, j: int) -> ModelRunner:
    """The sum of the model's outputs for the input and for the input with two units exchanged."""
    embedded = EmbeddedInputs.capture(case)
    if len(embedded.values) != 1:
        raise ModelError("this model embeds its units more than once, so two cannot be exchanged")
    order = list(range(embedded.values[0].shape[1]))
    a, b = embedded.spans[0].row_of(i), embedded.spans[0].row_of(j)
    assert a is not None
    assert b is not None
    order[a], order[b] = order[b], order[a]

    def forward(model: Any, tensors: Any) -> Tensor:
        modes = function_modes()
        if any(isinstance(mode, Tracer) and mode.maps is not None for mode in modes):
            raise ModelError(
                "the method reads attention maps, but the sum of two runs has two sets of them"
            )
        first_values: list[Tensor] = []

        def record(index: int, value: Tensor) -> Tensor:
            first_values.append(value)
            return value

        def exchange(index: int, value: Tensor) -> Tensor:
            return (first_values[0] if first_values else value)[:, order]

        first = _run_changed(case.runner, case.batch, tensors, record)
        return first + _run_changed(case.runner, case.batch, tensors, exchange)

    return ModelRunner(case.runner.model, forward)
