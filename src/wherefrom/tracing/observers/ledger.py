"""The ledger of one pass: what each constant of the model adds to the output of each sample."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from wherefrom.core.torch_internals import own_tensor, submodules, view_base, without_function_modes
from wherefrom.errors import GIVE_ANSWER, ModelError
from wherefrom.tracing.catalogue import (
    Kind,
    TorchCall,
    attribute_name,
    depends_on_input,
    list_tensors,
)
from wherefrom.tracing.observers import Observer
from wherefrom.tracing.observers.entry_points import EntryPoints
from wherefrom.tracing.tags import FORM_ONLY, Tag, propagate, tag_of, widened

if TYPE_CHECKING:
    from wherefrom.tracing.tracer import Tracer

_NO_DERIVATIVE = ("WarnNotImplemented", "NotImplemented")  # of operators without a backward pass
# all others in the catalogue
_WITH_DERIVATIVE = frozenset(Kind) - {Kind.QUANTISED_LINEAR, Kind.OTHER_ELEMENTWISE}
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
        passed_on = call.kind in tracer.table and call.kind not in FORM_ONLY
        watched = reason is not None and not passed_on and torch.is_grad_enabled()
        if reason and watched and call.args and _is_float_of_input(call.args[0]):
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
    ruled = call.kind in tracer.table and call.kind not in FORM_ONLY
    if ruled and not tracer.suspended and torch.is_grad_enabled():
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


_BY_POSITION = ("bias", "position", "type")  # kinds whose constants may differ by position


@dataclass
class LedgerEntry:
    """What the constants of one kind add in one module."""

    total: Tensor  # (B,)
    places: Tensor | None = None  # (B, T) where the constant differs by position


@dataclass
class LedgerRecorder(Observer):
    """Records g · c for every constant c when the backward pass computes its gradient g.

    Assumes that samples lie on the first axis. `unclear` says where they cannot: the entries of
    a batch are then incomplete, and its samples must run one by one.
    """

    entry_points: EntryPoints
    enabled: bool = True
    unclear: str | None = None
    count: int = 0  # of recorded constants
    entries: dict[tuple[str, str], LedgerEntry] = field(default_factory=dict)
    detached: list[GradientBreak] = field(default_factory=list)  # input-dependent constants
    precisions: set[torch.dtype] = field(default_factory=set)  # of tensors that depend on the input
    leaves: list[tuple[Tensor, str]] = field(default_factory=list)  # leaf results and where
    moment: int = 0  # of the pass, counted from 1 by an observer, if there is one
    by_moment: dict[int, Tensor] = field(default_factory=dict)  # totals (B,) of its constants

    def on_constant(
        self, tracer: Tracer, call: TorchCall, out: Tensor, part: Tensor | float, kind: str
    ) -> None:
        if self.enabled:
            propagate(call, out)
            gradient_break = constant_gradient_break(call)
            if gradient_break is not None:
                self.detached.append(gradient_break)
                kind = "detached"
            self.record(out, part, tracer.where, kind)

    def after_call(self, tracer: Tracer, call: TorchCall, out: Any) -> Any:
        if depends_on_input(out):
            self.precisions.add(out.dtype)
            if out.is_leaf:  # the input, or a constant whose gradient the model takes
                self.leaves.append((out, tracer.where))
        return out

    def record(
        self, out: Tensor, part: Tensor | float, where: str, kind: str, *, written: bool = True
    ) -> None:
        """Records the constant `part` of `out`, a tensor that the model may write into later."""
        if not self.enabled:
            return
        self.count += 1
        constant = (
            part.detach().to(out)
            if isinstance(part, Tensor)
            else torch.tensor(
                part, dtype=out.dtype, device=out.device
            )  # converted directly, not through float32
        )
        if kind == "bias" and constant.ndim > 1 and _same_rows(constant):
            constant = constant[..., :1, :]
        # the hook is on the node (for a full view on the node of its base), not on the tensor: if
        # the model writes into the tensor, the graph drops the tensor and the view
        whole, shape = _whole(out) if written else out, out.shape
        node = whole.grad_fn
        if node is None:  # the input itself
            return
        output, tag, moment = whole.output_nr, tag_of(out), self.moment
        # entry points may refer to tensors of the graph: a strong reference would be a cycle
        reference = weakref.ref(self)

        def enter(gradients: tuple[Tensor | None, ...]) -> None:
            gradient, recorder = gradients[output], reference()
            if gradient is not None and recorder is not None:
                with torch.no_grad(), without_function_modes():
                    recorder._enter(gradient.reshape(shape), constant, where, kind, tag, moment)

        node.register_prehook(enter)

    def record_rounding(self, out: Tensor, x: Tensor, value: Tensor, where: str) -> None:
        """Records what rounding adds to W x to get `value`: Σ gradient · value − Σ gradient · x.

        Records nothing unless the Function that returned `out` took x itself.
        """
        node, source = out.grad_fn, x.grad_fn
        if not self.enabled or node is None or source is None:
            return
        indices = [i for i, (before, _) in enumerate(node.next_functions) if before is source]
        if len(indices) != 1:
            return
        output, tag, moment = out.output_nr, tag_of(out), self.moment
        x, value = x.detach(), value.detach()
        reference = weakref.ref(self)

        def enter(inputs: tuple[Tensor | None, ...], outputs: tuple[Tensor | None, ...]) -> None:
            entering, leaving, recorder = inputs[indices[0]], outputs[output], reference()
            if entering is not None and leaving is not None and recorder is not None:
                with torch.no_grad(), without_function_modes():
                    rows = (widened(leaving) * widened(value)).sum(-1, dtype=torch.float64)
                    rows -= (widened(entering) * widened(x)).sum(-1, dtype=torch.float64)
                    one = torch.ones((), dtype=torch.float64, device=rows.device)
                    recorder._enter(rows.unsqueeze(-1), one, where, "quantisation", tag, moment)

        node.register_hook(enter)

    def enter(self, leaf: Tensor, gradient: Tensor, where: str) -> None:
        """Enters what a constant whose gradient the model takes adds, given that gradient."""
        if self.enabled:
            with torch.no_grad(), without_function_modes():
                part = leaf.detach()
                part = part[..., :1, :] if part.ndim > 1 and _same_rows(part) else part
                self._enter(gradient, part, where, "bias", tag_of(leaf))

    def last_finite(self) -> str:
        """The module that the backward pass reached last before a number was NaN or infinite."""
        last = ""
        for (where, _), entry in self.entries.items():
            if not bool(entry.total.isfinite().all()):
                break
            last = where
        return last

    def lose_track(self, where: str) -> None:
        """Records that the rows of a module cannot be assigned to samples."""
        place = f"in {where}" if where else "in the model itself"
        self.unclear = self.unclear or f"it is not clear which sample each row belongs to {place}"

    def _enter(
        self, gradient: Tensor, part: Tensor, where: str, kind: str, tag: Tag, moment: int = 0
    ) -> None:
        batch = self.entry_points.batch
        if gradient.numel() == 0:  # an expert that got no row
            return
        if batch > 1 and (gradient.ndim == 0 or gradient.shape[0] % batch):
            self.lose_track(where)
            return
        gradient, part = widened(gradient), widened(part)
        by_row = _along_last(gradient, part).reshape(batch, -1).double()
        rows = by_row.shape[1]
        # a row for each position: a position embedding; one row, or one number per channel: a bias
        # what is added to attention scores has a row for each query, but is no embedding
        rowed = part.ndim > 1 and part.shape[-1] == gradient.shape[-1] and tag.role != "scores"
        ahead = rows - self.entry_points.extent
        # a decoder's positions are not the source's, even if their numbers are equal
        known = not tag.stream and 0 <= ahead <= self.entry_points.rows_ahead.get(0, 0)
        # a state (B, D), as of a recurrent layer, is no row of the only unit
        rowed = rowed and (rows > 1 or gradient.ndim > 2)
        placed = (
            known and rowed and kind in _BY_POSITION and _rows_of(part, gradient, batch) == rows
        )
        # units such as pixels are not the model's positions, so they have no row each
        of_floats = self.entry_points.fields[0].is_floating_point()
        table = rowed and of_floats and gradient.ndim == 3 and part.shape[-1] > 1
        if kind == "bias" and (placed or (table and part.shape[-2] > 1)):
            kind = "position"
        total = by_row.sum(1)
        self._add(where, kind, total, by_row[:, ahead:] if placed else None)
        if moment:
            self.by_moment[moment] = self.by_moment.get(moment, 0) + total

    def _add(self, where: str, kind: str, total: Tensor, places: Tensor | None) -> None:
        entry = self.entries.setdefault((where, kind), LedgerEntry(torch.zeros_like(total)))
        entry.total += total
        if places is not None:
            entry.places = places if entry.places is None else entry.places + places


def _rows_of(part: Tensor, gradient: Tensor, batch: int) -> int:
    """The number of rows that a constant has for one sample."""
    sizes = list(part.shape[:-1])
    if part.ndim == gradient.ndim:
        sizes[0] = max(1, sizes[0] // batch)
    return math.prod(sizes)


def _same_rows(part: Tensor) -> bool:
    """Whether a constant is the same at every position: an expanded bias."""
    return part.shape[-2] > 1 and bool((part == part[..., :1, :]).all())


def _whole(out: Tensor) -> Tensor:
    base = view_base(out)
    if base is None or base.grad_fn is None or base.numel() != out.numel():
        return out
    return base if base.is_contiguous() and out.is_contiguous() else out


def _along_last(gradient: Tensor, part: Tensor) -> Tensor:
    """The sum over the last axis of gradient · part; 0 · ∞, as of a mask, is 0."""
    if gradient.ndim < 2:
        return (gradient * part).nan_to_num(nan=0.0)
    if part.numel() == 1:
        return gradient.sum(-1) * part.reshape(())
    if part.ndim == 1 and bool(part.isfinite().all()):
        return gradient @ part
    return (gradient * part).nan_to_num(nan=0.0).sum(-1)


class PackedLayers(Observer):
    """Records the bias and the rounding of linear layers whose calls the tracer does not see."""

    def __init__(self) -> None:
        self._constants: list[int] = []  # recorded before each running packed layer

    def enter_module(
        self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        if _is_packed(module):
            self._constants.append(tracer.ledger.count)
        return args

    def leave_module(
        self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...], kwargs: Any, out: Any
    ) -> Any:
        if _is_packed(module):
            unseen = tracer.ledger.count == self._constants.pop() or not depends_on_input(out)
            if unseen and args and depends_on_input(args[0]):
                _record(tracer, module, args, out)
        return out


def _is_packed(module: nn.Module) -> bool:
    """Whether a module without submodules has a weight matrix of integers."""
    weight = own_tensor(module, "weight")
    packed = weight is not None and weight.ndim > 1 and not weight.is_floating_point()
    return packed and not submodules(module)


def _is_for_inference(module: nn.Module) -> bool:
    """Whether bitsandbytes has laid out 4-bit weights for a kernel without a gradient."""
    state = getattr(getattr(module, "weight", None), "quant_state", None)
    return bool(getattr(state, "packing_format_for_cpu", False))


def _record(tracer: Tracer, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
    if _is_for_inference(module):
        raise ModelError(
            f"{tracer.where}: bitsandbytes repacked these 4-bit weights for inference on a CPU, as "
            "it does when a model first runs without gradients; they have no gradient afterwards. "
            "Load the model again.",
            **GIVE_ANSWER,
        )
    if not depends_on_input(out):
        return
    bias = getattr(module, "bias", None)
    value = out.detach()
    if isinstance(bias, Tensor):
        tracer.constant(TorchCall(module.forward, args), out, bias.detach())
        value = value - bias.detach().to(value)
    else:
        propagate(TorchCall(module.forward, args), out)
    tracer.ledger.record_rounding(out, args[0], value, tracer.where)
