"""Which rows of a model's weights meet which columns of others, seen while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from wherefrom.rules.attention import decomposed, dot_product_arguments
from wherefrom.rules.calls import Call, calls, tensors
from wherefrom.rules.norm import layer_norm_arguments

_LINEAR = frozenset(calls("linear"))
_ADDMM = frozenset(calls("addmm"))
_MATMUL = frozenset(calls("matmul", "bmm", "mm"))
_FUSED = frozenset(calls("scaled_dot_product_attention"))
_WHOLE = frozenset(calls("multi_head_attention_forward"))
_LAYER_NORM = frozenset(calls("layer_norm"))
_NORM = _LAYER_NORM | frozenset(calls("rms_norm"))
_SAME = frozenset(
    calls("to", "float", "double", "type", "type_as", "contiguous", "clone", "detach", "dropout")
)
_LAYOUT = frozenset(
    calls(
        "view", "reshape", "transpose", "permute", "chunk", "split", "unbind", "getitem", "t",
        "unsqueeze", "squeeze", "expand", "flatten", "unflatten", "narrow", "select", "swapaxes",
        "movedim", "repeat_interleave", "repeat", "cat", "concat", "stack", "index_select",
    )
)  # fmt: skip
_SCALING = frozenset(calls("mul", "multiply", "div", "divide", "true_divide", "truediv"))
_SUMS = frozenset(calls("add", "sub", "neg"))
_BENDING = frozenset(
    calls(
        "relu", "relu6", "gelu", "silu", "tanh", "sigmoid", "elu", "selu", "celu", "leaky_relu",
        "softplus", "mish", "hardswish", "hardtanh", "hardsigmoid", "pow", "exp", "erf", "square",
        "abs", "clamp", "sqrt", "logsigmoid",
    )
)  # fmt: skip
_VIEWS = ("T", "mT", "H", "data")


@dataclass(frozen=True)
class Weight:
    """The rows (outputs) or columns (inputs) of a parameter, with the bias that goes with them."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    out: int  # the axis of its outputs
    start: int = 0  # the first row, where several layers share one parameter

    def axis(self, outputs: bool) -> int:
        """The axis of its outputs or of its inputs."""
        return self.out if outputs else 1 - self.out

    def size(self, outputs: bool) -> int:
        """The number of its outputs or of its inputs."""
        return self.weight.shape[self.axis(outputs)]


@dataclass(frozen=True)
class Heads:
    """The features that meet in one attention call, (heads, channels) each."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor


@dataclass(eq=False)
class Trace(TorchFunctionMode):
    """Follows every output feature of a weight to where it is used, for a batch of one.

    Beside each tensor runs a tensor of its shape with the number of the feature that each entry
    is, carried by the model's own calls. Features that meet entry by entry are tied. A feature
    that meets anything not understood is spoiled; one that went through a bend is bent.
    """

    owners: dict[int, tuple[Weight, str, int]] = field(default_factory=dict)  # feature: its row
    consumers: dict[tuple[int, int], int] = field(default_factory=dict)  # column: its feature
    weights: dict[int, Weight] = field(default_factory=dict)
    heads: list[Heads] = field(default_factory=list)
    of_head: dict[int, set[tuple[int, int, str]]] = field(default_factory=dict)
    spoiled: set[int] = field(default_factory=set)
    bent: set[int] = field(default_factory=set)
    _first: dict[tuple[int, int], int] = field(default_factory=dict)
    _parents: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def root(self, feature: int) -> int:
        """The feature that stands for all that it is tied to."""
        while (above := self._parents.get(feature, feature)) != feature:
            self._parents[feature] = self._parents.get(above, above)
            feature = above
        return feature

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Lets the parts of a call that is spelled out be seen too."""
        super().__enter__()
        try:
            yield
        finally:
            super().__exit__(None, None, None)

    def __torch_function__(
        self,
        func: Call,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _WHOLE:
            return decomposed(self, func, args, kwargs)  # type: ignore[arg-type]
        out = func(*args, **kwargs)
        if func in _LAYOUT:
            _slice_weights(func, args, out)
        with torch.no_grad():
            self._seen(func, out, args, kwargs)
        return out

    def _seen(self, func: Call, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if getattr(func, "__name__", "") == "__get__":
            if getattr(func.__self__, "__name__", "") in _VIEWS:  # type: ignore[attr-defined]
                self._laid_out(func, out, args, kwargs)
            return
        if next(tensors(out), None) is None:  # a size, a truth value
            return
        if func in _LINEAR or func in _ADDMM or (func in _MATMUL and _weight(args[-1])):
            self._linear(func, out, args, kwargs)
        elif func in _FUSED:
            self._fused(out, args, kwargs)
        elif func in _MATMUL:
            self._product(out, args[0], args[1])
        elif func in _NORM:
            self._norm(func, out, args, kwargs)
        elif func in _SAME:
            _follow(out, _rows(args[0] if args else kwargs["input"]))
            _carry(out, args)
        elif func in _LAYOUT:
            self._laid_out(func, out, args, kwargs)
        elif func in _SCALING or func in _SUMS or func in _BENDING:
            self._by_entry(func, out, (*args, *kwargs.values()))
        else:
            self._spoil(*tensors(*args, *kwargs.values()))
            _carry(out, args)

    # What each kind of call does to features.

    def _linear(self, func: Call, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if func in _ADDMM:
            bias, x, weight, axis = args[0], args[1], args[2], 1
        elif func in _MATMUL:
            bias, x, weight, axis = None, args[0], args[1], 1
        else:
            given = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
            bias, x, weight, axis = given.get("bias"), given["input"], given["weight"], 0
        owner, biased = _weight(weight), _weight(bias)
        if owner is None or (bias is not None and biased is None) or weight.ndim != 2:
            self._spoil(x)
            return
        found = Weight(owner[0], biased[0] if biased else None, axis, owner[1])
        self._read(x, found)
        self._make(out, found, "linear", weight.shape[axis])

    def _read(self, x: Tensor, by: Weight) -> None:
        """Records which feature each column of a weight is multiplied with."""
        rows = _rows(x)
        if rows is None:
            return
        flat = rows.reshape(-1, rows.shape[-1])
        steady = (flat == flat[0]).all(0)
        self._spoil_rows(flat[:, ~steady])
        self.weights[id(by.weight)] = by
        for column in (steady & (flat[0] >= 0)).nonzero().flatten().tolist():
            feature = int(flat[0, column])
            known = self.consumers.setdefault((id(by.weight), column), feature)
            self._tie(known, feature)

    def _make(self, out: Tensor, by: Weight, kind: str, count: int) -> None:
        key = (id(by.weight), by.start)
        if key not in self._first:
            self._first[key] = len(self.owners)
            for row in range(count):
                self.owners[self._first[key] + row] = (by, kind, by.start + row)
        numbers = self._first[key] + torch.arange(count, device=out.device)
        _follow(out, numbers.expand(out.shape))

    def _norm(self, func: Call, out: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if func in _LAYER_NORM:
            x, _, weight, bias, _ = layer_norm_arguments(*args, **kwargs)
        else:
            given = dict(zip(("input", "normalized_shape", "weight"), args, strict=False)) | kwargs
            x, weight, bias = given["input"], given.get("weight"), None
        self._spoil(x)
        if not isinstance(weight, nn.Parameter) or weight.ndim != 1:
            return
        if bias is None or isinstance(bias, nn.Parameter):
            self._make(out, Weight(weight, bias, 0), "scale", len(weight))

    def _fused(self, out: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        query, key, value, _ = dot_product_arguments(args, kwargs)
        q, k, v = (_by_head(_rows(t), t) for t in (query, key, value))
        if q is not None and k is not None and len(k) != len(q):
            k = k.repeat_interleave(len(q) // len(k), 0)
        if v is not None and len(v) != query.shape[-3]:
            v = v.repeat_interleave(query.shape[-3] // len(v), 0)
        for given, ids in ((query, q), (key, k), (value, v)):
            if ids is None:
                self._spoil(given)
        self._attend(out, self._meet(q, k, query, key), v)

    def _product(self, out: Tensor, a: Tensor, b: Tensor) -> None:
        """Queries with keys, or weights with values; anything else is not understood."""
        scores = getattr(a, "wherefrom_scores", (None, None))
        first, second = _rows(a), _rows(b)
        if first is not None and second is not None:
            q, k = _by_head(first, a), _by_head(second.mT, b.mT)
            out.wherefrom_scores = self._meet(q, k, a, b)  # type: ignore[attr-defined]
        elif first is None and (v := _by_head(second, b)) is not None:
            self._attend(out, scores, v)
        else:
            self._spoil(a, b)

    def _meet(
        self, q: Tensor | None, k: Tensor | None, query: Tensor, key: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        if q is None or k is None or q.shape != k.shape:
            self._spoil(query, key)
            return None, None
        self._tie_rows(q, k)
        return q, k

    def _attend(
        self, out: Tensor, met: tuple[Tensor | None, Tensor | None], v: Tensor | None
    ) -> None:
        if v is None:
            return
        number = len(self.heads)
        self.heads.append(Heads(*met, v))
        for ids, kind in ((met[0], "qk"), (met[1], "qk"), (v, "v")):
            for head, own in enumerate([] if ids is None else ids.tolist()):
                for feature in own:
                    self.of_head.setdefault(feature, set()).add((number, head, kind))
        shape = (*out.shape[:-3], len(v), 1, v.shape[-1]) if out.ndim > 2 else (1, v.shape[-1])
        _follow(out, v.reshape(shape).expand(out.shape))

    def _laid_out(
        self, func: Call, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """The numbers of the features are laid out anew as the features are."""
        if not any(_rows(t) is not None for t in tensors(*args)):
            _carry(out, args)
            return

        def numbers(value: Any) -> Any:
            if isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value):
                return type(value)(numbers(v) for v in value)
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            rows = _rows(value)
            if rows is None:
                return torch.full(value.shape, -1, device=value.device)
            return rows.contiguous()

        try:
            moved = func(*(numbers(value) for value in args), **kwargs)
        except (RuntimeError, TypeError):  # not every call takes integers
            self._spoil(*tensors(*args))
            return
        for one, rows in zip(tensors(out), tensors(moved), strict=True):
            _follow(one, rows)

    def _by_entry(self, func: Call, out: Tensor, args: tuple[Any, ...]) -> None:
        given = list(tensors(*args))
        known = [t for t in given if _rows(t) is not None]
        if not known:
            scaled = [t for t in given if isinstance(t, nn.Parameter) and t.ndim == 1]
            if func in calls("mul") and len(scaled) == 1 and out.shape[-1] == len(scaled[0]):
                self._make(out, Weight(scaled[0], None, 0), "scale", len(scaled[0]))
            _carry(out, args)
            return
        if any(t.ndim and t.shape[-1] > 1 for t in given if _rows(t) is None):
            self._spoil(*known)
            return
        spread = [_rows(t).expand(out.shape) for t in known]  # type: ignore[union-attr]
        for other in spread[1:]:
            self._tie_rows(spread[0], other)
        if func in _BENDING or (func in _SCALING and len(known) > 1):
            self.bent.update(feature for t in spread for feature in t.unique().tolist())
        if func in _SUMS and len(known) < len(args):  # a constant is added: no scale passes
            self.bent.update(spread[0].unique().tolist())
        _follow(out, spread[0])

    # What is known of features.

    def _tie(self, a: int, b: int) -> None:
        if min(a, b) < 0:
            self.spoiled.add(max(a, b))
        else:
            self._parents[self.root(a)] = self.root(b)

    def _tie_rows(self, a: Tensor, b: Tensor) -> None:
        for one, other in torch.stack([a.flatten(), b.flatten()]).unique(dim=1).T.tolist():
            self._tie(one, other)

    def _spoil(self, *given: Tensor) -> None:
        for tensor in given:
            rows = _rows(tensor)
            if rows is not None:
                self._spoil_rows(rows)

    def _spoil_rows(self, rows: Tensor) -> None:
        self.spoiled.update(rows.unique().tolist())


def _rows(value: Any) -> Tensor | None:
    """The numbers of the features that run beside a tensor."""
    return getattr(value, "wherefrom_rows", None)


def _follow(out: Any, rows: Tensor | None) -> None:
    if isinstance(out, Tensor) and rows is not None:
        out.wherefrom_rows = rows  # type: ignore[attr-defined]


def _carry(out: Any, args: Sequence[Any]) -> None:
    """Scaled, masked and normalised scores are scores still."""
    scores = next((s for t in tensors(*args) if (s := getattr(t, "wherefrom_scores", None))), None)
    if isinstance(out, Tensor) and scores is not None:
        out.wherefrom_scores = scores  # type: ignore[attr-defined]


def _weight(value: Any) -> tuple[nn.Parameter, int] | None:
    """The parameter that a tensor is, or is some rows of, and the first of these."""
    if isinstance(value, nn.Parameter):
        return value, 0
    return getattr(value, "wherefrom_slice", None)


def _slice_weights(func: Callable[..., Any], args: tuple[Any, ...], out: Any) -> None:
    """Pieces of a parameter along its first axis remember where they come from."""
    if func in calls("chunk", "split") and isinstance(args[0], nn.Parameter):
        start = 0
        for piece in out:
            if piece.shape[1:] == args[0].shape[1:]:
                piece.wherefrom_slice = (args[0], start)
            start += piece.shape[0]


def _by_head(rows: Tensor | None, given: Tensor) -> Tensor | None:
    """The features of each head, (heads, channels), if they are equal at every place."""
    if rows is None or given.ndim < 2:
        return None
    heads = rows.reshape(-1, *rows.shape[-2:])  # a batch of one
    if bool((heads != heads[:, :1]).any()) or bool((heads < 0).any()):
        return None
    return heads[:, 0]
