"""What watches a traced pass: each file is one observer, to be read and tested alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from wherefrom.tracing.catalogue import TorchCall

if TYPE_CHECKING:
    from wherefrom.tracing.tracer import Tracer


class Observer:
    """Watches the calls and modules of a traced pass; a subclass overrides what it needs.

    Calls and modules are nested: a rule may make further calls that are seen before its own result
    is. What `before_call`, `after_call`, `enter_module` and `leave_module` return is what the model
    gets.
    """

    def before_call(self, tracer: Tracer, call: TorchCall) -> TorchCall:
        """The call that is made."""
        return call

    def after_call(self, tracer: Tracer, call: TorchCall, out: Any) -> Any:
        """The result that the model uses."""
        return out

    def enter_module(
        self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """The positional arguments that the module gets."""
        return args

    def leave_module(
        self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...], kwargs: Any, out: Any
    ) -> Any:
        """The module's result that the model uses."""
        return out

    def on_constant(
        self, tracer: Tracer, call: TorchCall, out: Tensor, part: Tensor | float, kind: str
    ) -> None:
        """A rule says that the constant `part` was added to get `out`."""
