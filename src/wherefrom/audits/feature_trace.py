"""Traces the output features of weights through one run to the weights that read them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.rules.attention import decomposed, dot_product_of
from wherefrom.tracing.catalogue import (
    ELEMENTWISE,
    LAYOUT,
    Kind,
    TorchCall,
    attribute_name,
    tensors_in,
)
from wherefrom.tracing.tracer import CallMode

_VIEWS = ("T", "mT", "H", "data")
_BY_ENTRY = ELEMENTWISE | {Kind.PRODUCT, Kind.QUOTIENT, Kind.SUM, Kind.NEGATION}


@dataclass(frozen=True)
class Weight:
    """A parameter with output and input features, and its bias."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    out: int  # axis of the outputs
    start: int = 0  # first row, if several layers share the parameter

    def axis(self, outputs: bool) -> int:
        """The axis of the outputs, or of the inputs."""
        return self.out if outputs else 1 - self.out

    def size(self, outputs: bool) -> int:
        """The number of outputs, or of inputs."""
        return self.weight.shape[self.axis(outputs)]


@dataclass(frozen=True)
class Heads:
    """The features of one attention call, (heads, channels) each."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor


@dataclass(frozen=True)
class FeatureTag:
    """The feature id of each entry of a tensor, and the origin of attention scores."""

    features: Tensor | None = None  # of the tensor's shape; −1: no feature
    scores: tuple[Tensor | None, Tensor | None] | None = None  # queries and keys
    slice: tuple[nn.Parameter, int] | None = None  # a parameter, and the first of its rows


_NO_TAG = FeatureTag()


@dataclass(eq=False)
class Trace(CallMode):
    """Traces every output feature of a weight to its readers, for a batch of one.

    Each tensor is tagged with a tensor of feature ids, which layout calls of the model move along.
    Features combined elementwise are tied. A feature in an unknown call is spoiled; one that went
    through a nonlinear function is bent.
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
        """The representative of all features tied to this one."""
        while (above := self._parents.get(feature, feature)) != feature:
            self._parents[feature] = self._parents.get(above, above)
            feature = above
        return feature

    def on_call(self, call: TorchCall) -> Any:
        if call.kind is Kind.MULTI_HEAD:
            return decomposed(self, call)
        out = call.run()
        with torch.no_grad():
            self._trace(call, out)
        return out

    def _trace(self, call: TorchCall, out: Any) -> None:
        attribute, kind = attribute_name(call.function), call.kind
        if attribute is not None:
            if attribute in _VIEWS:
                self._laid_out(call, out)
            return
        if next(tensors_in(out), None) is None:  # a size or a truth value
            return
        if kind is Kind.SPLIT:
            _slice_weights(call, out)
        plain = kind is Kind.CONTRACTION and call.name in ("matmul", "bmm", "mm")
        if (
            kind is Kind.LINEAR
            or (kind is Kind.ADDED_CONTRACTION and call.name == "addmm")
            or (plain and _weight(call["right"]))
        ):
            self._linear(call, out)
        elif kind is Kind.ATTENTION:
            self._fused(call, out)
        elif plain:
            self._product(out, call["left"], call["right"])
        elif kind is Kind.LAYER_NORM or kind is Kind.RMS_NORM:
            self._norm(call, out)
        elif kind is Kind.CAST:
            _follow(out, _features(call["input"]))
            _carry(out, call)
        elif kind in LAYOUT:
            self._laid_out(call, out)
        elif kind in _BY_ENTRY:
            self._by_entry(call, out)
        else:
            self._spoil(*call.tensors())
            _carry(out, call)

    # The effect of each kind of call on features

    def _linear(self, call: TorchCall, out: Any) -> None:
        if call.kind is Kind.LINEAR:
            bias, x, weight, axis = call.get("bias"), call["input"], call["weight"], 0
        else:
            bias, x, weight, axis = call.get("input"), call["left"], call["right"], 1
        owner, biased = _weight(weight), _weight(bias)
        if owner is None or (bias is not None and biased is None) or weight.ndim != 2:
            self._spoil(x)
            return
        rows = Weight(owner[0], biased[0] if biased else None, axis, owner[1])
        self._read(x, rows)
        self._make(out, rows, "linear", weight.shape[axis])

    def _read(self, x: Tensor, by: Weight) -> None:
        """Records which feature each column of a weight reads."""
        rows = _features(x)
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

    def _norm(self, call: TorchCall, out: Tensor) -> None:
        weight, bias = call.get("weight"), call.get("bias")
        self._spoil(call["input"])
        if not isinstance(weight, nn.Parameter) or weight.ndim != 1:
            return
        if bias is None or isinstance(bias, nn.Parameter):
            self._make(out, Weight(weight, bias, 0), "scale", len(weight))

    def _fused(self, call: TorchCall, out: Tensor) -> None:
        query, key, value, _ = dot_product_of(call)
        q, k, v = (_by_head(_features(t), t) for t in (query, key, value))
        if q is not None and k is not None and len(k) != len(q):
            k = k.repeat_interleave(len(q) // len(k), 0)
        if v is not None and len(v) != query.shape[-3]:
            v = v.repeat_interleave(query.shape[-3] // len(v), 0)
        for tensor, features in ((query, q), (key, k), (value, v)):
            if features is None:
                self._spoil(tensor)
        self._attend(out, self._meet(q, k, query, key), v)

    def _product(self, out: Tensor, a: Tensor, b: Tensor) -> None:
        """Traces queries with keys, or weights with values; other products are unknown."""
        scores = _tag(a).scores or (None, None)
        first, second = _features(a), _features(b)
        if first is not None and second is not None:
            q, k = _by_head(first, a), _by_head(second.mT, b.mT)
            _set(out, scores=self._meet(q, k, a, b))
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
            for head, features in enumerate([] if ids is None else ids.tolist()):
                for feature in features:
                    self.of_head.setdefault(feature, set()).add((number, head, kind))
        shape = (*out.shape[:-3], len(v), 1, v.shape[-1]) if out.ndim > 2 else (1, v.shape[-1])
        _follow(out, v.reshape(shape).expand(out.shape))

    def _laid_out(self, call: TorchCall, out: Any) -> None:
        """Moves the feature ids as the call moves the entries."""
        if not any(_features(t) is not None for t in tensors_in(call.args)):
            _carry(out, call)
            return

        def numbers(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            features = _features(tensor)
            if features is None:
                return torch.full(tensor.shape, -1, device=tensor.device)
            return features.contiguous()

        try:
            moved = call.mapped(numbers).run()
        except (RuntimeError, TypeError):  # not every call takes integers
            self._spoil(*tensors_in(call.args))
            return
        for piece, features in zip(tensors_in(out), tensors_in(moved), strict=True):
            _follow(piece, features)

    def _by_entry(self, call: TorchCall, out: Tensor) -> None:
        arguments = list(call.tensors())
        known = [t for t in arguments if _features(t) is not None]
        kind = call.kind
        if not known:
            scaled = [t for t in arguments if isinstance(t, nn.Parameter) and t.ndim == 1]
            if kind is Kind.PRODUCT and len(scaled) == 1 and out.shape[-1] == len(scaled[0]):
                self._make(out, Weight(scaled[0], None, 0), "scale", len(scaled[0]))
            _carry(out, call)
            return
        if any(t.ndim and t.shape[-1] > 1 for t in arguments if _features(t) is None):
            self._spoil(*known)
            return
        spread = [_features(t).expand(out.shape) for t in known]  # type: ignore[union-attr]
        for other in spread[1:]:
            self._tie_rows(spread[0], other)
        scaling = kind is Kind.PRODUCT or kind is Kind.QUOTIENT
        if kind in ELEMENTWISE or (scaling and len(known) > 1):
            self.bent.update(feature for t in spread for feature in t.unique().tolist())
        terms = len(call.args) + len(call.kwargs)
        if (
            kind is Kind.SUM and len(known) < terms
        ):  # adding a constant does not commute with scaling
            self.bent.update(spread[0].unique().tolist())
        _follow(out, spread[0])

    # Tied and spoiled features

    def _tie(self, a: int, b: int) -> None:
        if min(a, b) < 0:
            self.spoiled.add(max(a, b))
        else:
            self._parents[self.root(a)] = self.root(b)

    def _tie_rows(self, a: Tensor, b: Tensor) -> None:
        for first, second in torch.stack([a.flatten(), b.flatten()]).unique(dim=1).T.tolist():
            self._tie(first, second)

    def _spoil(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            rows = _features(tensor)
            if rows is not None:
                self._spoil_rows(rows)

    def _spoil_rows(self, rows: Tensor) -> None:
        self.spoiled.update(rows.unique().tolist())


def _tag(value: Any) -> FeatureTag:
    tag: FeatureTag = getattr(value, "wherefrom_features", _NO_TAG)
    return tag


def _set(tensor: Tensor, **changes: Any) -> None:
    tensor.wherefrom_features = replace(_tag(tensor), **changes)  # type: ignore[attr-defined]


def _features(value: Any) -> Tensor | None:
    """The feature ids of a tensor."""
    return _tag(value).features


def _follow(out: Any, features: Tensor | None) -> None:
    if isinstance(out, Tensor) and features is not None:
        _set(out, features=features)


def _carry(out: Any, call: TorchCall) -> None:
    """Keeps the tag of attention scores that are scaled, masked or normalised."""
    scores = next((s for t in tensors_in(call.args) if (s := _tag(t).scores)), None)
    if isinstance(out, Tensor) and scores is not None:
        _set(out, scores=scores)


def _weight(value: Any) -> tuple[nn.Parameter, int] | None:
    """The parameter behind a tensor or slice, and its first row."""
    return (value, 0) if isinstance(value, nn.Parameter) else _tag(value).slice


def _slice_weights(call: TorchCall, pieces: Iterable[Tensor]) -> None:
    """Tags the pieces of a split parameter with their first rows."""
    parameter = call["input"]
    if isinstance(parameter, nn.Parameter):
        start = 0
        for piece in pieces:
            if piece.shape[1:] == parameter.shape[1:]:
                _set(piece, slice=(parameter, start))
            start += piece.shape[0]


def _by_head(rows: Tensor | None, tensor: Tensor) -> Tensor | None:
    """The features of each head, (heads, channels), if all positions have the same ones."""
    if rows is None or tensor.ndim < 2:
        return None
    heads = rows.reshape(-1, *rows.shape[-2:])  # a batch of one
    if bool((heads != heads[:, :1]).any()) or bool((heads < 0).any()):
        return None
    return heads[:, 0]
