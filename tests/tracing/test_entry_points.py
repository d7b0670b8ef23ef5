"""Spans, sources, and the path from where the input enters to its first block."""

import pytest
import torch

from tests.helpers import exactly, normal
from wherefrom.errors import NoBlock
from wherefrom.tracing.catalogue import TorchCall
from wherefrom.tracing.observers.entry_points import EntryPoint, EntryPoints, Span
from wherefrom.tracing.observers.first_block import FirstBlock, PathState, PathToBlock
from wherefrom.tracing.tags import role_of

SPAN = Span(field=1, start=3, shift=2, width=4)  # units 3 to 6 in rows 2 to 5


def test_a_span_says_which_row_holds_a_unit():
    assert [SPAN.row_of(unit) for unit in range(9)] == [None, None, None, 2, 3, 4, 5, None, None]
    assert SPAN.behind(3) == Span(1, 3, 5, 4)
    assert (SPAN.stream, SPAN.behind(1).stream) == (3, 4)


def test_a_span_adds_rows_to_units_and_writes_units_into_rows():
    rows = torch.arange(14.0).reshape(2, 7)
    units = torch.full((2, 8), 100.0)
    added = SPAN.add_to(units, rows)
    assert added.tolist() == [[2, 3, 4, 5], [9, 10, 11, 12]]
    assert units[0].tolist() == [100, 100, 100, 102, 103, 104, 105, 100]
    written = SPAN.rows_of(torch.arange(16).reshape(2, 8), torch.full((2, 7), -1))
    assert written.tolist() == [[-1, -1, 3, 4, 5, 6, -1], [-1, -1, 11, 12, 13, 14, -1]]


def test_rows_that_end_before_the_span_does_hold_fewer_units():
    """A decoder's ids shifted right lose the last one."""
    units = torch.zeros(1, 8)
    assert SPAN.add_to(units, torch.ones(1, 5)).shape == (1, 3)
    assert units[0].tolist() == [0, 0, 0, 1, 1, 1, 0, 0]
    written = SPAN.rows_of(torch.arange(8)[None], torch.full((1, 5), -1))
    assert written.tolist() == [[-1, -1, 3, 4, 5]]


@pytest.mark.parametrize("places_first", [False, True])
def test_a_source_is_told_by_sample(places_first, rng):
    rows = normal(rng, 2, 3, 4)
    leaf = rows.transpose(0, 1) if places_first else rows
    exactly(EntryPoint(leaf, SPAN, places_first).by_sample(leaf, 2), rows)


def test_rows_of_all_samples_in_one_matrix_are_told_by_sample(rng):
    rows = normal(rng, 2, 3, 4)
    exactly(EntryPoint(rows.reshape(6, 4), SPAN).by_sample(rows.reshape(6, 4), 2), rows)


def states(*uses, alone=True, used=True):
    return PathState([], alone=alone, used=used, uses=list(uses))


def path(first):
    return PathToBlock(SPAN, 4, first)


def test_the_block_is_the_first_state_that_is_used_twice():
    later = states(states(), states())
    earlier = states(states(later), states())
    assert path(states(states(earlier))).block() is earlier


def test_a_use_that_comes_to_nothing_is_not_counted():
    later = states(states(), states())
    unused = states(used=False)
    assert path(states(unused, later)).block() is later
    assert path(states(unused)).block() is None


def test_a_state_that_is_mixed_with_another_ends_the_path():
    mixed = states(states(), states(), alone=False)
    assert path(states(mixed)).block() is None
    assert path(states()).block() is None


def test_a_model_without_a_block_is_refused_with_the_remedy(rng):
    x = normal(rng, 2, 3, 4)
    sources = EntryPoints([x], first_block=FirstBlock())
    sources.begin(sources.enter(x, sources.span_of(0)), sources.span_of(0))
    assert [path.rows for path in sources.first_block.followed] == [3]
    with pytest.raises(NoBlock, match='Read its input at="embeddings"'):
        sources.first_block.read(sources)


def join(sources, parts):
    sources.after_call(None, TorchCall(torch.cat, (parts, 1)), torch.cat(parts, 1))


def test_constant_rows_in_front_are_counted_once(rng):
    sources = EntryPoints([normal(rng, 2, 3, 4)])
    depends_on_input = normal(rng, 2, 3, 4).requires_grad_()
    token, registers = normal(rng, 2, 1, 4), normal(rng, 2, 2, 4)
    join(sources, [token, depends_on_input, registers])  # rows behind do not count
    assert sources.rows_ahead == {0: 1}
    with_token = torch.cat([token, depends_on_input], 1)
    join(sources, [with_token[:, :1], registers, with_token[:, 1:]])
    assert sources.rows_ahead == {0: 3}
    assert sources.span_in(0) is None  # nothing has entered yet
    sources.enter(depends_on_input, sources.span_of(0))
    assert sources.span_in(0) == Span(0, 0, 3, 3)
    assert sources.span_in(1) is None


def test_two_fields_have_units_one_after_the_other():
    sources = EntryPoints([torch.ones(2, 3).long(), torch.ones(2, 5).long()])
    assert (sources.batch, sources.length, sources.units) == (2, 3, 8)
    assert [sources.span_of(i) for i in (0, 1)] == [Span(0, 0, 0, 3), Span(1, 3, 0, 5)]


def test_relevance_is_that_of_units_other_rows_and_biases(rng):
    sources = EntryPoints([normal(rng, 2, 3, 4)])
    leaf, gradient, bias = normal(rng, 2, 5, 4), normal(rng, 2, 5, 4), normal(rng, 4)
    sources.entered = [EntryPoint(leaf, Span(0, 0, 1, 3), bias=bias)]
    relevance = sources.relevance([gradient])
    products = leaf * gradient
    exactly(relevance.units, products[:, 1:4].sum(-1))
    exactly(relevance.others, products[:, [0, 4]].sum((1, 2)))
    exactly(relevance.biases, (gradient @ bias)[:, 1:4])
    exactly(relevance.summed, products.abs()[:, 1:4].sum(-1))


# Which lookups are on the input's ids.


def looked_up(ids, own, **options):
    """The entry points after a lookup, and its table."""
    sources, weight, _ = lookup(ids, own, **options)
    return sources, weight


def lookup(ids, own, **options):
    """The entry points, the table, and the rows that the model gets."""
    sources = EntryPoints([own], **options)
    marked = own if ids is None else sources.fields[0].new_tensor(ids.tolist())
    marked.wherefrom_tag = own.wherefrom_tag
    weight = torch.randn(20, 4)
    return sources, weight, sources.lookup(marked, weight, weight[marked])


def test_a_lookup_on_the_ids_with_padding_behind_widens_the_extent():
    own = torch.tensor([[5, 6, 7], [8, 9, 1]])
    padded = torch.nn.functional.pad(own, (0, 2))
    sources, _ = looked_up(padded, own)
    assert sources.entered[0].span == Span(0, 0, 0, 3)
    assert (sources.length, sources.extent) == (3, 5)


def test_a_lookup_on_the_ids_in_one_row_or_turned_is_one_of_the_input():
    own = torch.tensor([[5, 6, 7], [8, 9, 1]])
    sources, _ = looked_up(own.reshape(-1), own)
    assert not sources.entered[0].places_first
    assert sources.entered[0].by_sample(sources.entered[0].leaf, 2).shape == (2, 3, 4)
    sources, _ = looked_up(own.T.contiguous(), own)
    assert sources.entered[0].places_first
    assert sources.entered[0].by_sample(sources.entered[0].leaf, 2).shape == (2, 3, 4)


def test_a_second_lookup_moved_to_the_right_is_a_stream_of_its_own():
    own = torch.tensor([[5, 6, 7], [8, 9, 1]])
    sources, weight = looked_up(None, own)
    moved = torch.tensor([[2, 5, 6], [2, 8, 9]])
    sources.lookup(moved, weight, weight[moved])
    assert [source.span for source in sources.entered] == [Span(0, 0, 0, 3), Span(0, 0, 1, 3)]
    other = torch.randn(20, 4)
    sources.lookup(moved, other, other[moved])  # of another table: not the input's
    assert len(sources.entered) == 2


@pytest.mark.parametrize(
    "laid_out",
    [lambda t: t, lambda t: t.flatten(0, 1), lambda t: t.transpose(0, 1)],
    ids=["rows", "one row", "turned"],
)
def test_what_enters_is_changed_by_sample_whatever_its_layout(laid_out):
    own, change = torch.tensor([[5, 6, 7], [8, 9, 1]]), torch.arange(6.0).reshape(2, 3, 1)
    entered = []

    def changed(entering):
        entered.append(entering)
        return entering.rows + change

    _, weight, rows = lookup(laid_out(own), own, change=changed)
    exactly(entered[0].rows, weight[own])
    assert entered[0].table is weight
    exactly(rows.detach(), laid_out(weight[own] + change))


def test_rows_of_all_samples_in_one_matrix_can_enter_the_first_block():
    own = torch.tensor([[5, 6, 7], [8, 9, 1]])
    block = FirstBlock()
    sources, weight, rows = lookup(own.reshape(-1), own, first_block=block)
    in_block, around = rows * 2, rows * 3
    for result in (in_block, around):
        block.follow(sources, [rows], result)
    block.follow(sources, [in_block, around], in_block + around)
    assert block.read(sources) == [()]
    (source,) = sources.entered
    assert source.leaf is rows
    exactly(source.by_sample(source.leaf.detach(), 2), weight[own])


@pytest.mark.parametrize(
    ("ids", "role"),
    [
        ([[0]], "position"),  # of an input of one unit
        ([[0, 1]], "position"),
        ([[2, 3, 4, 5, 6], [2, 3, 1, 1, 1]], "position"),  # with padding behind
        ([[0, 0]], "type"),
        ([[0, 0, 1, 1]], "type"),
    ],
)
def test_other_lookups_are_of_positions_or_of_types(ids, role):
    sources = EntryPoints([torch.tensor([[5, 6]])])
    weight = torch.randn(20, 4)
    ids = torch.tensor(ids)
    assert role_of(sources.lookup(ids, weight, weight[ids])) == role
    assert not sources.entered


def test_an_empty_tensor_of_one_axis_is_no_row_in_front():
    """torch.cat accepts it with tensors of any shape."""
    sources = EntryPoints([torch.arange(4)[None]])
    rows = torch.ones(1, 4, 3, requires_grad=True)
    join(sources, [torch.empty(0), torch.ones(1, 2, 3), rows])
    assert sources.rows_ahead == {0: 2}
