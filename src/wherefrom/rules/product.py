"""Products in which both factors depend on the input: attention, gates, and the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from wherefrom.rules import affine
from wherefrom.rules.attention import dot_product_arguments, explicit_attention
from wherefrom.rules.calls import Call, calls, in_place, kind_of, live, mark, set_stream, stream_of
from wherefrom.rules.mode import LocallyLinear, Table
from wherefrom.rules.moves import freeze, share

Policy = Literal["true", "frozen", "shared"]
_ACTIVATED = ("gate", "softmax", "exp")
_CONTRACTIONS = ("matmul", "bmm", "mm", "mv", "tensordot", "inner", "outer", "dot")
_ADDED = ("addmm", "baddbmm", "addmv")  # with a first argument that is added
_FEW_KEYS = 256  # beyond, memory would grow with the square of the length


@dataclass(frozen=True)
class Products:
    """What a product does with relevance.

    `attention`: weights times values. Frozen: the weights are constants (the AH rule). Shared:
    half of the relevance goes to the weights (Achtibat et al. 2024).
    `gate`: any other product of two. Frozen: the factor that went through an activation is a
    constant; where neither or both did, each gets half. Shared: each gets half. Both conserve.
    """

    attention: Policy = "true"
    gate: Policy = "true"

    def table(self) -> Table:
        """The rules as a table."""
        return {
            **dict.fromkeys(calls("scaled_dot_product_attention"), self.dot_product),
            **dict.fromkeys(calls(*_CONTRACTIONS, *_ADDED), self.contraction),
            **dict.fromkeys(calls("linear"), self.linear),
            **dict.fromkeys(calls("bilinear"), self.bilinear),
            **dict.fromkeys(calls("addcmul", "addcdiv"), self.added),
            **dict.fromkeys(calls("einsum"), self.einsum),
            **dict.fromkeys(calls("mul", "multiply"), self.times),
            **dict.fromkeys(calls("div", "divide", "true_divide", "truediv"), self.quotient),
            **dict.fromkeys(calls("glu"), self.gated),
            **dict.fromkeys(calls("solve_triangular"), self.solve),
        }

    def dot_product(
        self, view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The fused call stays fused, unless the maps are asked for, or few keys make it a waste.

        On a CPU the fused backward pass works out what is asked of queries and keys as well. Where
        these are constants, the weights once and one product with the values take half the time.
        """
        query, key, value, settings = dot_product_arguments(args, kwargs)
        if not any(map(live, (query, key, value))):
            return func(*args, **kwargs)
        view.touched["attention"] += 1
        if view.maps is not None:
            if self.attention == "shared":
                query, key = share(query), share(key)
            weights, value = explicit_attention(query, key, value, **settings)
            weights, value = self._attend(view, set_stream(weights, stream_of(query) or 0), value)
            return weights @ value
        if self.attention == "frozen":
            query, key = freeze(query), freeze(key)
            settings["attn_mask"] = freeze(settings.get("attn_mask"))
            if key.shape[-2] <= _FEW_KEYS and not value.is_cuda:
                weights, value = explicit_attention(query, key, value, **settings)
                return weights @ value
        elif self.attention == "shared":
            query, key, value = share(query, 0.25), share(key, 0.25), share(value)
        return func(query, key, value, **settings)

    def contraction(
        self, view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Matrix products; the first operand of attention's is the weights."""
        given = [*args, *kwargs.values()]
        first = int(func.__name__.rstrip("_") in _ADDED)
        a, b = given[first], given[first + 1]
        if live(a) and kind_of(a) == "softmax":
            view.touched["attention"] += 1
            a, b = self._attend(view, a, b)
        elif live(b) and kind_of(b) == "softmax" and b.ndim > 1:  # values first
            view.touched["attention"] += 1
            turned = set_stream(b.mT, stream_of(b) or 0)
            weights, a = self._attend(view, turned, a)
            b = weights.mT
        else:
            a, b = self._pair(view, a, b)
        scales = {key: value for key, value in kwargs.items() if key in ("alpha", "beta", "dims")}
        rest = args[first + 2 :]
        if first == 0:
            return func(a, b, *rest, **scales)
        constant, beta = given[0], kwargs.get("beta", 1)
        booked = beta and not live(constant)
        part = constant * beta if booked else None  # before the call may write into it
        out = func(constant, a, b, *rest, **scales)
        return out if part is None else view.constant(out, part)

    def linear(
        self, view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A layer whose weight depends on the input is a product of two."""
        names = ("input", "weight", "bias")
        given = dict(zip(names, args, strict=False)) | kwargs
        if not (live(given["input"]) and live(given["weight"])):
            return affine.linear(view, func, args, kwargs)
        with view.resumed():
            out = given["input"] @ given["weight"].mT
            return out if given.get("bias") is None else out + given["bias"]

    def bilinear(
        self, view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A product of two, and a bias."""
        names = ("input1", "input2", "weight", "bias")
        given = dict(zip(names, args, strict=False)) | kwargs
        a, b = self._pair(view, given["input1"], given["input2"])
        out, bias = func(a, b, given["weight"], given.get("bias")), given.get("bias")
        return out if bias is None else view.constant(out, bias)

    def added(
        self, view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """x + value · a · b, or a / b, by its parts."""
        given = dict(zip(("input", "tensor1", "tensor2"), args, strict=False)) | kwargs
        x, a, b = given["input"], given["tensor1"], given["tensor2"]
        if not any(map(live, (x, a, b))):
            return func(*args, **kwargs)
        with view.resumed():
            part = a * b if "mul" in func.__name__ else a / b
            part = part * given.get("value", 1)
            return x.add_(part) if in_place(func) else x + part

    def einsum(
        self, view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """As `contraction`, with the axes of the weights read from the equation."""
        equation, operands = args[0], list(args[1:])
        if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            operands = list(operands[0])
        if not isinstance(equation, str) or len(operands) != 2 or not all(map(live, operands)):
            return func(*args, **kwargs)
        marked = [i for i, operand in enumerate(operands) if kind_of(operand) == "softmax"]
        if len(marked) == 1:
            w, v = marked[0], 1 - marked[0]
            operands = list(take_from_einsum(view, equation, *operands))
            operands[w], operands[v] = self._weigh(operands[w], operands[v])
        else:
            operands = list(self._pair(view, *operands))
        return func(equation, *operands)

    def times(
        self, view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Element by element: a gate, or a router's weight."""
        a, b = (*args, *kwargs.values())[:2]
        if not (live(a) and live(b)):
            return func(*args, **kwargs)
        # what is written over is still needed for the other factor's gradient
        first = mark(a.clone(), kind_of(a)) if in_place(func) else a
        left, right = self._pair(view, first, b)
        return a.copy_(left * right) if in_place(func) else left * right

    def quotient(
        self, view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A divisor is a scale, so a constant; an exponential over its own sum is a softmax."""
        if len(args) < 2 or not live(args[1]):
            return func(*args, **kwargs)
        if kind_of(args[0]) == kind_of(args[1]) == "exp":
            return mark(func(*args, **kwargs), "softmax")
        if self.gate == "true":
            return func(*args, **kwargs)
        view.touched["gate"] += 1
        out = func(args[0], freeze(args[1]), *args[2:], **kwargs)
        kind = kind_of(args[0])  # scaled weights are weights still
        return mark(out, kind) if kind else out

    def solve(
        self, view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The matrix of a linear system is a divisor, so a constant."""
        if self.gate == "true":
            return func(*args, **kwargs)
        return func(freeze(args[0]), *args[1:], **kwargs)

    def gated(
        self, view: LocallyLinear, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """GLU by its parts: a · σ(b)."""
        x = args[0] if args else kwargs["input"]
        if not live(x) or self.gate == "true":
            return func(*args, **kwargs)
        with view.resumed():
            a, b = x.chunk(2, kwargs.get("dim", args[1] if len(args) > 1 else -1))
            return a * b.sigmoid()

    def _attend(self, view: LocallyLinear, weights: Tensor, value: Any) -> tuple[Tensor, Any]:
        if view.maps is not None:
            weights = view.maps.take(weights, value)
        return self._weigh(weights, value)

    def _weigh(self, weights: Tensor, value: Any) -> tuple[Tensor, Any]:
        if self.attention == "frozen":
            return freeze(weights), value
        if self.attention == "shared" and live(value):
            return share(weights), share(value)
        return weights, value

    def _pair(self, view: LocallyLinear, a: Any, b: Any) -> tuple[Any, Any]:
        if self.gate == "true" or not (live(a) and live(b)):
            return a, b
        view.touched["gate"] += 1
        activated = [kind_of(x) in _ACTIVATED for x in (a, b)]
        # a softmax is not linear: where its products with values are frozen, so are its others
        weights = [kind_of(x) == "softmax" for x in (a, b)]
        for chosen, rule in ((weights, self.attention), (activated, self.gate)):
            if rule == "frozen" and sum(chosen) == 1:
                return (freeze(a), b) if chosen[0] else (a, freeze(b))
        return share(a), share(b)


def take_from_einsum(
    view: LocallyLinear, equation: str, a: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    """The operands of an einsum, of which one may be attention weights that the maps take."""
    operands = [a, b]
    marked = [i for i in (0, 1) if kind_of(operands[i]) == "softmax"]
    if len(marked) == 1:
        view.touched["attention"] += 1
        w = marked[0]
        order = _map_axes(equation.replace(" ", ""), w)
        if view.maps is not None and order is not None:
            turned = _like(operands[w], operands[w].permute(order))
            taken = view.maps.take(turned, operands[1 - w])
            operands[w] = taken.permute([order.index(i) for i in range(len(order))])
    return operands[0], operands[1]


def _like(weights: Tensor, permuted: Tensor) -> Tensor:
    found: Tensor = set_stream(permuted, stream_of(weights) or 0)
    return found


def _map_axes(equation: str, weights: int) -> list[int] | None:
    """The order that makes the weights of an einsum (batch, heads, query, key).

    >>> _map_axes("ijbn,jbnd->ibnd", 0)
    [2, 3, 0, 1]
    """
    left, _, out = equation.partition("->")
    sides = left.split(",")
    own, other = sides[weights], sides[1 - weights]
    if not out or "." in equation:
        return None
    key = [axis for axis in own if axis in other and axis not in out]
    query = [axis for axis in own if axis not in other]
    both = [axis for axis in own if axis in other and axis in out]
    if len(key) != 1 or len(query) != 1 or len(both) > 2:
        return None
    return [own.index(axis) for axis in (*both, *query, *key)]
