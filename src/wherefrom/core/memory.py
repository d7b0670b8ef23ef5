"""Memory of a run: how much is allowed, free and in use."""

from __future__ import annotations

import ctypes
import gc
import re
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from wherefrom.errors import MethodError

Storage = weakref.ref[torch.UntypedStorage] | int

_SHARE = 0.9  # of the free memory; the rest is left to other allocations
_UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory", "Invalid buffer size")
_CGROUPS = (  # limit, usage, statistics, and the statistics' field for cached files
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
CGROUP = Path("/sys/fs/cgroup")


def parse_memory(memory: float | str | None) -> float | None:
    """Parses a limit in bytes.

    >>> parse_memory("1.5 GB"), parse_memory("2GiB"), parse_memory(10**9)
    (1500000000.0, 2147483648.0, 1000000000.0)
    """
    if memory is None:
        return None
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b)?\s*", memory, re.IGNORECASE)
        unit = None if match is None else _UNITS.get((match[2] or "B").upper())
        if match is None or unit is None:
            raise MethodError(f'memory must be bytes or a text such as "4GB", got "{memory}".')
        memory = float(match[1]) * unit
    if isinstance(memory, bool) or not isinstance(memory, (int, float)) or not memory > 0:
        raise MethodError(f"memory must be a positive number of bytes, got {memory}.")
    return float(memory)


def allowed_memory(limit: float | None, device: torch.device) -> float:
    """The bytes that a run may allocate: the limit, else 90 % of the free memory."""
    return limit if limit is not None else _SHARE * free_memory(device)


def free_memory(device: torch.device | None = None) -> float:
    """Free bytes of a GPU, or of the host within the limit of this process's control group."""
    if device is not None and device.type == "mps":
        limit = torch.mps.recommended_max_memory()
        return float(max(0, limit - torch.mps.driver_allocated_memory()))
    module = _accelerator(device)
    if module is not None:
        # memory that torch has reserved but does not use is free, too
        unused = module.memory_reserved(device) - module.memory_allocated(device)
        return float(module.mem_get_info(device)[0] + max(0, unused))
    return min(float(psutil.virtual_memory().available), _free_in_cgroup())


def _accelerator(device: torch.device | None) -> Any:
    """The torch module with memory statistics of this GPU (cuda, xpu); None for others."""
    if device is None or device.type == "cpu":
        return None
    module = getattr(torch, device.type, None)
    return module if hasattr(module, "mem_get_info") else None


def _free_in_cgroup() -> float:
    for limit_file, use_file, statistics, cached in _CGROUPS:
        limit, use = _number(CGROUP / limit_file), _number(CGROUP / use_file)
        if limit is not None and use is not None:
            # the system drops cached files when memory is short
            return max(0.0, limit - use + (_field(CGROUP / statistics, cached) or 0.0))
    return float("inf")


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _field(path: Path, name: str) -> float | None:
    """The number that follows a name at the start of a line."""
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            words = line.split()
            if len(words) > 1 and words[0] == name:
                return float(words[1])
    except (OSError, ValueError):
        pass
    return None


def memory_in_use(device: torch.device) -> float | None:
    """Bytes that this process uses on the device; None if unknown."""
    if device.type == "mps":
        return float(torch.mps.current_allocated_memory())
    if device.type != "cpu":
        module = _accelerator(device)
        return None if module is None else float(module.memory_allocated(device))
    return float(psutil.Process().memory_info().rss)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one of its causes, means that memory ran out."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, (MemoryError, torch.OutOfMemoryError)):
            return True
        if isinstance(link, RuntimeError) and any(text in str(link) for text in _MESSAGES):
            return True
        link = link.__cause__
    return False


@cache
def _trim() -> Callable[[int], int] | None:
    """The function of glibc that returns free pages of its heap to the system."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another allocator, another system
        return None


def trim_heap(device: torch.device) -> None:
    """Returns free pages to the system, since new tensors often do not fit the gaps of old ones."""
    trim = _trim() if device.type == "cpu" else None
    if trim is not None:
        trim(0)


def keep_heap() -> None:
    """Keeps freed memory for the next batch; only for our own processes (commands, workers).

    By default glibc returns large blocks to the system, and each batch pays for new pages.
    """
    try:
        option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another allocator, another system
        return
    for parameter, size in ((_MMAP_THRESHOLD, 32 * 2**20), (_TRIM_THRESHOLD, 2**30)):
        option(parameter, size)


def set_objects_aside() -> None:
    """Excludes all existing objects from garbage collection; only for our own processes.

    Modules and models live until the end anyway, and scanning them repeatedly takes time.
    """
    gc.collect()
    gc.freeze()


def release_memory(device: torch.device) -> None:
    """Frees unused memory, including reference cycles."""
    gc.collect()
    trim_heap(device)
    module = torch.mps if device.type == "mps" else _accelerator(device)
    if module is not None:
        module.empty_cache()


class SavedBytes:
    """Counts the bytes that autograd saves, each storage once; a hook on saved tensors."""

    def __init__(self) -> None:
        self.total = 0
        self._storages: set[Storage] = set()

    def __call__(self, tensor: Tensor) -> Tensor:
        self.count(tensor)
        return tensor.detach()  # a tensor that references its own node would never be freed

    def count(self, tensor: Tensor) -> int:
        """The bytes that this tensor adds."""
        storage = storage_of(tensor)
        size = 0 if storage in self._storages else storage_bytes(tensor)
        self._storages.add(storage)
        self.total += size
        return size


def storage_of(tensor: Tensor) -> Storage:
    """An identity of the tensor's storage, or of the tensor if it has none.

    An address would not do: a later storage can reuse it.
    """
    return weakref.ref(tensor.untyped_storage()) if _has_storage(tensor) else id(tensor)


def storage_bytes(tensor: Tensor) -> int:
    """The bytes that any view of this tensor keeps in use."""
    return tensor.untyped_storage().nbytes() if _has_storage(tensor) else 0


def _has_storage(tensor: Tensor) -> bool:
    """Whether a tensor is neither sparse nor a subclass that wraps other tensors."""
    return type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
