"""The mode that sees every torch call, with its arguments by name; what it does is up to others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from wherefrom.core.scope import Scope
from wherefrom.tracing.catalogue import CATALOGUE, LAYOUT, Function, Kind, TorchCall, map_tensors

# half of all calls read these, which are no tensors and need no rule
_PLAIN: frozenset[Any] = frozenset(
    getattr(Tensor, name).__get__
    for name in (
        "device dtype grad_fn is_cuda is_sparse itemsize layout ndim requires_grad shape".split()
    )
) | {Tensor.dim, Tensor.is_floating_point, Tensor.size, Tensor.untyped_storage}


class CallMode(TorchFunctionMode):
    """A torch function mode whose subclasses see each call as a `TorchCall`."""

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
        """Makes the call, or something in its place, and returns the result."""
        return call.run()

    def resumed(self) -> Scope:
        """Lets the parts of a call that is written out be seen by the mode too."""
        return Scope(mode=self)

    def opened(self) -> Scope:
        """The scope in which the mode sees all calls."""
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
        del self._scope  # its hooks have the mode: such a ring would outlive the pass


def without_parameters(call: TorchCall) -> TorchCall:
    """The call with parameters as constants: only what depends on the input needs a gradient."""
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
    if kind in _NO_PARAMETERS:  # most are; to ask whether they are parameters takes longer
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
    """The calls a message names: those that say something about the model first.

    >>> describe(Counter({"layer_norm": 25, "view": 90, "silu": 12}))
    'layer_norm ×25, silu ×12'
    """
    dull = _PLUMBING_NAMES | {e.name for e in CATALOGUE.values() if e.kind in _PLUMBING}
    named = [(name.strip("_"), n) for name, n in seen.most_common() if name.strip("_") not in dull]
    return ", ".join(f"{name} ×{n}" for name, n in named[:most]) or "no torch call"
