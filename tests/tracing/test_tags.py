"""Sums by sample, and the samples of joined and stacked tensors."""

import pytest
import torch

from tests.helpers import exactly, normal
from wherefrom.tracing.catalogue import TorchCall
from wherefrom.tracing.tag_propagation import propagate, samples_after
from wherefrom.tracing.tags import NO_TAG, Samples, Tag, like, mark, role_of, set_tag, tag_of

IDS = torch.tensor([1, 0, 1, 2, 0])


def test_totals_are_the_sums_of_each_sample_along_any_axis(rng):
    values = normal(rng, 3, 5, 2)
    totals = Samples(1, IDS).totals(values, 4)
    expected = [sum(float(values[:, r].sum()) for r in range(5) if IDS[r] == i) for i in range(4)]
    exactly(totals, expected)


def test_a_number_for_each_sample_is_spread_along_its_axis():
    values = torch.tensor([10.0, 20.0, 30.0])
    spread = Samples(1, IDS).spread(values, (3, 5, 2))
    assert spread.shape == (1, 5, 1)
    assert spread.flatten().tolist() == [20, 10, 20, 30, 10]


def test_rows_are_put_together_by_sample_in_their_order():
    values = torch.arange(12.0).reshape(2, 6)
    samples = Samples(1, torch.tensor([1, 0, 1, 0, 2, 2]))
    rows = samples.by_sample(values, 3)
    assert rows.tolist() == [[1, 7, 3, 9], [0, 6, 2, 8], [4, 10, 5, 11]]
    plain = Samples(0, torch.arange(2)).by_sample(values, 2)
    assert plain.tolist() == values.tolist()


def test_as_many_rows_as_samples_in_another_order_are_put_in_order():
    rows = Samples(0, torch.tensor([2, 0, 1])).by_sample(torch.tensor([[7.0], [8.0], [9.0]]), 3)
    assert rows.flatten().tolist() == [8, 9, 7]


@pytest.mark.parametrize("ids", [[0, 0, 1], [0, 0], [1, 1], [0, 1, 1, -1]])
def test_samples_of_several_sizes_have_no_rows(ids):
    assert Samples(0, torch.tensor(ids)).by_sample(torch.ones(len(ids), 2), 2) is None


def tagged(tensor, axis, ids):
    return set_tag(tensor, Tag(samples=Samples(axis, torch.tensor(ids))))


def after(function, *args, **kwargs):
    """The samples of a call's result, told from its first tagged tensor."""
    call = TorchCall(function, args, kwargs)
    source = next(t for t in call.tensors() if tag_of(t).samples is not None)
    samples = samples_after(call, source, tag_of(source).samples, call.run())
    return samples and (samples.axis, samples.ids.tolist())


def test_joined_rows_keep_the_samples_of_each_part():
    a, b = tagged(torch.ones(2, 3), 0, [0, 1]), tagged(torch.ones(1, 3), 0, [1])
    assert after(torch.cat, [a, b]) == (0, [0, 1, 1])
    assert after(torch.cat, [a, b], dim=-2) == (0, [0, 1, 1])
    assert after(torch.cat, [a, torch.ones(2, 1)], 1) == (0, [0, 1])
    assert after(torch.cat, [a, torch.ones(1, 3)]) is None  # rows of no known sample
    assert after(torch.cat, [a, tagged(torch.ones(2, 3), 1, [0, 1, 2])]) is None
    assert after(torch.hstack, [a, a]) is None


def test_a_stack_moves_the_axis_of_samples_behind_its_own():
    a = tagged(torch.ones(2, 3), 0, [0, 1])
    assert after(torch.stack, [a, a]) == (1, [0, 1])
    assert after(torch.stack, [a, a], 1) == (0, [0, 1])
    assert after(torch.stack, [a, a], -1) == (0, [0, 1])


def test_samples_that_were_taken_apart_are_stacked_again():
    parts = [tagged(torch.ones(2, 3), 0, [i, i]) for i in (2, 0, 1)]
    assert after(torch.stack, parts) == (0, [2, 0, 1])
    assert after(torch.stack, parts, dim=2) == (2, [2, 0, 1])
    parts[1] = torch.ones(2, 3)  # one that is not known
    assert after(torch.stack, parts) == (1, [2, 2])


def test_rows_written_by_index_bring_their_samples():
    blank, rows = torch.zeros(4, 2), tagged(torch.ones(2, 2), 0, [1, 0])
    index = torch.tensor([3, 1])
    call = TorchCall(torch.index_add, (blank, 0, index, rows))
    samples = samples_after(call, rows, tag_of(rows).samples, call.run())
    assert (samples.axis, samples.ids.tolist()) == (0, [-1, 0, -1, 1])
    before = tagged(torch.zeros(4, 2), 0, [5, 5, 5, 5])
    assert after(torch.index_add, before, 0, index, rows) == (0, [5, 0, 5, 1])


def test_a_view_in_another_number_type_keeps_the_samples_in_front_of_it():
    rows = tagged(torch.ones(2, 3, 4), 0, [1, 0])
    assert after(torch.Tensor.view, rows, torch.complex64) == (0, [1, 0])  # (2, 3, 2)
    columns = tagged(torch.ones(2, 3, 4), 2, [0, 1, 2, 3])
    assert after(torch.Tensor.view, columns, torch.complex64) is None


def test_a_meaning_is_kept_where_all_that_is_live_has_it():
    weights = mark(torch.ones(2, 2, requires_grad=True), "softmax")
    plain = torch.ones(2, 2, requires_grad=True)
    for other, role in ((weights, "softmax"), (plain, ""), (torch.ones(2, 2), "softmax")):
        out = weights * other
        propagate(TorchCall(torch.mul, (weights, other)), out)
        assert role_of(out) == role
    product = weights @ torch.ones(2, 2)
    propagate(TorchCall(torch.matmul, (weights, torch.ones(2, 2))), product)
    assert role_of(product) == ""  # values that were mixed are no weights


def test_a_tag_is_read_written_and_copied():
    tensor, other = torch.ones(2), torch.ones(2)
    assert tag_of(tensor) is NO_TAG
    mark([tensor, (other,)], "gate")
    assert role_of(tensor) == role_of(other) == "gate"
    set_tag(tensor, Tag(stream=3))
    assert tag_of(like(other, tensor)) == Tag(stream=3)
    assert tag_of(mark(other, "exp")) == Tag("exp", 3)  # the stream stays


def test_rows_of_no_sample_count_for_none(rng):
    values = normal(rng, 4, 2)
    samples = Samples(0, torch.tensor([-1, 1, -1, 0]))
    exactly(samples.totals(values, 2), [values[3].sum(), values[1].sum()])
    assert samples.spread(torch.tensor([10.0, 20.0]), (4, 2)).flatten().tolist() == [0, 20, 0, 10]
