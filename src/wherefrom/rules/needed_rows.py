"""Rows that nothing reads: behind the last attention most models go on with one place only.

A first pass notes the last attention and the linear layers behind it. A second follows what their
results become, call by call: if only some rows are ever read, attention, layers and all that comes
behind them are run for these rows from then on. What the model gets of such a call looks as if it
had all rows; calls on it are made on the rows that are there. So a model which comes to read others
is noticed.
"""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from wherefrom.core.torch_internals import function_class, without_function_modes
from wherefrom.tracing.catalogue import ELEMENTWISE, Kind, TorchCall, list_tensors, map_tensors
from wherefrom.tracing.tags import like

Stage = Literal["noting", "following", "narrowing", "off"]
Weight = tuple[int, torch.Size]  # where it lies in memory, and its shape
_FEWEST = 4  # times as many rows as are read, from which on narrowing pays
_BY_ROW = ELEMENTWISE | {
    Kind.SUM, Kind.NEGATION, Kind.PRODUCT, Kind.QUOTIENT, Kind.ADDED_PRODUCT, Kind.CAST,
}  # fmt: skip


class RowsRead(BaseException):
    """A row was read that was not computed: the pass must be made again. No model may catch it."""


@dataclass
class _Known:
    first: bool  # whether the first row is read, a class token's, or those at the asked positions
    stage: Stage = "noting"
    layers: frozenset[Weight] = frozenset()
    attention: str = ""  # the module that makes the last attention call, if it makes no other


class _Limit(NamedTuple):
    """Of a tensor of which only some rows are computed: their axis, and what left them out.

    `rows` are those behind a layer, (B, rows, D), at these `places`; the tensor itself then has
    only the shape that the model expects.
    """

    axis: int = 1
    by: Literal["attention", "layer"] = "layer"
    rows: Tensor | None = None
    places: Tensor | None = None


# by model, by whether positions are asked for, and whether it is one of many passes
_KNOWN: weakref.WeakKeyDictionary[nn.Module, dict[tuple[bool, bool], _Known]]
_KNOWN = weakref.WeakKeyDictionary()
PASSES = 4  # after which a model is known: noted, followed twice at most, narrowed


@dataclass
class NeededRows:
    """Runs the linear layers behind the last attention for the rows that are read.

    These are the asked `positions`, the same for all samples, or the first row, a class token's.
    A tensor that has only these rows is followed; it may be read there alone. Readers of texts ask
    for a position whatever the model: in one of `many` passes the first row is tried after it.
    """

    model: nn.Module
    positions: Tensor | None
    many: bool = False
    _uses: Counter[Weight] = field(default_factory=Counter)
    _behind: list[Weight] = field(default_factory=list)  # of layers since the last attention
    _attended: int = 0
    _attention: Counter[str] = field(default_factory=Counter)  # calls by module
    _limited: bool = False  # whether some tensor has only the rows that are read
    _refused: bool = False
    _last_attention: str = ""

    def __post_init__(self) -> None:
        asked = self.positions is not None
        known = _KNOWN.setdefault(self.model, {})
        self._known = known.setdefault((asked, self.many), _Known(first=not asked))
        self._stage = self._known.stage  # of this pass, whatever others learn meanwhile
        self._first = self._known.first
        rows = torch.zeros(1, dtype=torch.long)
        if self.positions is not None and not self._first:
            rows = self.positions
        self._rows = rows.detach().cpu().unique()

    def of(self, call: TorchCall, attended: int) -> Tensor | None:
        """The rows that a linear layer is to be run for; None for all. `attended`: so far."""
        x, stage = call["input"], self._stage
        if stage == "off" or x.ndim != 3:
            return None
        weight = weight_key(call["weight"])
        if stage == "noting":
            if attended != self._attended:
                self._attended, self._behind = attended, []
            self._behind.append(weight)
            self._uses[weight] += 1
            return None
        if weight not in self._known.layers or x.shape[1] < _FEWEST * len(self._rows):
            return None
        return self._places(x.shape[1], x.device)

    def of_attention(self, query: Tensor, where: str) -> Tensor | None:
        """The queries that attention is to be run for, as `of`; `where`: the module that calls."""
        if self._stage == "noting":
            self._attention[where] += 1
            self._last_attention = where
            return None
        if self._stage == "off" or not where or where != self._known.attention or query.ndim != 4:
            return None
        if query.shape[-2] < _FEWEST * len(self._rows):
            return None
        return self._places(query.shape[-2], query.device)

    def _places(self, count: int, device: torch.device) -> Tensor:
        """The rows that are read, of so many; none while it is not yet known whether others are."""
        self._limited = True
        rows: Tensor = self._rows % count
        return rows.to(device) if self._stage == "narrowing" else rows[:0]

    def limit(
        self, out: Tensor, axis: int = 1, by: Literal["attention", "layer"] = "layer"
    ) -> Tensor:
        """Notes that a result has only the rows that are read."""
        out.wherefrom_limited = _Limit(axis, by)  # type: ignore[attr-defined]
        return out

    def limit_like(self, out: Tensor, x: Tensor) -> None:
        """Notes that a function of single numbers has the rows of its argument."""
        if is_limited(x):
            out.wherefrom_limited = x.wherefrom_limited  # type: ignore[attr-defined]

    def narrowed(self, call: TorchCall) -> TorchCall | None:
        """The call on the rows that are there, where an argument has no others; else None."""
        if not self._limited or self._stage != "narrowing":
            return None
        limited = [tensor for tensor in call.tensors() if rows_of(tensor) is not tensor]
        if not limited:
            return None
        with without_function_modes():
            changed = self._picked(call, limited)
            if changed is None and _keeps_rows(call, limited):
                changed = self._on_rows(call, limited[0].shape[1])
            if changed is None:
                self._refuse()
            return changed

    def widened(self, call: TorchCall, out: Any) -> Any:
        """What the model gets of a call that was made on rows: as if it had all of them."""
        if call.kind is Kind.SELECT:
            return out
        if call.in_place:  # its rows were written into
            return call.args[0]
        model_has = next(t for t in call.tensors() if rows_of(t) is not t)
        if not _has_rows(out, rows_of(model_has).shape[:2]):
            self._refuse()
        return map_tensors(out, lambda rows: self.placeholder(rows, model_has.shape[1]))

    def placeholder(self, rows: Tensor, count: int) -> Tensor:
        """A tensor of so many rows, of which only these are there, in the place of a result."""
        with without_function_modes():
            whole = like(rows[:, :1].expand(-1, count, -1), rows)
        limit = _Limit(rows=rows, places=self._rows % count)
        whole.wherefrom_limited = limit  # type: ignore[attr-defined]
        return whole

    def _on_rows(self, call: TorchCall, count: int) -> TorchCall:
        """A call that keeps rows, of which there are `count`, on those that are needed."""
        if call.kind in (Kind.LINEAR, Kind.LAYER_NORM, Kind.RMS_NORM):  # beside it only weights
            return call.with_(input=rows_of(call["input"]))

        def narrow(tensor: Tensor) -> Tensor:
            rows = rows_of(tensor)
            if rows is not tensor or tensor.ndim < 2 or tensor.shape[-2] != count:
                return rows
            return like(tensor.index_select(-2, self._places(count, tensor.device)), tensor)

        return call.mapped(narrow)

    def _picked(self, call: TorchCall, limited: list[Tensor]) -> TorchCall | None:
        """A call that picks some of the rows, on those that are there; None for any other."""
        if not self._reads_needed(call, limited):
            return None
        x, index = call["input"], call["index"]
        chosen = index[1] if isinstance(index, tuple) else index
        chosen = chosen.cpu() if isinstance(chosen, Tensor) else chosen
        numbers = _indices(torch.arange(x.shape[1])[chosen], self._rows % x.shape[1])
        at: Any = int(numbers) if numbers.ndim == 0 else numbers.to(x.device)
        index = (index[0], at, *index[2:]) if isinstance(index, tuple) else at
        return call.with_(input=rows_of(x), index=index)

    def follow(self, call: TorchCall, out: Any) -> None:
        """Notes what a call makes of a tensor that has only some rows."""
        if not self._limited or self._refused:
            return
        limited = [tensor for tensor in call.tensors() if is_limited(tensor)]
        if not limited:
            return
        with without_function_modes():
            attended = next((t for t in limited if _limit_of(t).by == "attention"), None)
            if attended is not None:
                self._follow_attention(call, attended, out)
            elif _keeps_rows(call, limited) and _has_rows(out, limited[0].shape[:2]):
                for tensor in list_tensors((out,)):
                    self.limit(tensor)
            elif not self._reads_needed(call, limited):
                self._refuse()

    def _follow_attention(self, call: TorchCall, x: Tensor, out: Any) -> None:
        """From attention to the layer behind it rows change their axis, and meet no others."""
        axis = _limit_of(x).axis
        if call.kind is Kind.LINEAR and axis == 1 and is_limited(out):
            return  # the layer behind it, which takes the rows that are there
        moved = _axis_after(call, x, axis, out) if isinstance(out, Tensor) else None
        if moved is None:
            self._give_up_attention()
        else:
            self.limit(out, moved, "attention")

    def _give_up_attention(self) -> None:
        self._known.attention = ""
        if self._stage == "narrowing":
            raise RowsRead

    def end(self, logits: Tensor) -> None:
        """Learns from a pass that has been run."""
        if self._stage == "noting":
            layers = frozenset(weight for weight in self._behind if self._uses[weight] == 1)
            self._known.layers = layers
            if self._attention[self._last_attention] == 1:
                self._known.attention = self._last_attention
            self._known.stage = "following" if layers else "off"
        elif is_limited(logits):
            self._refuse()
        elif self._stage == "following" and self._limited and not self._refused:
            self._known.stage = "off" if _has_foreign_function(logits) else "narrowing"

    def _refuse(self) -> None:
        """Gives up these rows; one of many passes leaves the first row to be tried."""
        if not self._refused:
            self._refused = True
            if self._stage == "narrowing" or self._first or not self.many:
                self._known.stage = "off"
            self._known.first = True
        if self._stage == "narrowing":
            raise RowsRead

    def _reads_needed(self, call: TorchCall, limited: list[Tensor]) -> bool:
        """Whether a call picks some of the rows that are there."""
        x = call.get("input")
        if call.kind is not Kind.SELECT or len(limited) != 1 or x is not limited[0]:
            return False
        index = call.get("index")
        if call.name == "select":
            chosen = index if call.get("dim") == 1 else None
        elif call.name == "getitem" and isinstance(index, tuple) and len(index) > 1:
            chosen = index[1] if index[0] == slice(None) else None
        else:
            return False
        if isinstance(chosen, Tensor):
            chosen = chosen.cpu()
            if chosen.dtype == torch.bool or chosen.ndim > 1:
                return False
        elif not isinstance(chosen, (int, slice)):
            return False
        places = x.shape[1]
        return bool(torch.isin(torch.arange(places)[chosen], self._rows % places).all())


def is_settled(model: nn.Module) -> bool:
    """Whether passes over many inputs have nothing more to learn of a model."""
    known = _KNOWN.get(model, {})
    return any(many and known[asked, many].stage in ("narrowing", "off") for asked, many in known)


def is_limited(tensor: object) -> bool:
    """Whether only some rows of a tensor have been computed."""
    return hasattr(tensor, "wherefrom_limited")


def rows_of(tensor: Tensor) -> Tensor:
    """The rows that are there of a tensor that has only the shape of more; else the tensor."""
    limit: _Limit | None = getattr(tensor, "wherefrom_limited", None)
    return tensor if limit is None or limit.rows is None else limit.rows


def rows_at(tensor: Tensor, places: Tensor) -> Tensor | None:
    """The rows at some places of each sample, (B, places), of all that a tensor seems to have.

    None where one of them was not computed.
    """
    rows = rows_of(tensor)
    if rows is not tensor:
        computed = _limit_of(tensor).places
        assert computed is not None
        if not bool(torch.isin(places.cpu(), computed).all()):
            return None
        places = _indices(places.cpu(), computed)
    samples = torch.arange(len(rows), device=rows.device).unsqueeze(1)
    return like(rows[samples, places.to(rows.device)], tensor)


def weight_key(weight: Tensor) -> Weight:
    """By what a weight is known from pass to pass."""
    return weight.data_ptr(), weight.shape


def _indices(places: Tensor, computed: Tensor) -> Tensor:
    """Where each place stands among those that were computed."""
    return (places.unsqueeze(-1) == computed).int().argmax(-1)


def _limit_of(tensor: Tensor) -> _Limit:
    limit: _Limit = tensor.wherefrom_limited  # type: ignore[attr-defined]
    return limit


def _axis_after(call: TorchCall, x: Tensor, axis: int, out: Tensor) -> int | None:
    """Along which axis of a call's result the rows of x lie; None where they do not, or meet."""
    kind = call.kind
    if call.get("input") is not x:
        return None
    if kind is Kind.CAST and not call.in_place:
        return axis if out.shape == x.shape else None
    if kind is Kind.TRANSPOSE and call.name == "transpose":
        dims = {call["dim0"] % x.ndim, call["dim1"] % x.ndim}
        return (dims - {axis}).pop() if axis in dims and len(dims) == 2 else axis
    if kind is Kind.RESHAPE and not call.in_place:
        ahead = out.ndim > axis and out.shape[: axis + 1] == x.shape[: axis + 1]
        return axis if ahead else None
    return None


def _keeps_rows(call: TorchCall, limited: list[Tensor]) -> bool:
    """Whether a call makes row t of its result of row t of what it is given."""
    kind = call.kind
    if call.in_place and not is_limited(call.args[0]):
        return False  # other views of what is written into would not be known
    shape = limited[0].shape[:2]
    if any(tensor.ndim != 3 or tensor.shape[:2] != shape for tensor in limited):
        return False
    if kind is Kind.SUM and any(
        t.ndim > 1 and t.shape[-2] == shape[1] and not t.requires_grad for t in call.tensors()
    ):
        return False  # a constant for each place has a line for each unit
    if kind is Kind.SPLIT:
        return call.get("dim", 0) in (-1, 2)
    if kind is Kind.LINEAR:
        return limited[0] is call["input"] and len(limited) == 1
    if kind is Kind.LAYER_NORM or kind is Kind.RMS_NORM:
        return len(call["normalized_shape"]) == 1
    if kind is Kind.REDUCTION or call.get("dim") is not None:
        return call.get("dim") in (-1, 2, (-1,), [-1], (2,), [2])
    return kind in _BY_ROW


def _has_rows(out: Any, shape: torch.Size) -> bool:
    """Whether all results have rows of this many samples and places."""
    results = list_tensors((out,))
    return bool(results) and all(t.ndim == 3 and t.shape[:2] == shape for t in results)


def _has_foreign_function(out: Tensor) -> bool:
    """Whether the graph has a Function that no torch call is seen of."""
    nodes, met = [out.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in met:
            continue
        met.add(node)
        kind: type = type(node)
        own = function_class(kind).__module__.startswith("wherefrom.")
        if issubclass(kind, BackwardCFunction) and not own:
            return True
        nodes += [before for before, _ in node.next_functions]
    return False
