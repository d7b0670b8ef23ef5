"""Limits the memory of a pass: drops what autograd saved in blocks and runs them a second time.

A block whose saved tensors were dropped runs again when the backward pass reaches it. The graph of
the first run stays, so hooks on its nodes, and with them the ledger, act once; the second run only
restores the saved values.
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

_WORKING = 2.0  # memory for results and gradients in use, in multiples of the largest block
_MANY = 64  # counting stops once memory suffices for this many more blocks
_SMALL = 1 << 20  # bytes; smaller tensors are never dropped
_LARGE = 1 << 25  # bytes; after a larger result the memory in use is checked
_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
_PLAIN = (type(None), bool, int, float, complex, str, slice, torch.dtype, torch.device)


def repeated_blocks(model: nn.Module) -> dict[int, int]:
    """The repeated blocks of a model by id, each with the number of its container.

    A block has submodules and is in a list with others of its class. Blocks within blocks do not
    count. A list of one block counts if there is no other: some models share one layer's weights.
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
    """What the graph holds in place of a tensor that autograd saved."""

    __slots__ = ("__weakref__", "block", "shape", "storage", "value", "version")

    def __init__(self, value: Tensor, block: BlockRun | None) -> None:
        self.value: Tensor | None = value
        self.version = version_of(value)
        self.shape = value.shape
        self.storage = storage_of(value)
        self.block = block


class _Filled(BaseException):
    """Ends a second run once all dropped tensors are restored. The model must not catch it."""


class BlockRun:
    """One run of a block: what it saved, and the arguments and state for a second run."""

    def __init__(self, tracer: Tracer, module: nn.Module) -> None:
        # the tracer refers to tensors of the graph, which refers to this object: a strong reference
        # would be a cycle that is never freed
        self._tracer, self.module, self.path = weakref.ref(tracer), module, tracer.path
        self.saved: list[weakref.ref[SavedTensor]] = []
        self.storages: dict[Storage, int] = {}  # of saved tensors: the bytes of each
        self.bytes = 0  # in total
        self.entering = 0  # bytes of its arguments
        self.droppable = False
        self.written: set[Storage] = set()  # storages that its calls wrote into
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
        """Records the arguments; a block that writes into them cannot run again."""
        tensors = list(nested_tensors((args, kwargs)))
        self.droppable = (
            _is_plain((args, kwargs))
            and not hook_counts(self.module)[1]  # pre-hooks would see their own results
            and [id(source) for source in tracer.entry_points.entered] == self._sources
            and not any(storage_of(tensor) in self.written for tensor in tensors)
        )
        if self.droppable:
            self.args, self.kwargs = _copied(args), _copied(kwargs)
            self._versions = [version_of(tensor) for tensor in tensors]

    def drop(self, least: int = 0) -> None:
        """Drops the block's own saved tensors of at least `least` bytes."""
        for saved in self._waiting():
            if saved.value is not None and saved.value.nbytes >= least:
                saved.value = None

    def _waiting(self) -> Iterator[SavedTensor]:
        """The block's saved tensors that the graph still holds, without weights and arguments."""
        for reference in self.saved:
            saved = reference()
            if saved is not None and saved.storage in self.storages:
                yield saved

    @restores_state  # before torch's engine restores what it has changed itself
    def run_again(self) -> None:
        """Runs the block a second time to restore the tensors that the graph still holds."""
        tensors = nested_tensors((self.args, self.kwargs))
        if [version_of(tensor) for tensor in tensors] != self._versions:
            raise self._differs("its input was overwritten after it ran")
        count = 0
        # after the last dropped tensor there is nothing to compute
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
            return value  # for gradients that the block itself takes

        tracer = self._tracer()
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
    """Receives what autograd saves, counts the bytes, and drops blocks if they exceed the limit.

    Blocks repeat, so the first one tells what the others of its container will save. `recompute`:
    blocks may run a second time. `alone`: the pass has one sample; all bytes that it needs are
    counted, for the error message.
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
        self._rest = Counter(self._containers.values())  # blocks still to run
        self._known = {storage_of(t) for t in (*model.parameters(), *model.buffers())}
        self._outside = 0  # bytes saved outside blocks
        self._entering = 0  # bytes of arguments of blocks
        self._kept: list[BlockRun] = []
        self._largest = 0  # bytes of a block
        self._saved = 0
        self._block: BlockRun | None = None  # the running one
        self._filled: weakref.ref[BlockRun] | None = None  # the last one that ran again
        self._counter: SavedBytes | None = None  # set by the caller
        self._is_over = False
        self._scope = Scope(saved=self._pack, unpack=self._unpack)

    @contextmanager
    def forward_pass(self) -> Iterator[None]:
        """A context that receives what autograd saves; raises at its end if that was too much."""
        outer = saved_tensors_pack()
        self._counter = outer if isinstance(outer, SavedBytes) else None
        try:
            with self._scope:
                yield
            if self._is_over:
                raise NotEnoughMemory(self._bytes + _WORKING * self._largest, self.allowed)
        finally:  # nodes of the graph refer to this object, so it must not refer to them
            self._saved = self._bytes
            self._kept.clear()
            self._block = None

    @property
    def largest_block(self) -> int:
        """The bytes that the largest block saved."""
        return self._largest

    @property
    def bytes(self) -> int:
        """The bytes saved when the pass ended or counting stopped."""
        return self._saved

    @property
    def _bytes(self) -> int:
        """The bytes saved so far."""
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
        """Drops finished blocks; stops the pass if that is not enough."""
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
            if self._is_over or block is None:  # the model itself takes a gradient
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
        """Decides what to keep of a finished block."""
        block.end(tracer, args, kwargs)
        for tensor in nested_tensors((args, kwargs)):
            storage = storage_of(tensor)
            block.bytes -= block.storages.pop(storage, 0)  # it exists anyway
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
            if plenty and self._scope.is_innermost:  # closing it would close scopes within
                self._scope.close()  # no need to count further

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
        """Returns freed pages to the system if memory is short, since this takes time."""
        if self._in_use() > self.allowed / 2:
            trim_heap(self._device)

    def _in_use(self) -> float:
        """The bytes in use since the pass began; 0 if unknown."""
        in_use = memory_in_use(self._device)
        return 0.0 if in_use is None or self._before is None else in_use - self._before

    # Single calls

    def after_call(self, tracer: Tracer, call: TorchCall, out: Any) -> Any:
        """Records what a call writes into, and checks the memory in use after a large result."""
        if self._block is not None and call.args and _writes(call):
            self._block.written.update(map(storage_of, tensors_in(call.args[0])))
        if isinstance(out, Tensor) and out.nbytes >= _LARGE and self._in_use() > self.allowed:
            trim_heap(self._device)
            in_use = self._in_use()
            if in_use > self.allowed:
                raise NotEnoughMemory(in_use, self.allowed, at_least=True)
        return out


def _writes(call: TorchCall) -> bool:
    if call.entry is not None:  # the catalogue lists every spelling
        return call.in_place
    name = getattr(call.function, "__name__", "")
    return bool(call.get("inplace")) or (name.endswith("_") and not name.endswith("__"))


def nested_tensors(value: object) -> Iterator[Tensor]:
    """The tensors of a value, including those in lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from nested_tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from nested_tensors(item)


def _is_plain(value: object) -> bool:
    """Whether a value consists of tensors and plain values, so no cache that a run changes."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return isinstance(value, (Tensor, *_PLAIN))


def _copied(value: Any) -> Any:
    """A copy of lists and dictionaries with the same tensors."""
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return value
