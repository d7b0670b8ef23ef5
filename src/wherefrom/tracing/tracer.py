"""The tracer: sees every torch call of a forward pass, applies a rule, tells the observers."""

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
from wherefrom.tracing.observers.gradient_breaks import GradientBreaks
from wherefrom.tracing.observers.ledger import LedgerRecorder
from wherefrom.tracing.observers.packed_layers import PackedLayers
from wherefrom.tracing.root_activations import RootActivations
from wherefrom.tracing.tag_propagation import propagate

Rule = Callable[["Tracer", TorchCall], Any]
Table = Mapping[Kind, Rule]


class RunningModule(NamedTuple):
    """A module that is being run."""

    name: str
    is_leaf: bool  # it has no submodules


class Tracer(CallMode):
    """Runs a model's own forward pass with some torch calls replaced as the table says.

    Within it a tensor requires a gradient if and only if it depends on the input: calls get
    parameters as constants. The tracer holds for the thread that opened it and leaves nothing
    behind.
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
        self.touched: Counter[str] = Counter()  # calls by what a rule took them for
        self.suspended = False  # calls within an activation module are made as they are
        self._names = {id(part): name for name, part in model.named_modules()} if model else {}
        self.running: list[RunningModule] = []  # the outermost first
        self._thread = self._begun = 0  # the graph of this pass begins at this number
        own: list[Observer] = [self.ledger, GradientBreaks(), PackedLayers()]
        if Kind.ACTIVATION_MODULE in table:
            own.insert(0, ActivationModules(table[Kind.ACTIVATION_MODULE]))
        self._watch([*observers, *own, entry_points, *([] if maps is None else [maps])])

    def _watch(self, observers: Sequence[Observer]) -> None:
        """Keeps the methods that observers override: most calls concern few of them."""

        def overridden(name: str) -> list[Callable[..., Any]]:
            base = getattr(Observer, name)
            return [getattr(o, name) for o in observers if getattr(type(o), name) is not base]

        self._observers = observers
        self._before_call, self._after_call = overridden("before_call"), overridden("after_call")
        self._enter, self._leave = overridden("enter_module"), overridden("leave_module")
        self._on_constant = overridden("on_constant")

    @property
    def where(self) -> str:
        """The name of the module that is being run."""
        return self.running[-1].name if self.running else ""

    @property
    def path(self) -> list[str]:
        """The names of the modules that are being run, the outermost first."""
        return [module.name for module in self.running]

    @property
    def in_leaf(self) -> bool:
        """Whether a module without submodules is being run."""
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
            return value.detach()  # weight.T is a parameter in all but name
        for before_call in self._before_call:
            call = before_call(self, call)
        propagate(call, value)  # weights.mT are attention weights
        for after_call in self._after_call:
            value = after_call(self, call, value)
        return value

    def _is_earlier(self, value: Tensor) -> bool:
        """Whether the graph of a tensor is older than the pass, as that of one a model caches.

        It depends on parameters, not on this input.
        """
        if hasattr(value, "wherefrom_tag") or not value.requires_grad:  # most
            return False
        number = sequence_number(value)
        return number is not None and number < self._begun

    def constant(self, call: TorchCall, out: Any, part: Tensor | float, kind: str = "bias") -> Any:
        """A rule says that `part` was added to get `out`, the result of a call."""
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
        with without_function_modes():  # observers make no calls of the model
            given = args
            for enter_module in self._enter:
                given = enter_module(self, module, given)
        return None if given is args else given

    def _after(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> Any:
        if threading.get_ident() != self._thread:
            return None
        kwargs, out = rest
        given = out
        with without_function_modes():
            for leave_module in self._leave:
                given = leave_module(self, module, args, kwargs, given)
        self.running.pop()
        return None if given is out else given

    # The second run of a block, for the backward pass

    def second_run(self, path: Sequence[str]) -> Tracer:
        """A tracer with the same rules for a module that is run again; it records nothing here."""
        tracer = Tracer(self.table, self.entry_points.for_second_run(), ledger=self.ledger.enabled)
        tracer._names = self._names
        tracer.running = [RunningModule(name, False) for name in path]
        return tracer

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Modules that run within are not noted."""
        thread, self._thread = self._thread, 0
        try:
            yield
        finally:
            self._thread = thread
