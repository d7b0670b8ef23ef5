"""One traced pass of the model under a table of rules, and its comparison with a plain pass.

Outputs differ if the forward is random or keeps a state, if padding or other inputs of the batch
matter, or if the model runs differently under the tracer.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.core.runner import ModelRunner, RowsUnclear
from wherefrom.core.scope import Scope, restores_state
from wherefrom.core.target import Case
from wherefrom.core.torch_internals import version_of, without_function_modes
from wherefrom.errors import (
    ModelError,
    NothingIntercepted,
    OutputDiffers,
    counted,
    first_line,
    use_method,
)
from wherefrom.tracing.catalogue import (
    Kind,
    TorchCall,
    attribute_name,
    depends_on_input,
    map_tensors,
)
from wherefrom.tracing.observers import Observer
from wherefrom.tracing.observers.attention_maps import Maps
from wherefrom.tracing.observers.checkpointing import SavedTensors
from wherefrom.tracing.observers.entry_points import Change, EntryPoints, Place
from wherefrom.tracing.observers.first_block import FirstBlock
from wherefrom.tracing.observers.ledger import gradient_break_of
from wherefrom.tracing.tags import like
from wherefrom.tracing.tracer import CallMode, RootActivations, Table, Tracer, describe

_CHECKPOINTED = (
    "{} calls torch.utils.checkpoint, which runs parts of it again in the backward pass. "
    "Disable it, or call it only if self.training."
)


@dataclass(frozen=True)
class ForwardPass:
    """A finished forward pass; its tracer stays open for the backward pass."""

    tracer: Tracer
    runner: ModelRunner
    saved: SavedTensors
    logits: Tensor
    output: Tensor  # (B,)
    paths: list[tuple[int, ...]] | None = None  # from each entry point to its first block

    def gradients(
        self, tensors: Sequence[Tensor], retain: bool = False, seed: Tensor | None = None
    ) -> list[Tensor]:
        """∂ output / ∂ each tensor; zero if the output does not depend on it.

        With `retain` the graph is kept for another backward pass. `seed` has a weight for each
        output; None: all 1.
        """
        if not self.output.requires_grad:  # a pass without gradients
            return [torch.zeros_like(tensor) for tensor in tensors]
        with without_function_modes():  # no call of the model
            # passing a seed makes torch import sympy
            total = self.output.sum() if seed is None else self.output
        try:
            gradients = torch.autograd.grad(
                total, list(tensors), seed, retain_graph=retain, allow_unused=True
            )
        except RuntimeError as error:
            if "checkpoint" in str(error):
                raise ModelError(_CHECKPOINTED.format(self.runner.name)) from error
            if "is not implemented" in str(error):  # a call without a derivative
                raise self._no_gradient(error) from error
            raise
        except AssertionError as error:  # raised by a custom autograd Function
            raise self._no_gradient(error) from error
        return [
            torch.zeros_like(tensor) if gradient is None else gradient
            for gradient, tensor in zip(gradients, tensors, strict=True)
        ]

    def _no_gradient(self, error: Exception) -> ModelError:
        return ModelError(
            f"the backward pass of {self.runner.name} failed ({first_line(error)}).",
            **use_method("occlusion", verb="Try"),
        )

    def at_sources(self, retain: bool = False, seed: Tensor | None = None) -> list[Tensor]:
        """∂ output / ∂ each embedded input, (B, T, D) each."""
        sources, batch = self.tracer.entry_points.entered, self.tracer.entry_points.batch
        leaves = [source.leaf for source in sources]
        known = set(map(id, self.tracer.entry_points.leaves))
        # constants whose gradient the model takes
        own = [
            (leaf, where)
            for leaf, where in self.tracer.ledger.leaves
            if leaf.is_leaf
            and id(leaf) not in known  # a Function's result is a leaf until the Function returns
        ]
        leaves += [leaf for leaf, _ in own]
        gradients = self.gradients(leaves, retain, seed)
        for (leaf, where), gradient in zip(own, gradients[len(sources) :], strict=True):
            self.tracer.ledger.enter(leaf, gradient, where)
        gradients = gradients[: len(sources)]
        return [s.by_sample(g, batch) for s, g in zip(sources, gradients, strict=True)]

    def need(self, kind: str) -> None:
        """Raises an error if the model made no call of this kind."""
        if not self.tracer.touched[kind]:
            raise NothingIntercepted(
                f"no {kind} call was seen in {type(self.runner.model).__name__} (saw "
                f"{describe(self.tracer.seen)}). This method needs {kind}.",
                **use_method("lrp", "integrated_gradients", verb="Try"),
            )


@contextmanager
def intercepted_forward(
    table: Table,
    case: Case,
    *,
    at: Place = "embeddings",
    change: Change | None = None,
    paths: Sequence[tuple[int, ...]] | None = None,
    maps: Maps | None = None,
    root_activations: RootActivations | None = None,
    ledger: bool = False,
    gradients: bool = True,
    observers: Sequence[Observer] = (),
    float64: bool = False,
    recompute: bool = True,
) -> Iterator[ForwardPass]:
    """Runs the model under the table and keeps the tracer open for the backward pass.

    `at`: where the input is read. `change` replaces what enters the model or, with the `paths`
    that an unchanged pass found (`ForwardPass.paths`), what enters the first block.
    `root_activations` links a pass at the root with one at the input. `float64` runs the pass in
    float64. `recompute` lets blocks run a second time in the backward pass if memory is short;
    maps, root activations, interventions and further observers need the first run alone.
    """
    with (
        case.runner.evaluating()
    ):  # a leaf made in the caller's inference mode would have no gradient
        # copies to tag and to differentiate by: the user's tensors stay unchanged
        tensors = {name: tensor.detach().clone() for name, tensor in case.batch.tensors.items()}
        sources = EntryPoints(
            [tensors[name] for name in case.batch.fields],
            change if paths is None else None,
            FirstBlock(paths, change) if at == "first_block" else None,
        )
        for number, name in enumerate(case.batch.fields):
            if tensors[name].is_floating_point():
                entered = sources.enter(tensors[name], sources.span_of(number))
                tensors[name] = like(case.batch.whole(name, entered), entered)
                tensors[name] = sources.begin(tensors[name], sources.span_of(number))
    saved = SavedTensors(
        case.runner.model,
        case.runner.allowed_memory,
        case.runner.device,
        recompute=recompute
        and maps is None
        and root_activations is None
        and not observers
        and case.runner.around is None,
        alone=len(case.batch) == 1,
    )
    with (
        case.runner.evaluating(gradients=gradients),
        Tracer(
            table,
            sources,
            model=case.runner.model,
            ledger=ledger,
            maps=maps,
            root_activations=root_activations,
            observers=[saved, *observers],
        ) as tracer,
    ):
        with Float64() if float64 else Scope(), saved.forward_pass():
            logits = _by_sample(case, case.runner.run(tensors, case.target.position))
        if not sources.entered:
            raise NothingIntercepted(
                f"found no embedding lookup of the input in {case.runner.name} "
                f"(saw {describe(tracer.seen)}). Units are found where the model embeds its ids: "
                "pass the ids of a text, or a float tensor with a row for each unit."
            )
        first_block = sources.first_block
        block_paths = None if first_block is None else first_block.read(sources)
        with without_function_modes():  # choosing a logit is not a call of the model
            output = case.target(logits)
        if gradients and (not output.requires_grad or gradient_break_of(logits) is not None):
            raise _disconnected(case.runner, logits)
        yield ForwardPass(tracer, case.runner, saved, logits, output, block_paths)


def _disconnected(runner: ModelRunner, logits: Tensor) -> ModelError:
    """The error for an output that does not depend on the input through the graph."""
    gradient_break = gradient_break_of(logits)
    if gradient_break is None:
        return ModelError(
            f"the output of {runner.name} does not depend on the input through torch's graph: "
            "all scores would be zero.",
            **use_method("occlusion", verb="Check its forward, or use"),
        )
    remedy = (
        "Use a method without that rule"
        if gradient_break.by_rule
        else "Let gradients pass there (weights may stay frozen with requires_grad_(False))"
    )
    return ModelError(
        f"the gradient of {runner.name} ends {gradient_break}: all scores would be zero.",
        **use_method("occlusion", verb=f"{remedy}, or use"),
    )


def _by_sample(case: Case, logits: Tensor) -> Tensor:
    """The logits; raises an error if they are not those of the samples."""
    if len(logits) != len(case.batch):
        raise ModelError(
            f"{case.runner.name} gives outputs of shape {tuple(logits.shape)} for "
            f"{counted(len(case.batch), 'input')}: the first axis must be that of the inputs."
        )
    return logits


@restores_state
def run(case: Case) -> Tensor:
    """The model's logits without a tracer; only those at the target's positions if possible."""
    with case.runner.evaluating(gradients=False):
        tensors = case.batch.model_tensors()
        return _by_sample(case, case.runner.run(tensors, case.target.position))


_SAME: weakref.WeakKeyDictionary[nn.Module, set[Hashable]] = weakref.WeakKeyDictionary()
_TOLERANCE, _ROUNDINGS = 1e-3, 10  # of the largest logit; machine epsilons of narrower types


def warn_of_difference(
    runner: ModelRunner,
    shape: Hashable,
    explained: Tensor,
    plain: Callable[[], Tensor],
    *,
    in_batch: bool,
) -> tuple[str, ...]:
    """Warns if the `explained` logits of one input are not those of a `plain` pass.

    A model is compared once for each shape, until it differs. Raises `RowsUnclear` if the outputs
    of an input in a batch are not those that it has alone.
    """
    message = _difference(runner, shape, explained, plain, in_batch)
    if message is None:
        return ()
    warnings.warn(message, OutputDiffers, stacklevel=3)
    return (message,)


class _Probabilities(CallMode):
    """Keeps the result of the last softmax or sigmoid."""

    last: Tensor | None = None

    def on_call(self, call: TorchCall) -> Any:
        out = call.run()
        if call.name in ("softmax", "sigmoid"):
            self.last = out
        return out


@restores_state
def ends_in_probabilities(case: Case) -> bool:
    """Whether the outputs are the result of a softmax or sigmoid."""
    with case.runner.evaluating(gradients=False), _Probabilities() as probabilities:
        logits = case.runner.run(case.batch.model_tensors())
    last = probabilities.last
    return last is not None and logits.untyped_storage().data_ptr() == (
        last.untyped_storage().data_ptr()
    )


def _difference(
    runner: ModelRunner,
    shape: Hashable,
    explained: Tensor,
    plain: Callable[[], Tensor],
    in_batch: bool,
) -> str | None:
    same, key = _SAME.setdefault(runner.model, set()), (id(runner.forward), shape, in_batch)
    if key in same:
        return None
    expected = plain()
    if _agree(expected, explained):
        same.add(key)
        return None
    before = _buffers(runner.model)
    again = plain()
    if not _agree(expected, again):
        changed = [name for name, state in _buffers(runner.model).items() if before[name] != state]
        cause = f"changes {', '.join(changed[:4])}" if changed else "is random or keeps a state"
        values = [_at_largest(expected, logits) for logits in (expected, again)]
        return (
            f"{runner.name} gives different outputs for one input ({values[0]:.4g}, then "
            f"{values[1]:.4g}): its forward {cause}. The scores explain one of these passes."
        )
    values = [_at_largest(expected, logits) for logits in (explained, expected)]
    if in_batch:
        raise RowsUnclear(
            f"{runner.name} gives an input another output in this batch ({values[0]:.4g}) than "
            f"alone ({values[1]:.4g})"
        )
    return (
        f"the explained output of {runner.name}, {values[0]:.4g}, is not that of a plain pass, "
        f"{values[1]:.4g}: the model runs differently while its calls are intercepted."
    )


def _agree(expected: Tensor, actual: Tensor) -> bool:
    if expected.shape != actual.shape:
        return False
    floats = [logits.dtype for logits in (expected, actual) if logits.is_floating_point()]
    share = max([_TOLERANCE, *(_ROUNDINGS * torch.finfo(dtype).eps for dtype in floats)])
    expected, actual = expected.double(), actual.double()
    difference = (expected - actual).abs().max()
    return bool(difference <= share * expected.abs().max())


def _at_largest(expected: Tensor, logits: Tensor) -> float:
    """The output that is the largest in the plain pass."""
    if expected.shape != logits.shape:
        return float(logits.flatten()[0])
    return float(logits.flatten()[expected.argmax()])


def _buffers(model: nn.Module) -> dict[str, tuple[int, int]]:
    return {name: (id(value), version_of(value)) for name, value in model.named_buffers()}


_WIDE = torch.float64


class Float64(CallMode):
    """Runs all calls whose arguments depend on the input in float64, including the weights.

    Open it within a `Tracer`, so that the rules get float64 tensors. The model is not changed:
    parameters are cast call by call. Casts to a narrower type are skipped, and writes into an
    existing tensor use the type of that tensor.
    """

    def on_call(self, call: TorchCall) -> Any:
        depends = any(
            depends_on_input(t) and not isinstance(t, nn.Parameter) for t in call.tensors()
        )
        if attribute_name(call.function) is not None or not depends:
            return call.run()
        if (
            call.kind is Kind.LOOKUP or "out" in call.kwargs
        ):  # tables are identified by their address
            return call.run()
        if call.kind is Kind.CAST:
            return self._cast(call)
        name = getattr(call.function, "__name__", "")
        if call.in_place or (name.endswith("_") and not name.endswith("__")):
            return self._write(call)
        if _is_narrow(call.kwargs.get("dtype")):
            call = call.with_(dtype=_WIDE)
        return call.mapped(_widened).run()

    def _cast(self, call: TorchCall) -> Any:
        value, out = call.args[0], call.run()
        narrowed = isinstance(out, Tensor) and _is_narrow(out.dtype)
        return value if narrowed and value.dtype == _WIDE and out.device == value.device else out

    def _write(self, call: TorchCall) -> Any:
        target = call.args[0] if call.args else None
        if not isinstance(target, Tensor) or not target.is_floating_point():
            return call.run()

        def as_target(value: Tensor) -> Tensor:
            return like(value.to(target.dtype), value) if value.is_floating_point() else value

        values = (map_tensors(value, as_target) for value in call.args[1:])
        named = {key: map_tensors(value, as_target) for key, value in call.kwargs.items()}
        return TorchCall(call.function, (target, *values), named).run()


def _is_narrow(dtype: Any) -> bool:
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype != _WIDE


def _widened(value: Tensor) -> Tensor:
    constant = value.detach() if isinstance(value, nn.Parameter) else value
    return like(constant.to(_WIDE), value) if _is_narrow(value.dtype) else constant
