"""Finds the call that loses relevance: compares what enters and what leaves each call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from wherefrom.core.torch_internals import function_class, without_function_modes
from wherefrom.tracing.catalogue import TorchCall, attribute_name, depends_on_input, tensors_in
from wherefrom.tracing.observers import Observer
from wherefrom.tracing.tags import like

if TYPE_CHECKING:
    from wherefrom.tracing.tracer import Tracer


@dataclass
class Balance:
    """What a call loses: Σ gradient · result − Σ gradient · argument − constants."""

    where: str
    call: str
    lost: float = 0.0

    def __str__(self) -> str:
        return f"in {self.where} ({self.call})" if self.where else f"at {self.call}"

    def count(self, tensor: Tensor, value: Tensor | float, sign: int) -> None:
        """Adds ± gradient · value when the backward pass computes the tensor's gradient."""
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


class Balances(Observer):
    """Computes what each call loses; complete once the backward pass has run.

    Each call gets aliases of its arguments, to separate the gradient through this call from that
    through other uses. This keeps all values in memory, so it runs for one sample, and only when a
    ledger does not add up.
    """

    def __init__(self) -> None:
        self.balances: list[Balance] = []  # the parts of a call come before it
        self._open: list[Balance | None] = []  # of the calls that are running
        self._functions: dict[
            int, tuple[Any, Balance]
        ] = {}  # by id of their node, which is kept alive

    def before_call(self, tracer: Tracer, call: TorchCall) -> TorchCall:
        arguments = [tensor for tensor in call.tensors() if depends_on_input(tensor)]
        self._note_functions(tracer, arguments)
        skipped = attribute_name(call.function) is not None or call.in_place
        if not arguments or skipped or call.function is torch.autograd.grad:
            self._open.append(None)
            return call
        balance = Balance(tracer.where, call.name)
        self._open.append(balance)
        with without_function_modes():
            return call.mapped(lambda t: _alias(t, balance) if depends_on_input(t) else t)

    def after_call(self, tracer: Tracer, call: TorchCall, out: Any) -> Any:
        balance = self._open.pop()
        results = [tensor for tensor in tensors_in(out) if depends_on_input(tensor)]
        if balance is not None and results:
            with without_function_modes():
                for tensor in results:
                    balance.count(tensor, tensor.detach().clone(), 1)
            self.balances.append(balance)
        return out

    def on_constant(
        self, tracer: Tracer, call: TorchCall, out: Tensor, part: Tensor | float, kind: str
    ) -> None:
        with without_function_modes():
            value = part.detach().to(out).clone() if isinstance(part, Tensor) else part
            for balance in self._open:
                if balance is not None:
                    balance.count(out, value, -1)

    def _note_functions(self, tracer: Tracer, arguments: list[Tensor]) -> None:
        """Records results of custom autograd Functions, whose calls reach no function mode."""
        for tensor in arguments:
            node: Any = tensor.grad_fn
            forward = function_class(type(node))
            ours = forward.__module__.startswith("wherefrom.")
            if issubclass(type(node), BackwardCFunction) and not ours:
                balance = Balance(tracer.where, f"the autograd Function {forward.__name__}")
                self._functions.setdefault(id(node), (node, balance))

    def first_open(self, allowed: float) -> Balance | None:
        """The first call that loses more than allowed, else the first custom autograd Function."""
        lossy = (balance for balance in self.balances if abs(balance.lost) > allowed)
        functions = (balance for _, balance in self._functions.values())
        return next(lossy, None) or next(functions, None)


def _alias(tensor: Tensor, balance: Balance) -> Tensor:
    alias = like(tensor.view_as(tensor), tensor)
    balance.count(alias, tensor.detach().clone(), -1)
    return alias
