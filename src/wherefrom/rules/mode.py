"""The mode that sees every torch call of a forward pass and applies a table of rules to it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from wherefrom.rules.calls import (
    Call,
    calls,
    kind_of,
    live,
    mark,
    replaced,
    set_stream,
    stream_of,
    tensors,
    turned_of,
)
from wherefrom.rules.ledger import LedgerRecorder
from wherefrom.rules.maps import Maps
from wherefrom.rules.sources import Sources

Rule = Callable[["LocallyLinear", Call, tuple[Any, ...], dict[str, Any]], Any]
Table = Mapping[Call, Rule]

# what a tensor is (attention weights, an activated factor, ids) is lost in these calls
_FRESH = frozenset(
    calls(
        "linear", "bilinear", "addmm", "baddbmm", "matmul", "mm", "bmm", "mv", "einsum", "conv1d",
        "conv2d", "conv3d", "layer_norm", "rms_norm", "group_norm", "batch_norm", "embedding",
        "scaled_dot_product_attention", "cumsum", "ne", "eq", "argmax", "sum_to_size",
    )
)  # fmt: skip
# these look at their second argument for its form alone
_LIKE = frozenset(calls("type_as", "to", "expand_as", "view_as", "reshape_as"))


def activation_module(x: Tensor, y: Tensor) -> Tensor:
    """The key of a table under which activation modules are taken as one call.

    Its rule is called with the module's forward as `func` and (x, y = func(x)) as arguments.
    """
    raise TypeError("a key, not a call")


_ELEMENTWISE_HOMES = ("torch.nn.modules.activation", "transformers.activations")
_NOT_ELEMENTWISE = frozenset(
    ("GLU", "MultiheadAttention", "PReLU", "Softmax", "Softmax2d", "Softmin", "LogSoftmax")
)


class LocallyLinear(TorchFunctionMode):
    """Runs a model's own forward pass with some torch calls replaced as the table says.

    Within it, a tensor requires a gradient if and only if it depends on the input: parameters
    are seen by the calls as constants. What is constant and added to something live is a line
    of the ledger, found by what the call does.

    The mode holds for the thread that opened it, and leaves nothing behind.
    """

    def __init__(
        self,
        table: Table,
        sources: Sources,
        *,
        model: nn.Module | None = None,
        ledger: bool = True,
        maps: Maps | None = None,
    ) -> None:
        super().__init__()
        self.table = table
        self.sources = sources
        self.ledger = LedgerRecorder(sources, open=ledger)
        self.maps = maps
        self.seen: Counter[str] = Counter()
        self.touched: Counter[str] = Counter()
        self._names = {id(part): name for name, part in model.named_modules()} if model else {}
        self._path: list[str] = []
        self._unit: tuple[nn.Module, Tensor] | None = None
        self._unit_rule = table.get(activation_module)
        self._hooks: list[Any] = []
        self._thread = 0

    @property
    def where(self) -> str:
        """The name of the module that is being run."""
        return self._path[-1] if self._path else ""

    def constant(self, out: Any, part: Tensor | float, kind: str = "bias") -> Any:
        """Enters into the ledger that `part` was added to get `out`."""
        if isinstance(out, Tensor) and out.requires_grad:
            self.ledger.post(out, part, self.where, kind)
        return out

    def __torch_function__(
        self,
        func: Call,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__":
            found = func(*args, **(kwargs or {}))
            if isinstance(args[0], nn.Parameter) and live(found):
                return found.detach()  # weight.T is a parameter in all but name
            _carry(found, func, args)  # and weights.mT are attention weights
            return found
        self.seen[name] += 1
        args = tuple(_still(value) for value in args)
        kwargs = {key: _still(value) for key, value in kwargs.items()} if kwargs else {}
        rule = self.table.get(func)
        if rule is None or self._unit is not None:
            out = func(*args, **kwargs)
        else:
            out = rule(self, func, args, kwargs)
        if func not in _FRESH:
            _carry(out, func, args)
        if func in _JOINS:
            self._join(out, args, kwargs)
        if self.maps is not None:
            self._follow(func, out, args, kwargs)
        return out

    def _follow(self, func: Call, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A result runs along with what its first live argument does: a query, a residual."""
        assert self.maps is not None
        for given in tensors(*args, *kwargs.values()):
            stream = stream_of(given)
            if stream is not None and given.requires_grad:
                set_stream(out, stream)
                break
        if live(out) and out.ndim in (2, 3):
            before = next((turned_of(t) for t in tensors(*args) if t.requires_grad), False)
            out.wherefrom_turned = before != _turns(func, args, out)
        self.maps.reach(out)

    def _join(self, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes what is put in front of the input's places."""
        parts = kwargs.get("tensors", args[0] if args else ())
        axis = kwargs.get("dim", args[1] if len(args) > 1 else 0)
        if live(out) and out.ndim == 3 and axis in (1, -2):
            first = next((stream_of(part) for part in parts if part.requires_grad), None)
            self.sources.join(parts, first or 0)

    # Modules: where we are, and activation classes taken as one call.

    def __enter__(self) -> LocallyLinear:
        self._thread = threading.get_ident()
        self._hooks = [
            register_module_forward_pre_hook(self._before),  # type: ignore[arg-type]
            register_module_forward_hook(self._after),
        ]
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._path.clear()
        self._unit = None
        super().__exit__(kind, error, trace)

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Lets a rule that spells a call out have the parts seen by the mode too."""
        super().__enter__()
        try:
            yield
        finally:
            super().__exit__(None, None, None)

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if threading.get_ident() != self._thread:
            return None
        self._path.append(self._names.get(id(module), self.where))
        starts = self._unit_rule is not None and self._unit is None and _is_activation(module)
        if starts and len(args) == 1 and live(args[0]):
            self._unit = (module, args[0])
            x = args[0].detach()
            return (x.clone() if getattr(module, "inplace", False) else x,)
        return None

    def _after(self, module: nn.Module, args: tuple[Any, ...], out: Any) -> Any:
        if threading.get_ident() != self._thread:
            return None
        changed = None
        if self._unit is None and self._unit_rule and _is_own_function(args, out):
            self._unit = (module, args[0])
            out = out.detach()
        if self._unit is not None and self._unit[0] is module:
            assert self._unit_rule is not None
            x, self._unit = self._unit[1], None
            with torch._C.DisableTorchFunction():
                changed = self._unit_rule(self, module.forward, (x, out), {})
                if getattr(module, "inplace", False):
                    changed = mark(x.copy_(changed), kind_of(changed))
        self._path.pop()
        return changed


_JOINS = frozenset(calls("cat", "concat", "concatenate"))
_TURNS = frozenset(calls("transpose", "swapaxes", "swapdims", "permute", "movedim"))


def _turns(func: Call, args: tuple[Any, ...], out: Any) -> bool:
    """Whether a call exchanged the first two axes of three."""
    if func not in _TURNS or out.ndim != 3:
        return False
    given = args[0]
    swapped = (given.stride(1), given.stride(0), given.stride(2))
    return bool(given.ndim == 3 and out.stride() == swapped)


def _is_activation(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__module__ in _ELEMENTWISE_HOMES and kind.__name__ not in _NOT_ELEMENTWISE


def _is_own_function(args: tuple[Any, ...], out: Any) -> bool:
    """Whether a module of one tensor gave back, in the same shape, an autograd Function's result.

    No torch call is seen within such a Function: the module is taken as an activation.
    """
    if len(args) != 1 or not live(args[0]) or not live(out) or out.shape != args[0].shape:
        return False
    node = type(out.grad_fn)
    ours = getattr(node, "_forward_cls", node).__module__.startswith("wherefrom.")
    return issubclass(node, BackwardCFunction) and not ours


def _still(value: Any) -> Any:
    """Parameters as constants, so that only what depends on the input requires a gradient."""
    if isinstance(value, nn.Parameter):
        return value.detach()
    if type(value) in (list, tuple) and any(isinstance(v, nn.Parameter) for v in value):
        return replaced(value, lambda t: t.detach() if isinstance(t, nn.Parameter) else t)
    return value


def _carry(out: Any, func: Call, args: tuple[Any, ...]) -> None:
    """What all live (else all marked) arguments of a call are, its result is too."""
    first = args[:1] if func in _LIKE else args
    given = [t for t in tensors(*first) if t.requires_grad]
    given = given or [t for t in tensors(*first) if kind_of(t)]
    if not given:
        return
    kind = kind_of(given[0])
    if kind and all(kind_of(t) == kind for t in given) and not any(map(kind_of, tensors(out))):
        mark(out, kind)


_DULL = frozenset(
    "view reshape transpose getitem setitem size to contiguous dim permute unsqueeze expand add "
    "mul len arange bool item shape float type_as is_floating_point clone detach squeeze gather "
    "eq tensor zeros ones dropout stride".split()
)


def describe(seen: Counter[str], most: int = 6) -> str:
    """The calls a message names: the telling ones first.

    >>> describe(Counter({"layer_norm": 25, "view": 90, "silu": 12}))
    'layer_norm ×25, silu ×12'
    """
    named = [(name.strip("_"), n) for name, n in seen.most_common() if name.strip("_") not in _DULL]
    return ", ".join(f"{name} ×{n}" for name, n in named[:most]) or "no torch call"
