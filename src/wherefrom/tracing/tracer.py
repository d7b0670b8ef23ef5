"""The tracer: applies a rule to each torch call of a forward pass and notifies observers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from wherefrom.core.scope import Hooks, Scope
from wherefrom.core.torch_internals import (
    next_sequence_number,
    sequence_number,
    submodules,
    without_function_modes,
)
from wherefrom.tracing.call_mode import CallMode, without_parameters
from wherefrom.tracing.catalogue import Kind, TorchCall, depends_on_input
from wherefrom.tracing.observers import Observer
from wherefrom.tracing.observers.activation_modules import ActivationModules
from wherefrom.tracing.observers.attention_maps import Maps
from wherefrom.tracing.observers.entry_points import EntryPoints
from wherefrom.tracing.observers.gradient_breaks import GradientBreak, GradientBreaks
from wherefrom.tracing.observers.ledger import LedgerRecorder
from wherefrom.tracing.observers.packed_layers import PackedLayers
from wherefrom.tracing.root_activations import RootActivations
from wherefrom.tracing.tag_propagation import propagate

Rule = Callable[["Tracer", TorchCall], Any]
Table = Mapping[Kind, Rule]


class RunningModule(NamedTuple):
    """A module whose forward is running."""

    name: str
    is_leaf: bool  # has no submodules


class Tracer(CallMode):
    """Replaces torch calls of a model's own forward pass by the rules of a table.

    In a traced pass a tensor requires a gradient if and only if it depends on the input: calls get
    detached parameters. The tracer acts in the thread that opened it, and removes its hooks.
    """

    def __init__(
        self,
        table: Table,
        entry_points: EntryPoints,
        *,
        model: nn.Module | None = None,
        ledger: bool = True,
        maps: Maps | None = None,
        root_activations: RootActivations | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        super().__init__()
        self.table = table
        self.entry_points = entry_points
        self.ledger = LedgerRecorder(entry_points, enabled=ledger)
        self.maps = maps
        self.root_activations = root_activations
        self.seen: Counter[str] = Counter()  # calls by name
        self.touched: Counter[str] = Counter()  # calls that a rule treated as attention, norm, …
        self.cut: GradientBreak | None = None  # where a part of the gradient may end
        self.suspended = False  # an activation module runs: no rule applies to its calls
        self._names = {id(part): name for name, part in model.named_modules()} if model else {}
        self.running: list[RunningModule] = []  # the outermost first
        self._thread = self._begun = 0  # sequence number of this pass's first node
        own: list[Observer] = [self.ledger, GradientBreaks(), PackedLayers()]
        if Kind.ACTIVATION_MODULE in table:
            own.insert(0, ActivationModules(table[Kind.ACTIVATION_MODULE]))
        followers = [entry_points, entry_points.first_block, maps]
        self._watch([*observers, *own, *(o for o in followers if o is not None)])

    def _watch(self, observers: Sequence[Observer]) -> None:
        """Collects the methods that observers override, so that a call costs no empty ones."""

        def overridden(name: str) -> list[Callable[..., Any]]:
            base = getattr(Observer, name)
            return [getattr(o, name) for o in observers if getattr(type(o), name) is not base]

        self._observers = observers
        self._before_call, self._after_call = overridden("before_call"), overridden("after_call")
        self._enter, self._leave = overridden("enter_module"), overridden("leave_module")
        self._on_constant = overridden("on_constant")

    @property
    def where(self) -> str:
        """The name of the running module."""
        return self.running[-1].name if self.running else ""

    @property
    def path(self) -> list[str]:
        """The names of the running modules, the outermost first."""
        return [module.name for module in self.running]

    @property
    def in_leaf(self) -> bool:
        """Whether a module without submodules is running."""
        return any(module.is_leaf for module in self.running)

    # Calls

    def on_call(self, call: TorchCall) -> Any:
        name = getattr(call.function, "__name__", "")
        if name == "__get__":
            return self._attribute(call)
        self.seen[name] += 1
        call = without_parameters(call)
        if any(map(self._is_earlier, call.tensors())):
            call = call.mapped(lambda t: t.detach() if self._is_earlier(t) else t)
        for before_call in self._before_call:
            call = before_call(self, call)
        kind = call.kind
        rule = None if kind is None or self.suspended else self.table.get(kind)
        into_constant = kind is Kind.WRITE and call.in_place and not depends_on_input(call.args[0])
        out = call.run() if rule is None else rule(self, call)
        propagate(call, out, into_constant)
        for after_call in self._after_call:
            out = after_call(self, call, out)
        return out

    def _attribute(self, call: TorchCall) -> Any:
        value = call.run()
        if not isinstance(value, Tensor):  # a size, a device
            return value
        if isinstance(call.args[0], nn.Parameter) and depends_on_input(value):
            return value.detach()  # such as weight.T
        for before_call in self._before_call:
            call = before_call(self, call)
        propagate(call, value)  # the role passes on to weights.mT
        for after_call in self._after_call:
            value = after_call(self, call, value)
        return value

    def _is_earlier(self, value: Tensor) -> bool:
        """Whether a tensor's graph is older than the pass, as for a tensor that a model caches.

        Such a tensor depends on parameters, not on this input.
        """
        if hasattr(value, "wherefrom_tag") or not value.requires_grad:  # most
            return False
        number = sequence_number(value)
        return number is not None and number < self._begun

    def constant(self, call: TorchCall, out: Any, part: Tensor | float, kind: str = "bias") -> Any:
        """Reports the constant `part` that is included in `out`, the result of a call."""
        if isinstance(out, Tensor) and out.requires_grad:
            for on_constant in self._on_constant:
                on_constant(self, call, out, part, kind)
        return out

    # Modules

    def opened(self) -> Scope:
        self._thread = threading.get_ident()
        self._begun = next_sequence_number()
        return Scope(mode=self, hooks=Hooks(self._before, self._after))

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if threading.get_ident() != self._thread:
            return None
        name = self._names.get(id(module), self.where)
        self.running.append(RunningModule(name, not submodules(module)))
        with without_function_modes():  # calls of observers are not traced
            changed = args
            for enter_module in self._enter:
                changed = enter_module(self, module, changed)
        return None if changed is args else changed

    def _after(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> Any:
        if threading.get_ident() != self._thread:
            return None
        kwargs, out = rest
        changed = out
        with without_function_modes():
            for leave_module in self._leave:
                changed = leave_module(self, module, args, kwargs, changed)
        self.running.pop()
        return None if changed is out else changed

    # Running a block a second time, for the backward pass

    def second_run(self, path: Sequence[str]) -> Tracer:
        """A tracer with the same rules for a second run of a module; this one records nothing."""
        tracer = Tracer(self.table, self.entry_points.for_second_run(), ledger=self.ledger.enabled)
        tracer._names = self._names
        tracer.running = [RunningModule(name, False) for name in path]
        return tracer

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context in which this tracer ignores modules."""
        thread, self._thread = self._thread, 0
        try:
            yield
        finally:
            self._thread = thread
