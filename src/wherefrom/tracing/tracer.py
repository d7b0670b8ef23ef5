"""The mode that sees every torch call of a forward pass and applies a table of rules to it."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from wherefrom.core.scope import Hooks, Scope
from wherefrom.core.torch_internals import (
    function_class,
    innermost_mode,
    next_sequence_number,
    sequence_number,
    set_grad_enabled,
    submodules,
    without_function_modes,
)
from wherefrom.rules.needed_rows import NeededRows, rows_of
from wherefrom.rules.own_function import KEEPS_RESULT, Writing
from wherefrom.tracing.call_mode import CallMode, without_parameters
from wherefrom.tracing.catalogue import Function, Kind, TorchCall, depends_on_input, tensors_in
from wherefrom.tracing.observers.attention_maps import Maps
from wherefrom.tracing.observers.checkpointing import SavedTensors
from wherefrom.tracing.observers.entry_points import EntryPoints
from wherefrom.tracing.observers.gradient_breaks import (
    GradientBreak,
    constant_gradient_break,
    follow_gradient_break,
    passes_on,
)
from wherefrom.tracing.observers.ledger import LedgerRecorder
from wherefrom.tracing.observers.output_rows import Projection
from wherefrom.tracing.observers.packed_layers import has_packed_weight, record_packed_linear
from wherefrom.tracing.root_activations import RootActivations
from wherefrom.tracing.tag_propagation import propagate
from wherefrom.tracing.tags import like, mark, role_of, tag_of

Rule = Callable[["Tracer", TorchCall], Any]
Table = Mapping[Kind, Rule]

_ELEMENTWISE_HOMES = ("torch.nn.modules.activation", "transformers.activations")
_NOT_ELEMENTWISE = frozenset(
    ("GLU", "MultiheadAttention", "PReLU", "Softmax", "Softmax2d", "Softmin", "LogSoftmax")
)


class _Running(NamedTuple):
    """A module that is being run."""

    name: str
    is_leaf: bool  # it has no parts
    is_packed: bool


class Tracer(CallMode):
    """Runs a model's own forward pass with some torch calls replaced as the table says.

    Within it, a tensor requires a gradient if and only if it depends on the input: parameters
    are seen by the calls as constants. What is constant and added to something live is a line
    of the ledger, found by what the call does.

    The mode holds for the thread that opened it, and leaves nothing behind.
    """

    def __init__(
        self,
        table: Table,
        sources: EntryPoints,
        *,
        model: nn.Module | None = None,
        ledger: bool = True,
        maps: Maps | None = None,
        root_activations: RootActivations | None = None,
        projection: Projection | None = None,
        saved: SavedTensors | None = None,
        rows: NeededRows | None = None,
    ) -> None:
        super().__init__()
        self.table = table
        self.root_activations = root_activations
        self.projection = projection
        self.saved = saved
        self.rows = rows
        self.sources = sources
        self.ledger = LedgerRecorder(sources, enabled=ledger)
        self.maps = maps
        self.seen: Counter[str] = Counter()
        self.touched: Counter[str] = Counter()
        self.precisions: set[torch.dtype] = set()  # of what depends on the input
        self.detached: list[GradientBreak] = []  # of constants that depend on the input
        self.leaves: list[tuple[Tensor, str]] = []  # that calls gave, and where
        self.opaque: list[str] = []  # autograd Functions of the model that no call is seen of
        self._names = {id(part): name for name, part in model.named_modules()} if model else {}
        self._running: list[_Running] = []  # the outermost first
        self._running_before: Sequence[_Running] = ()  # when it is opened
        self._activation: tuple[nn.Module, Tensor] | None = None  # the one being run, its input
        self._activation_rule = table.get(Kind.ACTIVATION_MODULE)
        self._writing: Writing | None = None  # the autograd Function that is being written out
        self._written: weakref.ref[Tensor] | None = None  # what the last one gave
        self._packed = 0  # modules of packed weights that are being run
        self._thread = 0
        self._begun = 0  # what comes into the graph from here on is of this pass
        self._watches = torch.is_grad_enabled()
        self._calls = 0
        self._leaves = 0  # modules without parts that are being run
        self._trails_before = 0  # when the last of them was entered
        self._constants_before = 0  # at that time

    @property
    def where(self) -> str:
        """The name of the module that is being run."""
        return self._running[-1].name if self._running else ""

    @property
    def path(self) -> list[str]:
        """The names of the modules that are being run, the outermost first."""
        return [module.name for module in self._running]

    def constant(self, call: TorchCall, out: Any, part: Tensor | float, kind: str = "bias") -> Any:
        """Enters into the ledger that `part` was added to get `out`, the result of a call."""
        if self.ledger.enabled and isinstance(out, Tensor) and out.requires_grad:
            propagate(call, out)
            cut = constant_gradient_break(call)
            if cut is not None:
                self.detached.append(cut)
                kind = "detached"
            self.ledger.record(out, part, self.where, kind)
        return out

    def on_call(self, call: TorchCall) -> Any:
        name = getattr(call.function, "__name__", "")
        if name == "__get__":
            return self._attribute(call)
        projection = self.projection if call.kind is Kind.LINEAR else None
        if projection is not None:
            call = projection.narrowed(call)
        if self.rows is not None and (on_rows := self.rows.narrowed(call)) is not None:
            return self.rows.widened(call, self.on_call(on_rows))
        self.seen[name] += 1
        call = without_parameters(call)
        if any(map(self._is_earlier, call.tensors())):
            call = call.mapped(lambda t: t.detach() if self._is_earlier(t) else t)
        if self._writing is not None:
            if call.function is set_grad_enabled:
                return call.function(self._writing.turn(*call.args))
            self._writing.note(name, call)
        kind = call.kind
        self._calls += 1
        before, entered = self._calls, len(self.sources.entered)
        rule = None if kind is None or self._activation is not None else self.table.get(kind)
        into_constant = kind is Kind.WRITE and call.in_place and not depends_on_input(call.args[0])
        out = call.run() if rule is None else rule(self, call)
        propagate(call, out, into_constant)
        if self._writing is not None and kind in KEEPS_RESULT and depends_on_input(out):
            out = like(out.clone(), out)
        if projection is not None:
            projection.note(call, out)
        if self.rows is not None:
            self.rows.follow(call, out)
        if self._watches and not passes_on(kind, out):
            frozen = rule is not None and torch.is_grad_enabled()
            follow_gradient_break(
                call, out, self.where, frozen, len(self.sources.entered) > entered
            )
        if depends_on_input(out):
            self.precisions.add(out.dtype)
            if out.is_leaf:  # a constant that the model itself wants a gradient for, or a source
                self.leaves.append((out, self.where))
        if self.saved is not None:
            self.saved.called(call, out)
        if kind is Kind.JOIN:
            self._join(call, out)
        if self.sources.trails and not self._leaves and self._calls == before:
            out = self.sources.follow(call.tensors(), out)  # else its parts or module are followed
        if self.maps is not None:
            self.maps.reach(out)
        return out

    def _is_earlier(self, value: Tensor) -> bool:
        """Whether a tensor has a graph of its own from before the pass, as one that a model caches.

        It depends on parameters, not on this input.
        """
        if hasattr(value, "wherefrom_tag") or not value.requires_grad:  # most
            return False
        number = sequence_number(value)
        return number is not None and number < self._begun

    def _attribute(self, call: TorchCall) -> Any:
        value = call.run()
        if not isinstance(value, Tensor):  # a size, a device
            return value
        if isinstance(call.args[0], nn.Parameter) and depends_on_input(value):
            return value.detach()  # weight.T is a parameter in all but name
        propagate(call, value)  # and weights.mT are attention weights
        if self.rows is not None:
            self.rows.follow(call, value)
        if self._watches:
            follow_gradient_break(call, value, self.where, frozen=False, entered=False)
        if self.sources.trails and not self._leaves:
            value = self.sources.follow(call.args, value)
        return value

    def _join(self, call: TorchCall, out: Any) -> None:
        """Notes what is put in front of the input's places."""
        if depends_on_input(out) and out.ndim == 3 and call.get("dim", 0) in (1, -2):
            parts = call["tensors"]
            first = next((tag_of(part).stream for part in parts if part.requires_grad), None)
            self.sources.join(parts, first or 0)

    # Modules: where we are, and activation classes taken as one call.

    def opened(self) -> Scope:
        self._thread = threading.get_ident()
        self._running = list(self._running_before)
        self._activation = None
        self._leaves = 0
        self._packed = 0
        self._begun = next_sequence_number()
        functions = self._own_function if Kind.OWN_FUNCTION in self.table else None
        return Scope(mode=self, hooks=Hooks(self._before, self._after), functions=functions)

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if threading.get_ident() != self._thread:
            return None
        name = self._names.get(id(module), self.where)
        running = _Running(name, not submodules(module), has_packed_weight(module))
        self._running.append(running)
        if self.saved is not None:
            self.saved.enter(self, module)
        self._packed += running.is_packed
        if running.is_leaf:
            self._leaves += 1
            self._constants_before = self.ledger.count
            self._trails_before = len(self.sources.trails)
        free = self._activation_rule is not None and self._activation is None
        is_input = (
            len(args) == 1 and depends_on_input(args[0]) and not isinstance(args[0], nn.Parameter)
        )
        if free and _is_activation(module) and is_input:
            self._activation = (module, args[0])
            with without_function_modes():  # no call of the model at which a gradient would end
                x = rows_of(args[0]).detach()
            return (x.clone() if getattr(module, "inplace", False) else x,)
        return None

    def _after(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> Any:
        if threading.get_ident() != self._thread:
            return None
        kwargs, out = rest
        with without_function_modes():  # what is asked from here on is no call of the model
            return self._leave(module, args, kwargs, out)

    def _leave(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> Any:
        """Notes that a module has run, and gives what the model shall use of its result."""
        if self.saved is not None:
            self.saved.leave(self, module, args, kwargs)
        changed = None
        free = self._activation is None and self._activation_rule and len(args) == 1
        if free and self._is_own_function(module, args[0], out):
            self._activation = (module, args[0])
            out = rows_of(out).detach()
        if self._activation is not None and self._activation[0] is module:
            assert self._activation_rule is not None
            whole, self._activation = self._activation[1], None
            x = rows_of(whole)
            call = TorchCall(module.forward, (x, out))
            changed = self._activation_rule(self, call)
            propagate(call, changed)
            if getattr(module, "inplace", False):
                changed = mark(x.copy_(changed), role_of(changed))
            if x is not whole and self.rows is not None:
                changed = self.rows.placeholder(changed, whole.shape[1])
            elif self.rows is not None:
                self.rows.limit_like(changed, x)
            args = (whole,)
        running = self._running[-1]
        unseen = self.ledger.count == self._constants_before or not depends_on_input(out)
        if unseen and running.is_leaf and running.is_packed:
            record_packed_linear(self, module, args, out)
        self._running.pop()
        self._packed -= running.is_packed
        if running.is_leaf:
            self._leaves -= 1
            if self.sources.trails and not self._leaves:
                result = out if changed is None else changed
                begun = self.sources.trails[self._trails_before :]  # a scaled embedding
                inputs = [*tensors_in(args), *(trail.first.tensors[0] for trail in begun)]
                followed = self.sources.follow(inputs, result)
                changed = changed if followed is result else followed
        return changed

    # Autograd Functions of the model's own.

    def _own_function(
        self, kind: type[torch.autograd.Function], apply: Function, args: Any, kwargs: Any
    ) -> Any:
        """What an autograd Function gives: written out, unless it is ours or of packed weights."""
        if kind.__module__.startswith("wherefrom.") or self._packed or self._activation is not None:
            return apply(*args, **kwargs)
        call = without_parameters(TorchCall(apply, tuple(args), kwargs))
        seen = innermost_mode() is self
        if not (seen and torch.is_grad_enabled() and any(map(depends_on_input, call.args))):
            return apply(*args, **kwargs)
        out = self.table[Kind.OWN_FUNCTION](self, call)
        self._written = weakref.ref(out) if isinstance(out, Tensor) else None
        return out

    @contextmanager
    def writing_out(self) -> Iterator[Writing]:
        """While the forward of a Function is run as a part of the model."""
        before, running, leaves = self._writing, list(self._running), self._leaves
        self._writing = writing = Writing()
        try:
            yield writing
        except RuntimeError:  # of modules that were being run
            self._running, self._leaves = running, leaves
            raise
        finally:
            self._writing = before

    def _is_own_function(self, module: nn.Module, x: Any, out: Any) -> bool:
        """Whether a module of one tensor gave back an autograd Function's result of its shape.

        A module without matrices of weights is then taken as an activation.
        """
        if not depends_on_input(out) or not depends_on_input(x) or out.shape != x.shape:
            return False
        written = self._written is not None and self._written() is out
        if not (written or _is_of_function(out)):
            return False
        return all(parameter.ndim < 2 for parameter in module.parameters())

    # A second run of a block, for the backward pass.

    def second_run(self, path: Sequence[str]) -> Tracer:
        """A mode with the same rules for a module that is run again: it records nothing here."""
        tracer = copy(self)
        tracer.sources = self.sources.for_second_run()
        tracer.ledger = LedgerRecorder(tracer.sources, enabled=self.ledger.enabled)
        tracer.seen, tracer.touched, tracer.precisions, tracer.detached = (
            Counter(),
            Counter(),
            set(),
            [],
        )
        tracer.leaves, tracer.opaque, tracer._writing, tracer._written = [], [], None, None
        tracer.saved = tracer.projection = None
        tracer._running_before = [_Running(name, False, False) for name in path]
        return tracer

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Modules that are run within are not noted."""
        thread, self._thread = self._thread, 0
        try:
            yield
        finally:
            self._thread = thread


def _is_activation(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__module__ in _ELEMENTWISE_HOMES and kind.__name__ not in _NOT_ELEMENTWISE


def _is_of_function(tensor: Tensor) -> bool:
    """Whether a tensor is the result of an autograd Function that is not ours."""
    node: Any = type(tensor.grad_fn)
    ours = function_class(node).__module__.startswith("wherefrom.")
    return issubclass(node, BackwardCFunction) and not ours
