"""Products whose factors both depend on the input: attention, gates and others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import mul
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from wherefrom.core.torch_internals import without_function_modes
from wherefrom.rules.attention import (
    DotProduct,
    dot_product_of,
    explicit_attention,
    frozen_attention,
    shared_softmax,
)
from wherefrom.rules.linear import linear as linear_rule
from wherefrom.rules.offsets import (
    carried,
    carry,
    is_weight,
    offset_of,
    set_bias,
    set_offset,
    value_for,
)
from wherefrom.rules.recurrent import cell, is_padded, layer
from wherefrom.tracing.catalogue import Kind, TorchCall, depends_on_input
from wherefrom.tracing.tags import einsum_terms, like, mark, of_queries, role_of
from wherefrom.tracing.tracer import Table, Tracer

Policy = Literal["true", "frozen", "shared"]
Product = Callable[[Any, Any], Any]
_ACTIVATED = ("gate", "softmax", "exp")
FEW_KEYS = 256  # with more, keeping the weights would take too much memory


def freeze(value: Any) -> Any:
    """The value as a constant: no relevance passes through it."""
    return value.detach() if isinstance(value, Tensor) else value


class _Share(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


class _HalvedProduct(Function):
    """a · b where each factor gets half of the relevance: `share(a) * share(b)`, faster."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        zero = a.new_zeros(1)  # a single pass over memory for each factor
        left, right = (torch.addcmul(zero, gradients[0], x, value=0.5) for x in (b, a))
        return left, right


class _Parts(Function):
    """A value whose gradient passes to each of its parts."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor]:
        return None, gradients[0], gradients[0]


def shared_product(
    tracer: Tracer, call: TorchCall, run: Product, left: Tensor, right: Tensor
) -> Any:
    """The product of two factors, each of which gets half of the relevance.

    With offsets, (a + c)(b + d) = a (b/2 + d) + (a/2 + c) b + c d: only a b is shared, and each
    bracket is the mean of a factor and its offset. A weight relative to others is a constant.
    """
    if is_weight(left) != is_weight(right):
        return run(freeze(left), right) if is_weight(left) else run(left, freeze(right))
    offsets = offset_of(left), offset_of(right)
    if not any(offsets) or call.kind in (Kind.ADDED_CONTRACTION, Kind.BILINEAR):
        if call.kind is Kind.PRODUCT and left.shape == right.shape and left.dtype == right.dtype:
            return _HalvedProduct.apply(left, right)
        return run(share(left), share(right))
    factors = list(zip((left, right), offsets, strict=True))
    with torch.no_grad():
        value = run(left, right)
        a_mean, b_mean = (x / 2 if o is None else (x + o.value) / 2 for x, o in factors)
    a, b = (x if o is None else o.rest for x, o in factors)
    parts = run(a, b_mean), run(a_mean, b)
    out = _Parts.apply(value, *parts)
    if all(offsets):
        constant = run(*(value_for(call, x, o) for x, o in factors if o is not None))
        tracer.constant(call, out, constant)
        set_offset(out, constant, _Parts.apply(value, *parts))
    return out


def share(x: Tensor, factor: float = 0.5) -> Tensor:
    """The same value; only `factor` of the relevance passes to it."""
    shared: Tensor = _Share.apply(x, factor)
    return shared


@dataclass(frozen=True)
class Products:
    """How a product distributes relevance to its factors.

    `attention`: weights times values. Frozen: the weights are constants (the AH rule). Shared:
    the weights get `to_weights` of the relevance (½ in Achtibat et al. 2024), the values the rest;
    the remainder of the softmax's linearisation is a line of the ledger.
    `gate`: any other product. Frozen: a factor that is the result of an activation is a constant;
    if neither or both are, each gets half. Shared: each gets half. Both conserve.
    """

    attention: Policy = "true"
    gate: Policy = "true"
    to_weights: float = 0.5

    def table(self) -> Table:
        """The table of these rules."""
        softmax: Table = {Kind.SOFTMAX: shared_softmax} if self.attention == "shared" else {}
        return {
            **softmax,
            Kind.ATTENTION: self.dot_product,
            Kind.CONTRACTION: self.contraction,
            Kind.ADDED_CONTRACTION: self.added_contraction,
            Kind.LINEAR: self.linear,
            Kind.BILINEAR: self.bilinear,
            Kind.ADDED_PRODUCT: self.added_product,
            Kind.EINSUM: self.einsum,
            Kind.PRODUCT: self.product,
            Kind.QUOTIENT: self.quotient,
            Kind.GLU: self.gated,
            Kind.SOLVE: self.solve,
            Kind.COSINE: self.cosine,
            Kind.DISTANCE: self.distance,
            Kind.RECURRENT: self.recurrent,
            Kind.RECURRENT_CELL: self.recurrent,
        }

    def dot_product(self, tracer: Tracer, call: TorchCall) -> Any:
        """Keeps the call fused unless its maps are needed or it has few keys.

        For constant weights, the fused backward pass would waste time on gradients of queries and
        keys: with few keys the weights are saved, else recomputed in parts.
        """
        arguments = dot_product_of(call)
        query, key, value, settings = arguments
        if not any(map(depends_on_input, (query, key, value))):
            return call.run()
        tracer.touched["attention"] += 1
        if tracer.maps is not None:
            if self.attention == "shared" and depends_on_input(query) and depends_on_input(key):
                query, key = like(share(query), query), share(key)
            weights, value = explicit_attention(query, key, value, **settings)
            weights, value = self._attend(tracer, of_queries(weights, query), value)
            return weights @ value
        if self.attention == "true":
            return call.function(query, key, value, **settings)
        attend = self._frozen_fused if self.attention == "frozen" else self._shared_fused
        return attend(tracer, call, arguments)

    def _frozen_fused(self, tracer: Tracer, call: TorchCall, arguments: DotProduct) -> Any:
        """The call with constant weights: saved if there are few keys, else recomputed."""
        query, key, value = freeze(arguments.query), freeze(arguments.key), arguments.value
        settings = {name: freeze(setting) for name, setting in arguments.settings.items()}
        if key.shape[-2] <= FEW_KEYS and not value.is_cuda:
            weights, value = explicit_attention(query, key, value, **settings)
            return weights @ value
        if depends_on_input(value) and call.function is F.scaled_dot_product_attention:
            return frozen_attention(query, key, value, **settings)
        return call.function(query, key, value, **settings)

    def _shared_fused(self, tracer: Tracer, call: TorchCall, arguments: DotProduct) -> Any:
        """The fused call, its derivative shared between queries, keys and values.

        Of the output's relevance R the weights get w R, and their derivative passes w Σ g_z z to
        queries, keys and a mask that depends on the input, z = q k + m; the rest is a line of the
        ledger, with g_z z = g_q q + g_m m.
        """
        query, key, value, settings = arguments
        part = self.to_weights if depends_on_input(value) else 1.0
        each = part / 2 if depends_on_input(query) and depends_on_input(key) else part
        shared = {name: like(share(x, each), x) for name, x in (("q", query), ("k", key))}
        mask: Any = settings.get("attn_mask")
        if depends_on_input(mask):
            settings = settings | {"attn_mask": like(share(mask, part), mask)}
        out = call.function(shared["q"], shared["k"], share(value, 1 - part), **settings)
        if tracer.ledger.enabled and (
            depends_on_input(query) or depends_on_input(key) or depends_on_input(mask)
        ):
            tracer.constant(call, out, part * out.detach(), "softmax")
            passed_on = [(shared["q"], query) if depends_on_input(query) else (shared["k"], key)]
            passed_on += [(settings["attn_mask"], mask)] if mask is not None else []
            for factor, x in passed_on:
                if depends_on_input(x):
                    tracer.ledger.record(
                        factor, -part * x.detach(), tracer.where, "softmax", written=False
                    )
        return out

    def contraction(self, tracer: Tracer, call: TorchCall) -> Any:
        """Matrix products, including those of attention weights with values."""
        left, right = call["left"], call["right"]
        if depends_on_input(left) and role_of(left) == "softmax":
            tracer.touched["attention"] += 1
            left, right = self._attend(tracer, left, right)
        # values first
        elif depends_on_input(right) and role_of(right) == "softmax" and right.ndim > 1:
            tracer.touched["attention"] += 1
            weights, left = self._attend(tracer, like(right.mT, right), left)
            right = weights.mT
        else:
            return self._of_two(tracer, call, left, right)
        return call.run(left=left, right=right)

    def added_contraction(self, tracer: Tracer, call: TorchCall) -> Any:
        """β · constant + a matrix product."""
        constant, beta = call["input"], call.get("beta", 1)
        recorded = beta and not depends_on_input(constant)
        part = constant * beta if recorded else None  # before the call may write into it
        out = self.contraction(tracer, call)
        return out if part is None else tracer.constant(call, out, part)

    def linear(self, tracer: Tracer, call: TorchCall) -> Any:
        """A layer whose weight depends on the input is a product of two."""
        x, weight, bias = call["input"], call["weight"], call.get("bias")
        if not (depends_on_input(x) and depends_on_input(weight)):
            out = linear_rule(tracer, call)
            return out if self.gate == "true" else set_bias(tracer, out, bias)
        with tracer.resumed():
            out = x @ weight.mT
            return out if bias is None else out + bias

    def bilinear(self, tracer: Tracer, call: TorchCall) -> Any:
        """A product of two, plus a bias."""
        out = self._of_two(tracer, call, call["left"], call["right"])
        bias = call.get("bias")
        return out if bias is None else tracer.constant(call, out, bias)

    def added_product(self, tracer: Tracer, call: TorchCall) -> Any:
        """x + value · l · r, or x + value · l / r, from its parts."""
        x, left, right = call["input"], call["left"], call["right"]
        if not any(map(depends_on_input, (x, left, right))):
            return call.run()
        with tracer.resumed():
            part = left * right if call.name == "addcmul" else left / right
            part = part * call.get("value", 1)
            return x.add_(part) if call.in_place else x + part

    def einsum(self, tracer: Tracer, call: TorchCall) -> Any:
        """As `contraction`, with the axes of the weights read from the equation."""
        _, _, operands = einsum_terms(call)
        if len(operands) != 2:
            return call.run()
        weights = [
            i for i, x in enumerate(operands) if depends_on_input(x) and role_of(x) == "softmax"
        ]  # constant values count too: other heads of the layer may not have them
        if not all(map(depends_on_input, operands)) and not weights:
            return call.run()
        contract = partial(call.function, call.args[0])
        if len(weights) != 1:
            return self._of_two(tracer, call, operands[0], operands[1], contract)
        w, v = weights[0], 1 - weights[0]
        operands = list(take_from_einsum(tracer, call))
        operands[w], operands[v] = self._weigh(tracer, operands[w], operands[v])
        return contract(*operands)

    def product(self, tracer: Tracer, call: TorchCall) -> Any:
        """Element-wise: a gate, or a router's weight."""
        left, right = call["left"], call["right"]
        if not (depends_on_input(left) and depends_on_input(right)):
            return carry(call, call.run())
        # the gradient of the other factor needs the value that is overwritten
        first = left
        if call.in_place:
            first = mark(carried(tracer, TorchCall(torch.clone, (left,))), role_of(left))
        out = self._of_two(tracer, call, first, right, mul)
        return left.copy_(out) if call.in_place else out

    def quotient(self, tracer: Tracer, call: TorchCall) -> Any:
        """A divisor is a constant scale; an exponential over its own sum is a softmax."""
        left, right = call["left"], call["right"]
        if not depends_on_input(right):
            return carry(call, call.run())
        if role_of(left) == role_of(right) == "exp":
            out = mark(call.run(), "softmax")
            if (
                self.attention == "shared"
            ):  # numerator and divisor cancel: the whole value is constant
                tracer.constant(call, out, out, "softmax")
            return out
        if self.gate == "true":
            return call.run()
        tracer.touched["gate"] += 1
        scaled, offset = call.with_(right=freeze(right)), offset_of(left)
        if call.in_place and offset is not None and offset.rest is not None:
            divisor = freeze(right)  # before the call writes into the values of the rest
            parts = offset.value / divisor, offset.rest / divisor
            out = scaled.run()
            set_offset(out, *parts)
        else:
            out = carry(scaled, scaled.run())
        role = role_of(left)  # scaled attention weights remain attention weights
        return mark(out, role) if role else out

    def solve(self, tracer: Tracer, call: TorchCall) -> Any:
        """The matrix of a linear system is a divisor: a constant."""
        return call.run() if self.gate == "true" else call.run(matrix=freeze(call["matrix"]))

    def cosine(self, tracer: Tracer, call: TorchCall) -> Any:
        """The dot product of two vectors, each divided by its length."""
        left, right = call["left"], call["right"]
        if not (depends_on_input(left) or depends_on_input(right)):
            return call.run()
        dim, eps = call.get("dim", 1), call.get("eps", 1e-8)
        shape = torch.broadcast_shapes(left.shape, right.shape)
        with tracer.resumed():
            left, right = (
                vectors / torch.linalg.vector_norm(vectors, dim=dim, keepdim=True).clamp_min(eps)
                for vectors in (left.expand(shape), right.expand(shape))
            )
            return (left * right).sum(dim)

    def distance(self, tracer: Tracer, call: TorchCall) -> Any:
        """‖l_i − r_j‖: homogeneous in the difference, so its derivative conserves."""
        left, right = call["left"], call["right"]
        if self.gate == "true" or not (depends_on_input(left) or depends_on_input(right)):
            return call.run()
        with tracer.resumed():
            pair = left.unsqueeze(-2), right.unsqueeze(-3)
            for vectors in pair:
                if not depends_on_input(vectors):
                    mark(vectors, "prototype")
            difference = pair[0] - pair[1]
        return torch.linalg.vector_norm(difference, call.get("p", 2.0), -1)

    def recurrent(self, tracer: Tracer, call: TorchCall) -> Any:
        """GRU, LSTM and plain recurrent layers, step by step; their gates are products."""
        if self.gate == "true" or not any(map(depends_on_input, call.tensors())):
            return call.run()
        if call.kind is Kind.RECURRENT and not is_padded(call):
            return call.run()
        tracer.touched["gate"] += 1
        with tracer.resumed():
            write_out = layer if call.kind is Kind.RECURRENT else cell
            return write_out(call, self._let_through)

    def _let_through(self, gate: Tensor, signal: Tensor) -> Tensor:
        if self.gate == "frozen":
            with without_function_modes():  # a rule, not a call of the model
                gate = gate.detach()
        return gate * signal  # a shared gate: the rule of products applies

    def gated(self, tracer: Tracer, call: TorchCall) -> Any:
        """GLU from its parts: a · σ(b)."""
        x = call["input"]
        if not depends_on_input(x) or self.gate == "true":
            return call.run()
        with tracer.resumed():
            a, b = x.chunk(2, call.get("dim", -1))
            return a * b.sigmoid()

    def _attend(self, tracer: Tracer, weights: Tensor, value: Any) -> tuple[Tensor, Any]:
        if tracer.maps is not None:
            weights = tracer.maps.take(weights, value)
        return self._weigh(tracer, weights, value)

    def _weigh(self, tracer: Tracer, weights: Tensor, value: Any) -> tuple[Tensor, Any]:
        if self.attention == "frozen":
            # maps stay in the graph, without relevance: their depth in it identifies layers
            return freeze(weights) if tracer.maps is None else share(weights, 0.0), value
        if self.attention == "shared" and depends_on_input(value):
            return share(weights, self.to_weights), share(value, 1 - self.to_weights)
        return weights, value

    def _of_two(
        self, tracer: Tracer, call: TorchCall, left: Any, right: Any, run: Product | None = None
    ) -> Any:
        """A call of two factors, neither of which is attention weights; `run` computes it."""
        run = run or (lambda left, right: call.run(left=left, right=right))
        if not (depends_on_input(left) and depends_on_input(right)):
            return run(left, right)
        out = self._shared(tracer, call, left, right, run)
        return out if call.kind is Kind.PRODUCT else mark(out, "scores")

    def _shared(self, tracer: Tracer, call: TorchCall, left: Any, right: Any, run: Product) -> Any:
        if self.gate == "true":
            return run(left, right)
        tracer.touched["gate"] += 1
        constant = self._constant_factor(left, right)
        if constant is None:
            return shared_product(tracer, call, run, left, right)
        return run(freeze(left), right) if constant == 0 else run(left, freeze(right))

    def _constant_factor(self, left: Tensor, right: Tensor) -> int | None:
        """Which of two factors is a constant by rule; None if each gets half."""
        roles = [role_of(factor) for factor in (left, right)]
        # if attention is frozen, so are other products of a softmax, which is not linear
        for frozen, rule in (
            ([role == "softmax" for role in roles], self.attention),
            ([role in _ACTIVATED for role in roles], self.gate),
        ):
            if rule == "frozen" and sum(frozen) == 1:
                return frozen.index(True)
        return None


def take_from_einsum(tracer: Tracer, call: TorchCall) -> tuple[Tensor, Tensor]:
    """The operands of an einsum; attention weights among them go to `maps`."""
    terms, result, operands = einsum_terms(call)
    weights = [i for i in (0, 1) if role_of(operands[i]) == "softmax"]
    if len(weights) == 1:
        tracer.touched["attention"] += 1
        w = weights[0]
        order = _map_axes(terms[w], terms[1 - w], result)
        if tracer.maps is not None and order is not None:
            permuted = like(operands[w].permute(order), operands[w])
            taken = tracer.maps.take(permuted, operands[1 - w])
            operands[w] = taken.permute([order.index(i) for i in range(len(order))])
    return operands[0], operands[1]


def _map_axes(weights: str, values: str, result: str | None) -> list[int] | None:
    """The order that makes the weights of an einsum (batch, heads, query, key).

    >>> _map_axes("ijbn", "jbnd", "ibnd")
    [2, 3, 0, 1]
    """
    if result is None or "." in weights + values + result:
        return None
    key = [axis for axis in weights if axis in values and axis not in result]
    query = [axis for axis in weights if axis not in values]
    both = [axis for axis in weights if axis in values and axis in result]
    if len(key) != 1 or len(query) != 1 or len(both) > 2:
        return None
    return [weights.index(axis) for axis in (*both, *query, *key)]
