"""Where a ledger opens: the relevance that enters and leaves each call, compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from wherefrom.core.torch_internals import function_class, without_function_modes
from wherefrom.tracing.call_mode import without_parameters
from wherefrom.tracing.catalogue import TorchCall, attribute_name, depends_on_input, tensors_in
from wherefrom.tracing.tags import like
from wherefrom.tracing.tracer import Tracer


@dataclass
class Balance:
    """What a call lost: Σ gradient · result − Σ gradient · argument − constants."""

    where: str
    call: str
    lost: float = 0.0

    def __str__(self) -> str:
        return f"in {self.where} ({self.call})" if self.where else f"at {self.call}"

    def count(self, tensor: Tensor, value: Tensor | float, sign: int) -> None:
        """Adds ± gradient · value in the backward pass, when the tensor's gradient is known."""
        node, output = tensor.grad_fn, tensor.output_nr
        if node is None:
            return

        def add(gradients: tuple[Tensor | None, ...]) -> None:
            gradient = gradients[output]
            if gradient is not None:
                with torch.no_grad(), without_function_modes():
                    products = (gradient.conj() * value).nan_to_num(nan=0.0)
                    total = products.sum(dtype=_WIDE.get(products.dtype))
                    self.lost += sign * float(total.real)

        node.register_prehook(add)


_WIDE = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}


class ConservationTracer(Tracer):
    """A pass that also notes what each call loses, once the backward pass has been run.

    Every live argument is given to its call as an alias, so that the gradient through this call
    alone is known. It keeps all values: for one sample, and only to find where a ledger opens.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.balances: list[Balance] = []  # parts of a call before the call
        self._open: list[Balance] = []
        self._functions: dict[int, tuple[Any, Balance]] = {}  # by id of their node, kept alive

    def on_call(self, call: TorchCall) -> Any:
        if attribute_name(call.function) is not None or call.function is torch.autograd.grad:
            return super().on_call(call)
        call = without_parameters(call)
        arguments = [tensor for tensor in call.tensors() if depends_on_input(tensor)]
        self._note_functions(arguments)
        if not arguments or call.in_place:
            return super().on_call(call)
        balance = Balance(self.where, call.name)
        self._open.append(balance)
        try:
            out = super().on_call(
                call.mapped(lambda t: _alias(t, balance) if depends_on_input(t) else t)
            )
        finally:
            self._open.pop()
        results = [tensor for tensor in tensors_in(out) if depends_on_input(tensor)]
        for tensor in results:
            balance.count(tensor, tensor.detach().clone(), 1)
        if results:
            self.balances.append(balance)
        return out

    def constant(self, call: TorchCall, out: Any, part: Tensor | float, kind: str = "bias") -> Any:
        if depends_on_input(out):
            value = part.detach().to(out).clone() if isinstance(part, Tensor) else part
            for balance in self._open:
                balance.count(out, value, -1)
        return super().constant(call, out, part, kind)

    def _note_functions(self, arguments: list[Tensor]) -> None:
        """Notes results of the model's own autograd Functions, which no mode sees called."""
        for tensor in arguments:
            node: Any = tensor.grad_fn
            forward = function_class(type(node))
            ours = forward.__module__.startswith("wherefrom.")
            if issubclass(type(node), BackwardCFunction) and not ours:
                balance = Balance(self.where, f"the autograd Function {forward.__name__}")
                self._functions.setdefault(id(node), (node, balance))

    def first_open(self, allowed: float) -> Balance | None:
        """The first call that loses more than this, else the first custom autograd Function."""
        lossy = (balance for balance in self.balances if abs(balance.lost) > allowed)
        functions = (balance for _, balance in self._functions.values())
        return next(lossy, None) or next(functions, None)


def _alias(tensor: Tensor, balance: Balance) -> Tensor:
    alias = like(tensor.view_as(tensor), tensor)
    balance.count(alias, tensor.detach().clone(), -1)
    return alias
