"""A torch function mode whose subclasses handle every call with its arguments by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from wherefrom.core.scope import Scope
from wherefrom.tracing.catalogue import CATALOGUE, LAYOUT, Function, Kind, TorchCall, map_tensors

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
