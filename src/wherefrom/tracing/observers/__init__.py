"""Observers of a traced pass: one per file, independent of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from wherefrom.tracing.catalogue import TorchCall

if TYPE_CHECKING:
    from wherefrom.tracing.tracer import Tracer


class Observer:
    """Is notified of the calls and modules of a traced pass; subclasses override what they need.

    Calls and modules nest: a rule may make further calls before it returns its result. The model
    continues with what `before_call`, `after_call`, `enter_module` and `leave_module` return.
    """

    late: ClassVar[bool] = False  # notified after the tracer's own observers

    def before_call(self, tracer: Tracer, call: TorchCall) -> TorchCall:
        """Returns the call to run."""
        return call

    def after_call(self, tracer: Tracer, call: TorchCall, out: Any) -> Any:
        """Returns the result for the model."""
        return out

    def enter_module(
        self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Returns the positional arguments for the module."""
        return args

    def leave_module(
        self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...], kwargs: Any, out: Any
    ) -> Any:
        """Returns the module's result for the model."""
        return out

    def on_constant(
        self, tracer: Tracer, call: TorchCall, out: Tensor, part: Tensor | float, kind: str
    ) -> None:
        """A rule reports the constant `part` that is included in `out`."""
