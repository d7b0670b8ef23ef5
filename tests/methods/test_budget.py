"""The rows of a pass, from the bytes that autograd saves and those of gradients."""

import pytest
import torch
from torch import nn

from tests.methods.calling import of_tensor
from wherefrom.core.runner import ModelRunner
from wherefrom.core.target import Case
from wherefrom.methods import embedded_inputs
from wherefrom.methods.embedded_inputs import Budget

MIB = 2**20


def of_one_unit(samples, memory_mib=None):
    memory = None if memory_mib is None else memory_mib * MIB
    return Case(ModelRunner(nn.Identity(), memory=memory), of_tensor(torch.zeros(samples, 1, 1)))


def rows_after(memory_mib, kept_mib, rows, batch=1000):
    """The rows of the next pass if the first one, of `rows`, saved `kept_mib` MiB."""
    budget = Budget(of_one_unit(batch, memory_mib))
    with budget.measured(rows):
        x = torch.zeros(kept_mib * MIB // 4, requires_grad=True)
        x.square().sum().backward()  # keeps x once
    return budget.rows


def test_what_is_kept_counts_twice_for_the_gradients():
    assert rows_after(memory_mib=80, kept_mib=8, rows=4) == 20  # 2 MiB a row, 2 for gradients
    assert rows_after(memory_mib=40, kept_mib=8, rows=4) == 10
    assert rows_after(memory_mib=1, kept_mib=8, rows=1) == 1  # never none


def test_a_tensor_that_is_kept_twice_counts_once():
    budget = Budget(of_one_unit(1000, 80))
    with budget.measured(4):
        x = torch.zeros(2 * MIB, requires_grad=True)
        (x.square().sum() + (x * x.view(-1)).sum()).backward()
    assert budget.rows == 20


def test_only_the_first_pass_is_measured():
    budget = Budget(of_one_unit(1000, 80))
    for kept in (2 * MIB, MIB // 2):
        with budget.measured(4):
            torch.zeros(kept, requires_grad=True).square().sum().backward()
    assert budget.rows == 20


def test_by_default_two_fifths_of_what_is_free_on_the_device(monkeypatch):
    monkeypatch.setattr(embedded_inputs, "free_memory", lambda device: 5 * MIB)
    assert Budget(of_one_unit(1)).bytes == 2 * MIB


def test_items_that_do_not_fit_are_run_again_by_halves_and_memory_is_given_back(monkeypatch):
    released, sizes = [], []
    monkeypatch.setattr(embedded_inputs, "release_memory", released.append)
    budget = Budget(of_one_unit(8, 80), gradients=False)
    budget.limit(8)

    def run(rows):
        sizes.append(len(rows))
        if len(rows) > 2:
            raise MemoryError
        return [row * row for row in rows]

    found = [square for _, squares in budget.chunks(range(5), run) for square in squares]
    assert found == [0, 1, 4, 9, 16]
    assert sizes == [5, 2, 2, 1]
    assert [device.type for device in released] == ["cpu"]


def test_one_item_that_does_not_fit_is_an_error():
    def run(rows):
        raise MemoryError

    with pytest.raises(MemoryError):
        list(Budget(of_one_unit(1, 80)).chunks([0], run))
