"""Modules whose weights are packed in few bits and whose kernels no torch call is seen of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from wherefrom.core.torch_internals import own_tensor
from wherefrom.errors import GIVE_ANSWER, ModelError
from wherefrom.tracing.catalogue import TorchCall, depends_on_input
from wherefrom.tracing.tag_propagation import propagate

if TYPE_CHECKING:
    from wherefrom.tracing.tracer import Tracer


def has_packed_weight(module: nn.Module) -> bool:
    """Whether a module's weight is a matrix of integers, several to a number or not."""
    weight = own_tensor(module, "weight")
    return weight is not None and weight.ndim > 1 and not weight.is_floating_point()


def _is_for_inference(module: nn.Module) -> bool:
    """Whether weights of 4 bits lie as a kernel of bitsandbytes without a gradient wants them."""
    state = getattr(getattr(module, "weight", None), "quant_state", None)
    return bool(getattr(state, "packing_format_for_cpu", False))


def record_packed_linear(
    tracer: Tracer, module: nn.Module, args: tuple[Any, ...], out: Any
) -> None:
    """Records what a linear layer of packed weights adds unseen: its bias, and its rounding."""
    if not (args and depends_on_input(args[0])):
        return
    if _is_for_inference(module):
        raise ModelError(
            f"{tracer.where}: bitsandbytes has repacked these 4-bit weights for inference on a "
            "CPU, as it does when a model first "
            "runs without gradients; none pass through them any more. Load the model anew.",
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
