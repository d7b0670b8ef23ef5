"""Where the input enters the model: the lookups on its ids, or the tensor itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from wherefrom.errors import NoBlock
from wherefrom.tracing.catalogue import Kind, TorchCall, depends_on_input, tensors_in
from wherefrom.tracing.observers import Observer
from wherefrom.tracing.tags import Role, Tag, like, mark, role_of, set_tag, tag_of, widened

if TYPE_CHECKING:
    from wherefrom.tracing.tracer import Tracer

Place = Literal["embeddings", "first_block"]
"""Where an input is read: as it enters, or as the state that enters the first block."""


@dataclass(frozen=True)
class Span:
    """The units of one field of the input, and the rows of a tensor that hold them.

    Row r of the tensor holds the unit r − shift + start, for `width` rows. Rows in front are a
    class token or a decoder's start; rows behind are padding that the model adds.
    """

    field: int
    start: int
    shift: int
    width: int

    @property
    def stream(self) -> int:
        """The number of the stream: a shifted copy of a field is the stream after it."""
        return self.field + self.shift

    def behind(self, rows: int) -> Span:
        """The same units in a tensor with some rows put in front."""
        return Span(self.field, self.start, self.shift + rows, self.width)

    def row_of(self, unit: int) -> int | None:
        """The row that holds a unit, or None if the unit is of another field."""
        inside = self.start <= unit < self.start + self.width
        return unit - self.start + self.shift if inside else None

    def of_rows(self, rows: Tensor) -> Tensor:
        """The rows (B, T, …) that hold units, (B, units of the field at most, …)."""
        return rows[:, self.shift : self.shift + self.width]

    def add_to(self, units: Tensor, rows: Tensor) -> Tensor:
        """Adds numbers of rows, (B, T), to those of their units, (B, all units)."""
        own = self.of_rows(rows).to(units)
        units[:, self.start : self.start + own.shape[1]] += own
        return own

    def rows_of(self, units: Tensor, rows: Tensor) -> Tensor:
        """Writes numbers of units, (B, all units), into the rows that hold them, (B, T)."""
        own = units[:, self.start : self.start + self.width]
        rows[:, self.shift : self.shift + self.width] = own[:, : rows.shape[1] - self.shift]
        return rows


@dataclass(frozen=True)
class EmbeddedInput:
    """What is read of the input, before it becomes a leaf of the graph."""

    rows: Tensor  # (B, T, D)
    span: Span
    table: Tensor | None = None  # in which ids were looked up


Change = Callable[[EmbeddedInput], Tensor]
"""Gives what enters in place of the rows."""


@dataclass(frozen=True)
class Source:
    """A leaf of the graph where the units of one span enter."""

    leaf: Tensor  # (B, T, D), or (T, B, D) where the model puts places first
    span: Span
    places_first: bool = False
    bias: Tensor | None = None  # of the norm that made the leaf
    table: Tensor | None = None  # in which ids were looked up

    def by_sample(self, tensor: Tensor, batch: int) -> Tensor:
        """The leaf, or its gradient, as (B, T, D)."""
        if self.places_first:
            tensor = tensor.transpose(0, 1)
        return tensor.reshape(batch, -1, tensor.shape[-1])


@dataclass(frozen=True)
class Relevance:
    """Gradient × (input − root) in float64.

    A row of no unit is a decoder's start token, or padding that the model itself puts behind.
    """

    units: Tensor  # (B, units)
    others: Tensor  # (B,): of rows of no unit
    biases: Tensor  # (B, units): the part of a norm's bias, where a norm made what is read
    summed: Tensor  # (B, units): Σ |gradient · input|, which the sums are made of
    root: Tensor  # (B,): gradient × root


@dataclass(eq=False)
class State:
    """What a call made of the state before it, on the way from the input to the first block."""

    tensors: list[Tensor]
    rows_ahead: int = 0  # put in front of the units so far
    path: tuple[int, ...] = ()  # which use of the first state, of that the second, …
    alone: bool = True  # made of the state before it and nothing else that is live
    used: bool = False  # by a call whose result is live
    uses: list[State] = field(default_factory=list)


@dataclass(frozen=True)
class PathToBlock:
    """The states that are made of a field of the input, up to its first block and a little on."""

    span: Span
    rows: int  # that a sample has where it enters
    first: State

    def block(self) -> State | None:
        """The first state that is used twice: by a block, and around it."""
        state = self.first
        while True:
            uses = [use for use in state.uses if use.used]
            if len(uses) > 1:
                return state
            if not uses or not uses[0].alone:
                return None
            state = uses[0]


@dataclass
class EntryPoints(Observer):
    """Makes the leaves at which the gradient is taken.

    `fields` are the id tensors (or the float tensors) of the input, in the order of their units.
    With `at="first_block"` the input is read as the state that enters the first block: after the
    norm of the embeddings, where a model has one. `change` replaces what enters, for methods that
    move it along a path; with the `paths` that a first pass took to each block it replaces what
    enters the block.
    """

    fields: list[Tensor]
    change: Change | None = None
    at: Place = "embeddings"
    paths: Sequence[tuple[int, ...]] | None = None
    entered: list[Source] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)  # that were made, also those not read at
    paths_to_block: list[PathToBlock] = field(default_factory=list)
    extent: int = 0
    rows_ahead: dict[int, int] = field(default_factory=dict)  # put in front of a stream's first
    _tables: dict[int, Span] = field(default_factory=dict)
    _biases: dict[int, Tensor] = field(default_factory=dict)  # of norms, by id of their result
    _states: dict[int, tuple[int, State]] = field(default_factory=dict)  # by id of a tensor

    def __post_init__(self) -> None:
        self.extent = self.length
        self._calls, self._numbers = 0, list[int]()  # calls so far; numbers of those being made
        self._before_leaf = 0  # paths when the last module without submodules was entered
        for ids in self.fields:
            if not ids.is_floating_point():
                mark(ids, "ids")

    def for_second_run(self) -> EntryPoints:
        """The same sources for a block that is run again: what it notes changes nothing here."""
        sources = copy(self)
        sources.entered, sources.paths_to_block = list(self.entered), []
        sources.rows_ahead, sources._tables = dict(self.rows_ahead), dict(self._tables)
        return sources

    def before_call(self, tracer: Tracer, call: TorchCall) -> TorchCall:
        if self.at == "first_block":
            self._calls += 1
            self._numbers.append(self._calls)
        return call

    def after_call(self, tracer: Tracer, call: TorchCall, out: Any) -> Any:
        if call.kind is Kind.JOIN and depends_on_input(out) and out.ndim == 3:
            self._join(call)
        if self.at == "first_block":
            has_parts = self._numbers.pop() != self._calls  # then they are followed instead
            if self.paths_to_block and not has_parts and not tracer.in_leaf:
                return self.follow(call.tensors(), out)
        return out

    def enter_module(
        self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        if tracer.running[-1].is_leaf:
            self._before_leaf = len(self.paths_to_block)
        return args

    def leave_module(
        self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...], kwargs: Any, out: Any
    ) -> Any:
        *outer, own = tracer.running
        if not self.paths_to_block or not own.is_leaf or any(module.is_leaf for module in outer):
            return out
        begun = self.paths_to_block[self._before_leaf :]  # a scaled embedding
        arguments = [*tensors_in(args), *(path.first.tensors[0] for path in begun)]
        return self.follow(arguments, out)

    @property
    def places_first(self) -> bool:
        """Whether the model looks its ids up with positions on the first axis."""
        return any(source.places_first for source in self.entered)

    @property
    def batch(self) -> int:
        """Samples in the batch."""
        return self.fields[0].shape[0]

    @property
    def length(self) -> int:
        """Units of the first field: the extent that tells a position from a bias."""
        return self.fields[0].shape[1]

    @property
    def units(self) -> int:
        """Units of all fields."""
        return sum(ids.shape[1] for ids in self.fields)

    def span_of(self, number: int) -> Span:
        """The units of a field, where a tensor has a row for each of them."""
        start = sum(ids.shape[1] for ids in self.fields[:number])
        return Span(number, start, 0, self.fields[number].shape[1])

    def span_in(self, stream: int) -> Span | None:
        """The units of the field that a stream runs along with, in a tensor of the model's body."""
        for source in self.entered:
            if source.span.stream == stream:
                return source.span.behind(self.rows_ahead.get(stream, 0))
        return None

    def enter(
        self, value: Tensor, span: Span, places_first: bool = False, table: Tensor | None = None
    ) -> Tensor:
        """Makes the embedded input a leaf and gives the model its like."""
        changes = self.paths is None or self.paths[len(self.entered)] == ()
        entered = self._leaf(value, span, places_first, changes, table)
        set_tag(entered, Tag(stream=span.stream))
        return entered

    def _leaf(
        self,
        value: Tensor,
        span: Span,
        places_first: bool,
        change: bool,
        table: Tensor | None = None,
    ) -> Tensor:
        value = value.detach()
        if change and self.change is not None:
            rows = value.transpose(0, 1) if places_first else value
            entering = EmbeddedInput(rows.reshape(self.batch, -1, rows.shape[-1]), span, table)
            moved = self.change(entering).reshape(rows.shape)
            value = moved.transpose(0, 1) if places_first else moved
        # a tensor that someone else differentiates by stays in their graph
        leaf = value if value.requires_grad else value.detach().requires_grad_()
        self.entered.append(Source(leaf, span, places_first, table=table))
        self.leaves.append(leaf)
        # a copy: the model may write into what it gets, and a leaf forbids that
        return leaf.clone()

    # From where the input enters to the first block.

    def begin(self, value: Tensor, span: Span) -> None:
        """Starts the trail of a field at what the model is given of it."""
        if self.at == "first_block":
            leaf, first = self.entered[-1].leaf, State([value])
            rows = leaf.numel() // leaf.shape[-1] // self.batch
            self._states[id(value)] = (len(self.paths_to_block), first)
            self.paths_to_block.append(PathToBlock(span, rows, first))

    def normed(self, out: Tensor, bias: Tensor) -> None:
        """Notes the bias of a norm, in case its result is what enters the first block."""
        if self.paths_to_block:
            self._biases[id(out)] = bias

    def follow(self, arguments: Iterable[Tensor], out: Any) -> Any:
        """Notes a call, or a module without parts, and gives what the model shall use of `out`."""
        results = [tensor for tensor in tensors_in(out) if tensor.requires_grad]
        if not results:
            return out
        numbers = {id(tensor) for tensor in arguments if tensor.requires_grad}
        known = [self._states[number] for number in numbers if number in self._states]
        alone = len(numbers) == 1 and isinstance(out, Tensor)
        use: State | None = None
        for trail, state in known:
            state.used = True
            if any(result is tensor for result in results for tensor in state.tensors):
                state.alone = state.alone and len(numbers) == 1  # something was written into it
            elif state.alone:
                ahead = self.rows_ahead.get(self.paths_to_block[trail].span.stream, 0)
                use = use or State(results, ahead, (*state.path, len(state.uses)), alone)
                state.uses.append(use)
                self._states.update(dict.fromkeys(map(id, results), (trail, use)))
        if use is not None and use.alone and self.paths is not None:
            trail = known[0][0]
            if self.paths[trail] == use.path:
                return self._changed(trail, use)
        return out

    def _changed(self, trail: int, state: State) -> Tensor:
        """The changed state that enters a block, a leaf of its own."""
        (before,) = state.tensors
        source = self._block_source(self.paths_to_block[trail], state)
        changed = self._leaf(before, source.span, source.places_first, change=True)
        self.entered[trail] = self.entered.pop()
        like(changed, before)
        state.tensors.append(changed)  # the one before is kept, so that no other has its id
        self._states[id(changed)] = (trail, state)
        return changed

    def read_at_block(self) -> list[tuple[int, ...]]:
        """Takes the states that enter the first blocks for the sources; the paths to them."""
        states = [trail.block() for trail in self.paths_to_block]
        blocks = [state for state in states if state is not None]
        if not blocks or len(blocks) != len(self.entered):
            raise NoBlock(
                "no block was found: no state of this model is used both in a block and around it.",
                'Read its input where it enters, with at="embeddings".',
                command="Read its input where it enters, with --set at=embeddings.",
            )
        if self.paths is None:
            pairs = zip(self.paths_to_block, blocks, strict=True)
            self.entered = [self._block_source(trail, block) for trail, block in pairs]
        return [block.path for block in blocks]

    def _block_source(self, trail: PathToBlock, state: State) -> Source:
        tensor = state.tensors[-1]
        span = trail.span.behind(state.rows_ahead)
        places_first = tensor.ndim == 3 and (
            tensor.shape[0] != self.batch or (self.places_first and tensor.shape[1] == self.batch)
        )
        rows = tensor.numel() // tensor.shape[-1] // self.batch
        if tensor.ndim not in (2, 3) or rows != trail.rows + state.rows_ahead:
            raise NoBlock(
                f"the state that enters the first block has shape {tuple(tensor.shape)}, in "
                "which the units cannot be told apart.",
                'Read the input where it enters, with at="embeddings".',
                command="Read the input where it enters, with --set at=embeddings.",
            )
        return Source(tensor, span, places_first, self._biases.get(id(tensor)))

    def _join(self, call: TorchCall) -> None:
        """Counts the constant rows, such as a class token, that are put in front of a field.

        What was put in front before may come first, as where registers follow the class token.
        """
        if call.get("dim", 0) not in (1, -2):
            return
        parts = call["tensors"]
        stream = next((tag_of(part).stream for part in parts if part.requires_grad), None) or 0
        count = self.rows_ahead.get(stream, 0)
        for part in parts:
            if part.ndim < 2:  # torch joins an empty tensor of one axis with any other
                continue
            if not part.requires_grad:
                count += part.shape[1]
            elif part.shape[1] > count:
                break
        self.rows_ahead[stream] = count

    def lookup(self, ids: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        """Tells a lookup on the input from one of positions or types, by its ids."""
        if role_of(ids) == "ids":
            for number, own_ids in enumerate(self.fields):
                span = self.span_of(number)
                if _begins_with(ids, own_ids):
                    self._tables[weight.data_ptr()] = span
                    if number == 0:
                        self.extent = ids.numel() // self.batch
                    return self._looked_up(out, span, weight)
                if ids.ndim == 2 and torch.equal(ids.T, own_ids):
                    return self._looked_up(out, span, weight, places_first=True)
            for number, own_ids in enumerate(self.fields):
                if _has_replaced(ids, own_ids):
                    return self._looked_up(out, self.span_of(number), weight)
                cut = _cut_from(ids, own_ids)
                if cut is not None:
                    start = self.span_of(number).start + cut
                    return self._looked_up(out, Span(number, start, 0, ids.shape[1]), weight)
        if role_of(ids) == "hashed":  # place by place: a row is still that of its unit
            for number, own_ids in enumerate(self.fields):
                if ids.shape == own_ids.shape:
                    return self._looked_up(out, self.span_of(number), weight)
        shifted = self._tables.get(weight.data_ptr())
        if shifted is not None and self._is_shifted(ids):
            return self._looked_up(out, shifted.behind(1), weight)
        mark(out, _meaning_of_lookup(ids))
        return out

    def rows_of_prompt(self, ids: Tensor) -> int:
        """How many ids of its own the model put in front of the input's."""
        first = self.fields[0]
        if role_of(ids) != "ids" or ids.ndim != 2 or first.ndim != 2 or len(ids) != len(first):
            return 0
        ahead = ids.shape[1] - first.shape[1]
        return ahead if ahead > 0 and torch.equal(ids[:, ahead:], first.to(ids.dtype)) else 0

    def _looked_up(
        self, out: Tensor, span: Span, table: Tensor, places_first: bool = False
    ) -> Tensor:
        entered = self.enter(out, span, places_first, table)
        self.begin(entered, span)
        return entered

    def _is_shifted(self, ids: Tensor) -> bool:
        """Whether these are the input's ids moved one place to the right, a decoder's start."""
        first = self.fields[0]
        return ids.shape == first.shape and torch.equal(ids[:, 1:], first[:, :-1].to(ids.dtype))

    def relevance(
        self, gradients: list[Tensor], roots: Sequence[Tensor] | None = None
    ) -> Relevance:
        """Gradient × (input − root); all are as `by_sample` gives them."""
        units = torch.zeros(self.batch, self.units, dtype=torch.float64)
        biases, summed = torch.zeros_like(units), torch.zeros_like(units)
        others, root = (torch.zeros(self.batch, dtype=torch.float64) for _ in range(2))
        for k, (source, gradient) in enumerate(zip(self.entered, gradients, strict=True)):
            gradient = widened(gradient)
            products = gradient * source.by_sample(source.leaf.detach(), self.batch)
            if roots is not None:
                from_root = gradient * roots[k]
                products = products - from_root
                root += from_root.sum((1, 2), dtype=torch.float64).cpu()
            rows = products.sum(2, dtype=torch.float64).cpu()
            others += rows.sum(1) - source.span.add_to(units, rows).sum(1)
            source.span.add_to(summed, products.abs().sum(2, dtype=torch.float64).cpu())
            if source.bias is not None and roots is None:
                bias = (gradient * source.bias.detach()).sum(2, dtype=torch.float64).cpu()
                source.span.add_to(biases, bias)
        return Relevance(units, others, biases, summed, root)


def stream_of(value: object) -> int:
    """Which field of the input a tensor runs along with; the first where that is not known."""
    return tag_of(value).stream or 0


def _begins_with(ids: Tensor, own: Tensor) -> bool:
    """Whether these are the input's ids, perhaps in one row, perhaps with padding behind."""
    if own.ndim != 2:  # rows of floats
        return False
    batch, width = own.shape
    rows = ids.reshape(batch, -1) if ids.ndim == 1 and ids.numel() % batch == 0 else ids
    if rows.ndim != 2 or rows.shape[0] != batch or rows.shape[1] < width:
        return False
    return torch.equal(rows[:, :width], own.to(rows.dtype))


def _cut_from(ids: Tensor, own: Tensor) -> int | None:
    """Where these ids begin in the input's, if they are its last or its first; else None."""
    if own.is_floating_point() or ids.ndim != 2 or own.ndim != 2 or len(ids) != len(own):
        return None
    rest = own.shape[1] - ids.shape[1]
    if rest <= 0 or not ids.shape[1]:
        return None
    for start in (rest, 0):
        if torch.equal(own[:, start : start + ids.shape[1]].to(ids.dtype), ids):
            return start
    return None


def _has_replaced(ids: Tensor, own: Tensor) -> bool:
    """Whether these are the input's ids with some of them, wherever they stand, made one other.

    So models do with the tokens that stand for an image, which their tables may not have.
    """
    if ids.shape != own.shape or own.is_floating_point():
        return False
    changed = ids != own
    fills, replaced, kept = ids[changed].unique(), own[changed].unique(), own[~changed].unique()
    return len(fills) == 1 and len(kept) > 0 and not bool(torch.isin(replaced, kept).any())


def _meaning_of_lookup(ids: Tensor) -> Role:
    """Positions follow each other along the last axis, padding aside; types repeat."""
    if ids.shape[-1:] == (1,):
        return "position"
    follow = (ids[..., 1:] - ids[..., :-1] == 1).float().mean(-1)
    return "position" if float(follow.max()) > 0.5 else "type"
