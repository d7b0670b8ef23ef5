"""Finds where the gradient ends between input and output: no_grad, inference mode, detach.

A tensor that depends on the input, but not through the graph, is marked with the module and the
call at which its gradient ended; calls pass the mark on. Without the mark a backbone that runs
under no_grad would look like a constant, and its zero scores would look correct.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from wherefrom.tracing.catalogue import (
    Kind,
    TorchCall,
    attribute_name,
    depends_on_input,
    list_tensors,
)
from wherefrom.tracing.observers import Observer
from wherefrom.tracing.tag_propagation import FORM_ONLY
from wherefrom.tracing.tags import tag_of

if TYPE_CHECKING:
    from wherefrom.tracing.tracer import Tracer

_NO_DERIVATIVE = ("WarnNotImplemented", "NotImplemented")  # of operators without a backward pass
_WITH_DERIVATIVE = frozenset(Kind) - {Kind.QUANTISED_LINEAR}  # all others in the catalogue


_STEPS = "round floor ceil trunc fix sign sgn"
_TO_PYTHON = "item tolist numpy __float__ __array__"
# calls whose result may carry on without the gradient, by name without underscores at the end
_PARTIAL = {
    **dict.fromkeys(_STEPS.split(), "its derivative is zero"),
    **dict.fromkeys(
        (n.rstrip("_") for n in _TO_PYTHON.split()), "its result is no tensor of torch"
    ),
}


class GradientBreak(NamedTuple):
    """The module and the call at which the gradient ends, and why."""

    where: str
    call: str
    reason: str
    by_rule: bool = False  # a rule made it a constant on purpose

    def __str__(self) -> str:
        module = f"in {self.where}" if self.where else "in the model's own forward"
        return f"{module}, at {self.call} ({self.reason})"


def gradient_break_of(value: object) -> GradientBreak | None:
    """Where the gradient of a tensor ended; None if it did not."""
    mark: GradientBreak | None = getattr(value, "wherefrom_gradient_break", None)
    # within a custom autograd Function no tensor has a gradient, but its result does
    return mark if mark is not None and isinstance(value, Tensor) and _ends(value) else None


def constant_gradient_break(call: TorchCall) -> GradientBreak | None:
    """The gradient break of the first constant argument that has one."""
    marks = [
        mark
        for t in call.tensors()
        if not depends_on_input(t) and (mark := gradient_break_of(t)) is not None
    ]
    return min(marks, key=lambda mark: mark.by_rule, default=None)


def _is_float_of_input(tensor: Any) -> bool:
    """Whether the numbers of a tensor come from the input, through the graph or not."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        return False
    return depends_on_input(tensor) or gradient_break_of(tensor) is not None


def _ends(tensor: Tensor) -> bool:
    return not tensor.requires_grad or type(tensor.grad_fn).__name__ in _NO_DERIVATIVE


class GradientBreaks(Observer):
    """Marks the results of calls that depend on the input but not through the graph."""

    def __init__(self) -> None:
        self._watches = torch.is_grad_enabled()

    def after_call(self, tracer: Tracer, call: TorchCall, out: Any) -> Any:
        in_graph = type(out) is Tensor and out.requires_grad and call.kind in _WITH_DERIVATIVE
        if in_graph or not self._watches:  # most calls
            return out
        reason = _PARTIAL.get(getattr(call.function, "__name__", "").rstrip("_"))
        if reason is not None and call.args and _is_float_of_input(call.args[0]):
            tracer.cut = tracer.cut or GradientBreak(tracer.where, call.name, reason)
        written = call.args[0] if out is None and call.args else out  # x[i] = y returns None
        results = [tensor for tensor in list_tensors((written,)) if _ends(tensor)]
        mark = _break_at(tracer, call, out) if results else None
        if mark is not None:
            for tensor in results:
                # an index or a comparison selects; it passes no value on
                if tensor.is_floating_point() or call.kind is Kind.CAST or tensor.is_quantized:
                    tensor.wherefrom_gradient_break = mark  # type: ignore[attr-defined]
        return out


def _break_at(tracer: Tracer, call: TorchCall, out: Any) -> GradientBreak | None:
    """Why the results of a call have no gradient; None if they do not depend on the input."""
    mark = constant_gradient_break(call)
    if mark is not None:
        return mark
    # a second argument of these calls is only a shape or a type
    values = list_tensors(call.args[:1]) if call.kind in FORM_ONLY else call.tensors()
    is_entry_point = call.kind is Kind.LOOKUP and tag_of(out).stream is not None
    name = attribute_name(call.function) or call.name
    uses_a_shape = name.endswith("_like") or name.startswith("new_")
    if uses_a_shape or not (is_entry_point or any(map(depends_on_input, values))):
        return None
    if call.kind in tracer.table and not tracer.suspended and torch.is_grad_enabled():
        return GradientBreak(tracer.where, name, "its rule makes it a constant", by_rule=True)
    if torch.is_inference_mode_enabled():
        reason = "torch.inference_mode()"
    elif not torch.is_grad_enabled():
        reason = "torch.no_grad()"
    elif name in ("detach", "data"):
        reason = f".{name}"
    else:
        reason = "it has no derivative"
    return GradientBreak(tracer.where, name, reason)
