"""Treats an activation module as one call, however many torch calls its forward makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from wherefrom.core.torch_internals import function_class
from wherefrom.tracing.catalogue import TorchCall, depends_on_input
from wherefrom.tracing.observers import Observer
from wherefrom.tracing.tag_propagation import propagate
from wherefrom.tracing.tags import mark, role_of

if TYPE_CHECKING:
    from wherefrom.tracing.tracer import Tracer

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
        if not _is_activation(module):
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


def _is_activation(module: nn.Module) -> bool:
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
