"""What autograd keeps of a forward pass: all of it, or of repeated blocks only what they get.

A block whose saved tensors were dropped is run a second time when the backward pass reaches it.
The graph stays that of the first run, so hooks on its nodes, and with them the ledger, are met
once; the second run only fills in the numbers.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from wherefrom.core.memory import (
    SavedBytes,
    Storage,
    memory_in_use,
    storage_bytes,
    storage_of,
    trim_heap,
)
from wherefrom.core.scope import Scope, restores_state
from wherefrom.core.torch_internals import (
    function_modes,
    hook_counts,
    saved_tensors_pack,
    submodules,
    version_of,
    without_function_modes,
)
from wherefrom.errors import ModelError, NotEnoughMemory
from wherefrom.tracing.catalogue import TorchCall, tensors_in
from wherefrom.tracing.observers import Observer

if TYPE_CHECKING:
    from wherefrom.tracing.tracer import Tracer

_WORKING = 2.0  # blocks' worth of results and gradients that are in use beside what is kept
_MANY = 64  # blocks for which memory must suffice before the rest is no longer counted
_SMALL = 1 << 20  # bytes of a tensor that is kept also when all others are given up
_LARGE = 1 << 25  # bytes of a result, from which on the memory in use is looked at
_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
_PLAIN = (type(None), bool, int, float, complex, str, slice, torch.dtype, torch.device)


def repeated_blocks(model: nn.Module) -> dict[int, int]:
    """The blocks of a model by id, each with the number of the container that it lies in.

    A block has parts of its own and lies in a list with others of its class. Blocks within blocks
    do not count. A list of one, as where layers share their weights, counts if there is no other.
    """
    for least in (2, 1):
        blocks: dict[int, int] = {}
        _collect(model, least, blocks, Counter())
        if blocks:
            return blocks
    return {}


def _collect(module: nn.Module, least: int, blocks: dict[int, int], number: Counter[str]) -> None:
    members = [part for part in submodules(module).values() if part is not None]
    if isinstance(module, _CONTAINERS):
        composed = [part for part in members if submodules(part)]
        classes = Counter(map(type, composed))
        repeated = [part for part in composed if classes[type(part)] >= least]
        if repeated and (least > 1 or isinstance(module, nn.ModuleList)):
            number["containers"] += 1
            blocks.update(dict.fromkeys(map(id, repeated), number["containers"]))
            members = [part for part in members if id(part) not in blocks]
    for part in members:
        _collect(part, least, blocks, number)


class SavedTensor:
    """What stands in the graph for a tensor that autograd saved."""

    __slots__ = ("__weakref__", "block", "shape", "storage", "value", "version")

    def __init__(self, value: Tensor, block: BlockRun | None) -> None:
        self.value: Tensor | None = value
        self.version = version_of(value)
        self.shape = value.shape
        self.storage = storage_of(value)
        self.block = block


class _Filled(BaseException):
    """Ends a second run: all that the graph waits for is there. The model must not catch it."""


class BlockRun:
    """One run of a block: what it saved, and what it takes to run it again."""

    def __init__(self, tracer: Tracer, module: nn.Module) -> None:
        # not the view itself, which has tensors of the graph that this is a part of: such a ring
        # would never be freed
        self._view, self.module, self.path = weakref.ref(tracer), module, tracer.path
        self.saved: list[weakref.ref[SavedTensor]] = []
        self.storages: dict[Storage, int] = {}  # of what it saved: the bytes of each
        self.bytes = 0  # of these in all
        self.entering = 0  # bytes of what it was given
        self.droppable = False
        self.written: set[Storage] = set()  # storages that the run wrote into
        self._sources = [id(source) for source in tracer.entry_points.entered]
        modes = function_modes()
        index = next((i for i, mode in enumerate(modes) if mode is tracer), len(modes))
        self._modes = modes[index + 1 :]
        self._gradients = torch.is_grad_enabled()
        kind = tracer.entry_points.fields[0].device.type
        self._autocast = (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self._versions: list[int] = []

    def end(self, tracer: Tracer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes the arguments; the block can be run again unless it changes what it gets."""
        tensors = list(nested_tensors((args, kwargs)))
        self.droppable = (
            _is_plain((args, kwargs))
            and not hook_counts(self.module)[1]  # pre-hooks would be given what they gave
            and [id(source) for source in tracer.entry_points.entered] == self._sources
            and not any(storage_of(tensor) in self.written for tensor in tensors)
        )
        if self.droppable:
            self.args, self.kwargs = _copied(args), _copied(kwargs)
            self._versions = [version_of(tensor) for tensor in tensors]

    def drop(self, least: int = 0) -> None:
        """Gives the saved tensors up that are the block's alone, of so many bytes or more."""
        for saved in self._waiting():
            if saved.value is not None and saved.value.nbytes >= least:
                saved.value = None

    def _waiting(self) -> Iterator[SavedTensor]:
        """What the graph still holds of what the block saved, weights and arguments aside."""
        for reference in self.saved:
            saved = reference()
            if saved is not None and saved.storage in self.storages:
                yield saved

    @restores_state  # before torch's engine restores what it has changed itself
    def run_again(self) -> None:
        """Runs the block a second time, for the tensors that the graph still waits for."""
        tensors = nested_tensors((self.args, self.kwargs))
        if [version_of(tensor) for tensor in tensors] != self._versions:
            raise self._differs("its input was written into after it had run")
        count = 0
        # beyond the last that is waited for there is nothing to compute
        last = max(
            i
            for i, reference in enumerate(self.saved)
            if (saved := reference()) is not None and saved.value is None
        )

        def pack(tensor: Tensor) -> Tensor:
            nonlocal count
            saved = self.saved[count]() if count < len(self.saved) else None
            with without_function_modes():
                value = tensor.detach()
            if saved is not None and saved.value is None:
                if value.shape != saved.shape:
                    raise self._differs("its tensors have other shapes")
                saved.value, saved.version = value, version_of(value)
            count += 1
            if count > last:
                raise _Filled
            return value  # for gradients that are taken within the block

        tracer = self._view()
        assert tracer is not None, "the pass was closed before its backward pass"
        kind, enabled, dtype = self._autocast
        with suppress(_Filled), ExitStack() as stack:
            stack.enter_context(Scope(gradients=self._gradients, saved=pack))
            stack.enter_context(tracer.paused())
            stack.enter_context(tracer.second_run(self.path))
            for mode in self._modes:
                stack.enter_context(Scope(mode=mode))
            if enabled:
                stack.enter_context(torch.autocast(kind, dtype, enabled))
            self.module.forward(*self.args, **self.kwargs)
        if count <= last:
            raise self._differs("it made fewer calls")

    def _differs(self, reason: str) -> ModelError:
        return ModelError(
            f"{self.path[-1] or 'a block'} cannot be run a second time to save memory: {reason}.",
            "Explain a shorter input, or allow more memory with memory=.",
            command="Explain a shorter input.",
            page="Explain a shorter input.",
        )


class SavedTensors(Observer):
    """Receives what autograd saves, counts it, and drops that of blocks where it is too much.

    After a block it is known what the others of its container will save, since blocks repeat.
    `recompute` says whether blocks may be run a second time; `alone`, whether the pass is that of
    one sample, for which the bytes that are needed are counted to the end.
    """

    def __init__(
        self,
        model: nn.Module,
        allowed: float,
        device: torch.device,
        *,
        recompute: bool = True,
        alone: bool = True,
    ) -> None:
        self.allowed = allowed
        self.recomputes = False
        self._may_recompute, self._alone = recompute, alone
        self._device, self._before = device, memory_in_use(device)
        self._containers = repeated_blocks(model)
        self._rest = Counter(self._containers.values())  # blocks that have not run
        self._known = {storage_of(t) for t in (*model.parameters(), *model.buffers())}
        self._outside = 0  # bytes saved outside of blocks
        self._entering = 0  # bytes that blocks were given
        self._kept: list[BlockRun] = []
        self._largest = 0  # bytes of a block
        self._saved = 0
        self._block: BlockRun | None = None  # being run
        self._filled: weakref.ref[BlockRun] | None = None  # run again last
        self._counter: SavedBytes | None = None  # of the caller
        self._is_over = False
        self._scope = Scope(saved=self._pack, unpack=self._unpack)

    @contextmanager
    def forward_pass(self) -> Iterator[None]:
        """In which autograd hands over what it saves; raises at the end if that was too much."""
        outer = saved_tensors_pack()
        self._counter = outer if isinstance(outer, SavedBytes) else None
        try:
            with self._scope:
                yield
            if self._is_over:
                raise NotEnoughMemory(self._bytes + _WORKING * self._largest, self.allowed)
        finally:  # nodes of the graph have this object: it must have none of the graph
            self._saved = self._bytes
            self._kept.clear()
            self._block = None

    @property
    def largest_block(self) -> int:
        """The bytes that a block saved at most."""
        return self._largest

    @property
    def bytes(self) -> int:
        """What was saved when the pass ended, or when it was no longer counted."""
        return self._saved

    @property
    def _bytes(self) -> int:
        """What is saved by now."""
        running = 0 if self._block is None else self._block.bytes
        kept = sum(block.bytes for block in self._kept)
        return self._outside + self._entering + kept + running

    # Saved tensors

    def _pack(self, tensor: Tensor) -> SavedTensor:
        block = self._block
        with without_function_modes():
            if self._counter is not None:
                self._counter.count(tensor)
            saved = SavedTensor(tensor.detach(), block)
            storage = saved.storage
            known = storage in self._known or (block is not None and storage in block.storages)
            size = 0 if known else storage_bytes(tensor)
        if block is None:
            self._outside += size
            self._known.add(storage)
        else:
            block.saved.append(weakref.ref(saved))
            if not known:
                block.storages[storage] = size
                block.bytes += size
        if size and self._bytes > self.allowed:
            self._save_memory()
        if self._is_over and tensor.nbytes >= _SMALL:
            saved.value = None
        return saved

    def _save_memory(self) -> None:
        """Drops the blocks that have run; gives the pass up if that is not enough."""
        self._recompute()
        if self._bytes > self.allowed:
            self._is_over = True
            if self._block is not None:
                self._block.drop(_SMALL)
            if not self._alone:
                raise NotEnoughMemory(self._bytes, self.allowed)

    def _unpack(self, saved: SavedTensor) -> Tensor:
        if saved.value is None:
            block = saved.block
            if self._is_over or block is None:  # a gradient that the model itself takes
                raise NotEnoughMemory(self._bytes, self.allowed, at_least=True)
            before = None if self._filled is None else self._filled()
            if before is not None and before is not block:
                before.drop()  # the backward pass has left it
            self._filled = weakref.ref(block)
            self._trim()
            block.run_again()
        value = saved.value
        assert value is not None
        if version_of(value) != saved.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: a tensor of shape {tuple(saved.shape)}."
            )
        return value

    # Blocks

    def enter_module(
        self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        if self._block is None and id(module) in self._containers and self._scope.is_open:
            self._block = BlockRun(tracer, module)
        return args

    def leave_module(
        self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...], kwargs: Any, out: Any
    ) -> Any:
        if self._block is not None and self._block.module is module:
            self._leave_block(tracer, self._block, args, kwargs)
        return out

    def _leave_block(
        self, tracer: Tracer, block: BlockRun, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Decides what is kept of a block that has run."""
        block.end(tracer, args, kwargs)
        for tensor in nested_tensors((args, kwargs)):
            storage = storage_of(tensor)
            block.bytes -= block.storages.pop(storage, 0)  # it is there anyway
            if storage not in self._known and block.saved:
                self._known.add(storage)
                self._entering += storage_bytes(tensor)
                block.entering += storage_bytes(tensor)
        self._block = None
        self._largest = max(self._largest, block.bytes)
        self._kept.append(block)
        container = self._containers[id(block.module)]
        self._rest[container] = rest = max(0, self._rest[container] - 1)
        working = _WORKING * self._largest
        if self.recomputes or self._bytes + rest * block.bytes + working > self.allowed:
            self._recompute()
            dropped = self.recomputes and block.droppable
            needed: float = self._bytes + rest * (block.entering if dropped else block.bytes)
            needed += working + (block.bytes if dropped else 0)
            if needed > self.allowed:
                raise NotEnoughMemory(needed, self.allowed)
        elif self._counter is None:
            many = max(_MANY, 2 * self._rest.total())
            plenty = self._bytes + many * block.bytes + working < self.allowed
            if plenty and self._scope.is_innermost:  # closed, it would close those within
                self._scope.close()  # no need to count on

    def _recompute(self) -> None:
        if not self._may_recompute:
            return
        self.recomputes = True
        for block in self._kept:
            if block.droppable:
                block.drop()
        self._kept = [block for block in self._kept if not block.droppable]
        self._trim()

    def _trim(self) -> None:
        """Gives freed pages back to the system, which takes time, where memory is short."""
        if self._in_use() > self.allowed / 2:
            trim_heap(self._device)

    def _in_use(self) -> float:
        """The bytes that came into use since the pass began, as far as that is known."""
        in_use = memory_in_use(self._device)
        return 0.0 if in_use is None or self._before is None else in_use - self._before

    # Single calls

    def after_call(self, tracer: Tracer, call: TorchCall, out: Any) -> Any:
        """Notes what a call wrote into, and checks the memory in use after a large result."""
        if self._block is not None and call.args and _writes(call):
            self._block.written.update(map(storage_of, tensors_in(call.args[0])))
        if isinstance(out, Tensor) and out.nbytes >= _LARGE and self._in_use() > self.allowed:
            trim_heap(self._device)
            in_use = self._in_use()
            if in_use > self.allowed:
                raise NotEnoughMemory(in_use, self.allowed, at_least=True)
        return out


def _writes(call: TorchCall) -> bool:
    if call.entry is not None:  # every spelling is listed
        return call.in_place
    name = getattr(call.function, "__name__", "")
    return bool(call.get("inplace")) or (name.endswith("_") and not name.endswith("__"))


def nested_tensors(value: object) -> Iterator[Tensor]:
    """The tensors of a value, also those in lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from nested_tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from nested_tensors(item)


def _is_plain(value: object) -> bool:
    """Whether a value is made of tensors and numbers: no cache that a run writes into."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return isinstance(value, (Tensor, *_PLAIN))


def _copied(value: Any) -> Any:
    """The same tensors in lists and dictionaries of their own, which no one else changes."""
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return value
