"""The state that enters the first block: what becomes of the embedded input, call by call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from wherefrom.errors import NoBlock
from wherefrom.tracing.catalogue import Kind, TorchCall, tensors_in
from wherefrom.tracing.observers import Observer
from wherefrom.tracing.observers.entry_points import Change, EntryPoint, EntryPoints, Span
from wherefrom.tracing.tags import like

if TYPE_CHECKING:
    from wherefrom.tracing.tracer import Tracer


@dataclass(eq=False)
class PathState:
    """What a call made of the state before it, between the embeddings and the first block."""

    tensors: list[Tensor]
    rows_ahead: int = 0  # put in front of the units so far
    path: tuple[int, ...] = ()  # which use of the first state, of that the second, …
    alone: bool = True  # made of the state before it and no other tensor of the input
    bias: Tensor | None = None  # of the norm that made it
    used: bool = False  # by a call whose result depends on the input
    uses: list[PathState] = field(default_factory=list)


@dataclass(frozen=True)
class PathToBlock:
    """The states that are made of a field of the input, up to its first block."""

    span: Span
    rows: int  # of a sample, where the field enters
    first: PathState

    def block(self) -> PathState | None:
        """The first state that is used twice: by a block, and by its skip connection."""
        state = self.first
        while True:
            uses = [use for use in state.uses if use.used]
            if len(uses) > 1:
                return state
            if not uses or not uses[0].alone:
                return None
            state = uses[0]


class FirstBlock(Observer):
    """Follows the embedded input to the first block and reads it there.

    A block is found once it has run. To change what enters it, a second pass takes the `paths`
    that `read` returned in the first, and `change` is applied at their ends.
    """

    def __init__(
        self, paths: Sequence[tuple[int, ...]] | None = None, change: Change | None = None
    ) -> None:
        self.followed: list[PathToBlock] = []  # one for each field that entered
        self._paths, self._change = paths, change
        self._states: dict[
            int, tuple[int, PathState]
        ] = {}  # by id of a tensor; with its path's number
        self._calls, self._numbers = 0, list[int]()  # calls so far; numbers of those being made
        self._before_leaf = 0  # fields when the last module without submodules was entered
        self._norm: tuple[Any, Tensor | None] = (None, None)  # result and bias of the last norm

    def begin(self, entry_points: EntryPoints, value: Tensor, span: Span) -> Tensor:
        """Starts the path of the field that entered last; returns what the model uses."""
        leaf, first = entry_points.entered[-1].leaf, PathState([value])
        number = len(self.followed)
        self._states[id(value)] = (number, first)
        rows = leaf.numel() // leaf.shape[-1] // entry_points.batch
        self.followed.append(PathToBlock(span, rows, first))
        at_once = self._paths is not None and self._paths[number] == ()
        return self._changed(entry_points, number, first) if at_once else value

    def before_call(self, tracer: Tracer, call: TorchCall) -> TorchCall:
        self._calls += 1
        self._numbers.append(self._calls)
        return call

    def after_call(self, tracer: Tracer, call: TorchCall, out: Any) -> Any:
        if call.kind is Kind.LAYER_NORM:
            self._norm = out, call.get("bias")
        has_parts = self._numbers.pop() != self._calls  # then they are followed instead
        if self.followed and not has_parts and not tracer.in_leaf:
            return self.follow(tracer.entry_points, call.tensors(), out)
        return out

    def enter_module(
        self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        if tracer.running[-1].is_leaf:
            self._before_leaf = len(self.followed)
        return args

    def leave_module(
        self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...], kwargs: Any, out: Any
    ) -> Any:
        *outer, own = tracer.running
        if not self.followed or not own.is_leaf or any(module.is_leaf for module in outer):
            return out
        begun = self.followed[self._before_leaf :]  # a scaled embedding
        arguments = [*tensors_in(args), *(path.first.tensors[0] for path in begun)]
        return self.follow(tracer.entry_points, arguments, out)

    def follow(self, entry_points: EntryPoints, arguments: Iterable[Tensor], out: Any) -> Any:
        """Records a call, or a module without submodules; returns what the model uses of `out`."""
        results = [tensor for tensor in tensors_in(out) if tensor.requires_grad]
        if not results:
            return out
        numbers = {id(tensor) for tensor in arguments if tensor.requires_grad}
        known = [self._states[number] for number in numbers if number in self._states]
        alone = len(numbers) == 1 and isinstance(out, Tensor)
        bias = self._norm[1] if out is self._norm[0] else None
        use: PathState | None = None
        for number, state in known:
            state.used = True
            if any(result is tensor for result in results for tensor in state.tensors):
                state.alone = state.alone and len(numbers) == 1  # something was written into it
            elif state.alone:
                ahead = entry_points.rows_ahead.get(self.followed[number].span.stream, 0)
                path = (*state.path, len(state.uses))
                use = use or PathState(results, ahead, path, alone, bias)
                state.uses.append(use)
                self._states.update(dict.fromkeys(map(id, results), (number, use)))
        if use is not None and use.alone and self._paths is not None:
            number = known[0][0]
            if self._paths[number] == use.path:
                return self._changed(entry_points, number, use)
        return out

    def _changed(self, entry_points: EntryPoints, number: int, state: PathState) -> Tensor:
        """The changed state that enters a block, as a leaf in place of the embedded input."""
        (before,) = state.tensors
        source = self._source(entry_points, number, state)
        changed = entry_points.make_leaf(before, source.span, source.places_first, self._change)
        entry_points.entered[number] = entry_points.entered.pop()
        like(changed, before)
        state.tensors.append(changed)  # the one before is kept, so that no other has its id
        self._states[id(changed)] = (number, state)
        return changed

    def read(self, entry_points: EntryPoints) -> list[tuple[int, ...]]:
        """Takes the states that enter the first blocks as entry points; returns the paths there."""
        states = [path.block() for path in self.followed]
        blocks = [state for state in states if state is not None]
        if not blocks or len(blocks) != len(entry_points.entered):
            raise NoBlock(
                "found no block: no state of this model is used both in a block and around it.",
                'Read its input at="embeddings".',
                command="Read its input with --set at=embeddings.",
            )
        if self._paths is None:
            entry_points.entered = [
                self._source(entry_points, number, block) for number, block in enumerate(blocks)
            ]
        return [block.path for block in blocks]

    def _source(self, entry_points: EntryPoints, number: int, state: PathState) -> EntryPoint:
        path, tensor, batch = self.followed[number], state.tensors[-1], entry_points.batch
        places_first = tensor.ndim == 3 and (
            tensor.shape[0] != batch or (entry_points.places_first and tensor.shape[1] == batch)
        )
        rows = tensor.numel() // tensor.shape[-1] // batch
        if tensor.ndim not in (2, 3) or rows != path.rows + state.rows_ahead:
            raise NoBlock(
                f"the state that enters the first block has shape {tuple(tensor.shape)}, whose "
                "rows are not the units.",
                'Read the input at="embeddings".',
                command="Read the input with --set at=embeddings.",
            )
        span = path.span.behind(state.rows_ahead)
        return EntryPoint(tensor, span, places_first, state.bias)
