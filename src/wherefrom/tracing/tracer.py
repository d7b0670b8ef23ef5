"""The tracer: applies a rule to each torch call of a forward pass and notifies observers."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from wherefrom.core.scope import Hooks, Scope
from wherefrom.core.torch_internals import (
    function_class,
    next_sequence_number,
    sequence_number,
    submodules,
    without_function_modes,
)
from wherefrom.errors import MethodError, use_method
from wherefrom.tracing.catalogue import (
    CATALOGUE,
    LAYOUT,
    Function,
    Kind,
    TorchCall,
    depends_on_input,
    list_tensors,
    map_tensors,
)
from wherefrom.tracing.observers import Observer
from wherefrom.tracing.observers.attention_maps import Maps
from wherefrom.tracing.observers.entry_points import EntryPoints
from wherefrom.tracing.observers.ledger import (
    GradientBreak,
    GradientBreaks,
    LedgerRecorder,
    PackedLayers,
    gradient_break_of,
)
from wherefrom.tracing.tags import like, mark, propagate, role_of

# half of all calls read these attributes, which are not tensors and need no rule
_PLAIN: frozenset[Any] = frozenset(
    getattr(Tensor, name).__get__
    for name in (
        "device dtype grad_fn is_cuda is_sparse itemsize layout ndim requires_grad shape".split()
    )
) | {Tensor.dim, Tensor.is_floating_point, Tensor.size, Tensor.untyped_storage}


class CallMode(TorchFunctionMode):
    """Hands each torch call to `on_call` as a `TorchCall`."""

    def __torch_function__(
        self,
        function: Function,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if function in _PLAIN:
            return function(*args, **(kwargs or {}))
        return self.on_call(TorchCall(function, args, kwargs))

    def on_call(self, call: TorchCall) -> Any:
        """Runs the call, or a replacement, and returns the result."""
        return call.run()

    def resumed(self) -> Scope:
        """A scope within a rule in which the mode also handles the calls that the rule makes."""
        return Scope(mode=self)

    def opened(self) -> Scope:
        """The scope in which the mode is active."""
        return Scope(mode=self)

    def __enter__(self) -> Self:
        self._scope = self.opened()
        self._scope.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._scope.close()
        del self._scope  # its hooks refer to the mode: the cycle would outlive the pass


def without_parameters(call: TorchCall) -> TorchCall:
    """The call with detached parameters: only what depends on the input requires a gradient."""
    for value in call.args:
        if type(value) not in _NO_PARAMETERS:
            call.args = tuple(map(_constant, call.args))
            break
    if call.kwargs:
        call.kwargs = {key: _constant(value) for key, value in call.kwargs.items()}
    return call


_NO_PARAMETERS = frozenset((Tensor, int, float, bool, type(None), str, slice))


def _constant(value: Any) -> Any:
    kind = type(value)
    if kind in _NO_PARAMETERS:  # most are; checking for a parameter takes longer
        return value
    if isinstance(value, nn.Parameter):
        return value.detach()
    if kind in (list, tuple) and any(isinstance(v, nn.Parameter) for v in value):
        return map_tensors(value, lambda t: t.detach() if isinstance(t, nn.Parameter) else t)
    return value


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
        followers = [entry_points, entry_points.first_block, maps, root_activations]
        early, late = ([o for o in observers if o.late is late] for late in (False, True))
        self._watch([*early, *own, *(o for o in followers if o is not None), *late])

    def _watch(self, observers: Sequence[Observer]) -> None:
        """Collects the methods that observers override, so that a call costs no empty ones."""

        def overridden(name: str) -> list[Callable[..., Any]]:
            base = getattr(Observer, name)
            return [getattr(o, name) for o in observers if getattr(type(o), name) is not base]

        self._observers = observers
        self._before_call, self._after_call = overridden("before_call"), overridden("after_call")
        self._enter, self._leave = overridden("enter_module"), overridden("leave_module")
        self._on_constant = overridden("on_constant")

    @contextmanager
    def observed(self, observer: Observer) -> Iterator[None]:
        """A context with one more observer, after the others."""
        observers = self._observers
        self._watch([*observers, observer])
        try:
            yield
        finally:
            self._watch(observers)

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

    def constant(
        self, call: TorchCall, out: Any, part: Tensor | float | None, kind: str = "bias"
    ) -> Any:
        """Reports the constant `part`, if any, that is included in `out`, the result of a call."""
        if part is not None and isinstance(out, Tensor) and out.requires_grad:
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


_ELEMENTWISE_HOMES = ("torch.nn.modules.activation", "transformers.activations")
_NOT_ELEMENTWISE = frozenset(
    ("GLU", "MultiheadAttention", "PReLU", "Softmax", "Softmax2d", "Softmin", "LogSoftmax")
)


class ActivationModules(Observer):
    """Runs an activation module on a detached input, then applies the rule to input and result."""

    def __init__(self, rule: Callable[[Tracer, TorchCall], Any]) -> None:
        self._rule = rule
        self._module: nn.Module | None = None  # the running one
        self._input: Tensor | None = None

    def enter_module(
        self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        single = len(args) == 1 and depends_on_input(args[0])
        if self._module is not None or not single or isinstance(args[0], nn.Parameter):
            return args
        if not is_activation(module):
            return args
        self._module, self._input, tracer.suspended = module, args[0], True
        x = args[0].detach()
        return (x.clone() if getattr(module, "inplace", False) else x,)

    def leave_module(
        self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...], kwargs: Any, out: Any
    ) -> Any:
        if module is self._module:
            x = self._input
            self._module = self._input = None
            tracer.suspended = False
        elif self._module is None and len(args) == 1 and _is_own_function(module, args[0], out):
            x, out = args[0], out.detach()
        else:
            return out
        assert x is not None
        call = TorchCall(module.forward, (x, out))
        result = self._rule(tracer, call)
        propagate(call, result)
        if getattr(module, "inplace", False):
            result = mark(x.copy_(result), role_of(result))
        return result


def is_activation(module: nn.Module) -> bool:
    """Whether a module is an element-wise activation of torch or transformers."""
    kind = type(module)
    return kind.__module__ in _ELEMENTWISE_HOMES and kind.__name__ not in _NOT_ELEMENTWISE


def _is_own_function(module: nn.Module, x: Any, out: Any) -> bool:
    """Whether a module applies a custom autograd Function that keeps the shape of its input.

    Such a module without a weight matrix is an activation.
    """
    if not depends_on_input(out) or not depends_on_input(x) or out.shape != x.shape:
        return False
    node: Any = type(out.grad_fn)
    if not issubclass(node, BackwardCFunction):
        return False
    if function_class(node).__module__.startswith("wherefrom."):
        return False
    return all(parameter.ndim < 2 for parameter in module.parameters())


_PLUMBING = LAYOUT | {Kind.CAST, Kind.SUM, Kind.PRODUCT, Kind.COUNT, Kind.WRITE}
_PLUMBING_NAMES = frozenset(
    "size dim len arange bool item shape is_floating_point tensor zeros ones stride".split()
)


def describe(seen: Counter[str], most: int = 6) -> str:
    """The most frequent calls for a message, without those that any model makes.

    >>> describe(Counter({"layer_norm": 25, "view": 90, "silu": 12}))
    'layer_norm ×25, silu ×12'
    """
    common = _PLUMBING_NAMES | {e.name for e in CATALOGUE.values() if e.kind in _PLUMBING}
    named = [
        (name.strip("_"), n) for name, n in seen.most_common() if name.strip("_") not in common
    ]
    return ", ".join(f"{name} ×{n}" for name, n in named[:most]) or "no torch call"


@dataclass
class RootActivations(Observer):
    """Tensors of the pass at the root, in the order in which the rules recorded them; the route.

    The route is the model's choices: integers and truth values made of what depends on the input,
    such as the experts of a row. If the input's route is another than the root's, the pass at the
    input records it instead (`left_route`); later passes at both points are held to it.
    """

    held: list[tuple[Tensor, ...]] | None = None  # the route of both passes
    recording: bool = True
    left_route: bool = False
    route: list[tuple[Tensor, ...]] = field(default_factory=list)
    _recorded: deque[tuple[Tensor, ...]] = field(default_factory=deque)
    _at_root: deque[tuple[Tensor, ...]] = field(default_factory=deque)

    def finish_root(self) -> None:
        """Ends the pass at the root; the pass at the input begins."""
        self.recording, self.route, self._at_root = False, [], deque(self.route)

    def at_root(self, where: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The values of these tensors at the root; in the pass at the root, records them."""
        if self.recording:
            # copies: the model may write into its tensors afterwards
            copies = tuple(tensor.detach().clone() for tensor in tensors)
            self._recorded.append(copies)
            return copies
        at_root = self._recorded.popleft() if self._recorded else ()
        if [recorded.shape for recorded in at_root] != [tensor.shape for tensor in tensors]:
            raise MethodError(
                "the model does not make the same calls at the root as at the input (in "
                f"{where or 'the model itself'}): secants between the two are undefined.",
                **use_method("lrp"),
            )
        return at_root

    def after_call(self, tracer: Tracer, call: TorchCall, out: Any) -> Any:
        if type(out) is Tensor and out.is_floating_point():  # most calls
            return out
        choices = tuple(t.clone() for t in list_tensors((out,)) if _is_choice(t))
        if not choices or not any(map(_stems_from_input, call.tensors())):
            return out
        number = len(self.route)
        self.route.append(choices)
        if self.held is not None:
            same = number < len(self.held) and _are_equal(choices, self.held[number])
            return out if same else _chosen(call, out, self.held[number])
        if not self.recording and not (
            self._at_root and _are_equal(choices, self._at_root.popleft())
        ):
            self.recording = self.left_route = True
        return out


def _stems_from_input(value: Tensor) -> bool:
    return depends_on_input(value) or gradient_break_of(value) is not None


def _is_choice(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex() or value.is_quantized)


def _are_equal(choices: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> bool:
    return len(choices) == len(others) and all(map(torch.equal, choices, others))


def _chosen(call: TorchCall, out: Any, choices: tuple[Tensor, ...]) -> Any:
    """The result of a call with other choices, and with the values that they select."""
    if call.kind is Kind.STATISTIC and isinstance(out, tuple):
        (values, _), (indices,) = out, choices
        if call.name not in ("max", "min"):  # theirs have a rule
            x, dim = call["input"], call.get("dim", -1)
            keeps = values.ndim == x.ndim
            selected = x.gather(dim, indices if keeps else indices.unsqueeze(dim))
            values = like(selected if keeps else selected.squeeze(dim), values)
        return type(out)((values, indices.clone()))
    held = iter(choices)
    return map_tensors(out, lambda t: next(held).clone() if _is_choice(t) else t)
