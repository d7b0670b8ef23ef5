"""Linear layers with packed weights whose kernels make no torch call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from wherefrom.core.torch_internals import own_tensor, submodules
from wherefrom.errors import GIVE_ANSWER, ModelError
from wherefrom.tracing.catalogue import TorchCall, depends_on_input
from wherefrom.tracing.observers import Observer
from wherefrom.tracing.tag_propagation import propagate

if TYPE_CHECKING:
    from wherefrom.tracing.tracer import Tracer


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
