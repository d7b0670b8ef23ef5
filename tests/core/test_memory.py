"""How much memory may be used: limits as texts, what is free, and errors that say it is short."""

import gc
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch

from wherefrom import Explainer
from wherefrom.core import memory
from wherefrom.core.memory import (
    SavedBytes,
    allowed_memory,
    free_memory,
    is_out_of_memory,
    memory_in_use,
    parse_memory,
    release_memory,
    set_objects_aside,
)
from wherefrom.errors import MethodError, ModelError, NotEnoughMemory, readable_bytes


class Host(NamedTuple):
    available: int


CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GB = 10**9
FREE = 5_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4GB", 4e9), ("4 gb", 4e9), ("1.5GiB", 1.5 * 2**30), ("200MB", 2e8), ("10kb", 1e4),
        ("1TB", 1e12), ("3KiB", 3 * 2**10), ("3 MiB", 3 * 2**20), ("2tib", 2 * 2**40),
        ("512", 512.0), ("7B", 7.0), (123, 123.0), (1.5e9, 1.5e9), (None, None),
    ],
)  # fmt: skip
def test_a_limit_is_bytes_or_a_text(text, expected):
    assert parse_memory(text) == expected


@pytest.mark.parametrize(
    "wrong", [0, -1, "0GB", "-1GB", "much", "4 G", "4GBs", "", True, float("nan")]
)
def test_a_wrong_limit_is_refused_with_its_value(wrong, bert):
    with pytest.raises(MethodError, match="memory must be") as caught:
        Explainer(bert)([2, 5, 9, 3], memory=wrong)
    assert str(wrong) in str(caught.value) or wrong == "0GB"


def test_a_limit_goes_before_what_is_free(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 10 * GB)
    assert allowed_memory(None, CPU) == 9 * GB
    assert allowed_memory(3.0, CPU) == 3.0


def system(tmp_path, monkeypatch, files):
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: Host(FREE))
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "cgroup")


def test_what_is_free_on_the_host(tmp_path, monkeypatch):
    system(tmp_path, monkeypatch, {})
    assert free_memory() == free_memory(CPU) == FREE


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.max": "max", "memory.current": "70000"}, FREE),
        ({"memory.max": "100000", "memory.current": "70000"}, 30000),
        (
            {
                "memory.max": "100000",
                "memory.current": "70000",
                "memory.stat": "anon 1\ninactive_file 20000\n",
            },
            50000,
        ),
        (
            {
                "memory/memory.limit_in_bytes": "100000",
                "memory/memory.usage_in_bytes": "90000",
                "memory/memory.stat": "total_inactive_file 1000\n",
            },
            11000,
        ),
        ({"memory.max": "1000", "memory.current": "7000"}, 0),
    ],
)
def test_a_control_group_limits_it(files, expected, tmp_path, monkeypatch):
    group = {f"cgroup/{name}": content for name, content in files.items()}
    system(tmp_path, monkeypatch, group)
    assert free_memory() == expected


def test_what_is_free_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * GB, 8 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2 * GB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1 * GB)
    assert free_memory(CUDA) == 4 * GB
    assert memory_in_use(CUDA) == GB


def test_memory_in_use_grows_with_a_tensor():
    release_memory(CPU)  # or what earlier tests left is used for it
    before = memory_in_use(CPU)
    if before is None:
        pytest.skip("this system does not say how much memory a process uses")
    tensor = torch.ones(50_000_000, dtype=torch.uint8)
    assert memory_in_use(CPU) - before > 0.8 * tensor.nbytes


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory."),
        NotEnoughMemory(2, 1),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory"
        ),
        RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
    ],
)
def test_errors_of_memory_are_known(error):
    assert is_out_of_memory(error)
    wrapped = ModelError("cannot be run")
    wrapped.__cause__ = error
    assert is_out_of_memory(wrapped)


def test_other_errors_are_not():
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    assert not is_out_of_memory(ValueError("can't allocate memory"))


def test_an_error_names_both_amounts_and_what_to_do():
    error = NotEnoughMemory(3.44e9, 1e9, what="lrp on one input of 8,192 words")
    assert str(error) == (
        "lrp on one input of 8,192 words needs about 3.44 GB of memory, and 1 GB may be used. "
        "Explain a shorter input, load the model in a smaller dtype, or allow more with "
        'memory="3.8GB".'
    )
    assert (error.needed, error.allowed) == (3.44e9, 1e9)
    assert "more than 2 GB" in str(NotEnoughMemory(2e9, 2e9, at_least=True))
    assert readable_bytes(999) == "999 bytes"


class Allocates(torch.nn.Module):
    """Fails as torch does on a host without memory, for more than so many samples."""

    def __init__(self, most, error):
        super().__init__()
        self.linear, self.most, self.error = torch.nn.Linear(3, 2), most, error
        self.sizes = []

    def forward(self, x):
        self.sizes.append(len(x))
        if len(x) > self.most:
            raise self.error
        return self.linear(x).mean(1)


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("lrp", torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")),
        ("occlusion", RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes.")),
        ("gradient", MemoryError()),
        ("captum:Saliency", MemoryError()),
    ],
)
def test_an_error_of_the_allocator_splits_the_batch(method, error):
    if method.startswith("captum"):
        pytest.importorskip("captum")
    x = torch.linspace(-1, 1, 60).reshape(5, 4, 3)
    model = Allocates(99, error)
    expected = Explainer(model)(x, method, target=1)
    model.most, model.sizes = 2, []
    actual = Explainer(model)(x, method, target=1)
    assert model.sizes[:2] == [5, 2]
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one.scores, other.scores)
    model.most = 0
    with pytest.raises(NotEnoughMemory, match=r"on one input of 4 .* may be used") as caught:
        Explainer(model)(x, method, target=1)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_memory_is_that_of_the_device_in_use(kind, monkeypatch):
    numbers = {"memory_reserved": 700, "memory_allocated": 500}
    for name, value in numbers.items():
        monkeypatch.setattr(
            getattr(torch, kind), name, lambda device, value=value: value, raising=False
        )
    monkeypatch.setattr(
        getattr(torch, kind), "mem_get_info", lambda device: (3000, 9000), raising=False
    )
    device = torch.device(kind)
    assert memory.free_memory(device) == 3200
    assert memory.memory_in_use(device) == 500
    assert memory.allowed_memory(None, device) == pytest.approx(0.9 * 3200)


def test_memory_of_apple_devices_is_asked_for_there(monkeypatch):
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 900, raising=False)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 300)
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 200)
    device = torch.device("mps")
    assert memory.free_memory(device) == 600
    assert memory.memory_in_use(device) == 200


def test_a_storage_is_told_from_the_next_that_lies_at_its_address():
    count, first = SavedBytes(), torch.zeros(1000)
    places = {first.data_ptr()}
    assert count.count(first) == count.count(first[3:]) + 4000 == 4000
    del first
    again = False
    for _ in range(20):
        later = torch.zeros(1000)
        again |= later.data_ptr() in places
        places.add(later.data_ptr())
        assert count.count(later) == 4000
        del later
    assert again  # the allocator gives the same address out once more


_BATCHES = """
import resource, torch
from wherefrom.core.memory import keep_heap
def faults():
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        [torch.ones(2**20) for _ in range(40)]  # 160 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
freed = faults()
keep_heap()
print(4 * faults() < freed)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc")
def test_a_command_keeps_freed_memory_for_the_next_batch():
    run = [sys.executable, "-c", _BATCHES]
    assert subprocess.check_output(run, text=True) == "True\n"


def test_imports_are_left_out_of_collections_and_what_comes_later_is_not():
    def is_collected(thing):
        return any(entry is thing for entry in gc.get_objects())

    gc.unfreeze()
    assert is_collected(vars(torch))
    set_objects_aside()
    later = [CPU]
    assert not is_collected(vars(torch))
    assert is_collected(later)
