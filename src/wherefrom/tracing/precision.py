"""A float64 pass of a model of any precision, for rules that divide by small sums."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.tracing.catalogue import (
    Kind,
    TorchCall,
    attribute_name,
    depends_on_input,
    map_tensors,
)
from wherefrom.tracing.tags import like
from wherefrom.tracing.tracer import CallMode

_WIDE = torch.float64


class Float64(CallMode):
    """Runs all calls whose arguments depend on the input in float64, including the weights.

    Open it within a `Tracer`, so that the rules get float64 tensors. The model is not changed:
    parameters are cast call by call. Casts to a narrower type are skipped, and writes into an
    existing tensor use the type of that tensor.
    """

    def on_call(self, call: TorchCall) -> Any:
        depends = any(
            depends_on_input(t) and not isinstance(t, nn.Parameter) for t in call.tensors()
        )
        if attribute_name(call.function) is not None or not depends:
            return call.run()
        if (
            call.kind is Kind.LOOKUP or "out" in call.kwargs
        ):  # tables are identified by their address
            return call.run()
        if call.kind is Kind.CAST:
            return self._cast(call)
        name = getattr(call.function, "__name__", "")
        if call.in_place or (name.endswith("_") and not name.endswith("__")):
            return self._write(call)
        if _is_narrow(call.kwargs.get("dtype")):
            call = call.with_(dtype=_WIDE)
        return call.mapped(_widened).run()

    def _cast(self, call: TorchCall) -> Any:
        value, out = call.args[0], call.run()
        narrowed = isinstance(out, Tensor) and _is_narrow(out.dtype)
        return value if narrowed and value.dtype == _WIDE and out.device == value.device else out

    def _write(self, call: TorchCall) -> Any:
        target = call.args[0] if call.args else None
        if not isinstance(target, Tensor) or not target.is_floating_point():
            return call.run()

        def as_target(value: Tensor) -> Tensor:
            return like(value.to(target.dtype), value) if value.is_floating_point() else value

        values = (map_tensors(value, as_target) for value in call.args[1:])
        named = {key: map_tensors(value, as_target) for key, value in call.kwargs.items()}
        return TorchCall(call.function, (target, *values), named).run()


def _is_narrow(dtype: Any) -> bool:
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype != _WIDE


def _widened(value: Tensor) -> Tensor:
    constant = value.detach() if isinstance(value, nn.Parameter) else value
    return like(constant.to(_WIDE), value) if _is_narrow(value.dtype) else constant
