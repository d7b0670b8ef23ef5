"""Compares the explained output with that of a plain pass over one of the inputs, alone.

They differ if the forward is random or keeps a state, if padding or other inputs of the batch
matter, or if the model runs differently under the tracer.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.core.batching import RowsUnclear
from wherefrom.core.runner import Case, ModelRunner
from wherefrom.core.scope import restores_state
from wherefrom.core.torch_internals import version_of
from wherefrom.errors import OutputDiffers
from wherefrom.tracing.call_mode import CallMode
from wherefrom.tracing.catalogue import TorchCall

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
