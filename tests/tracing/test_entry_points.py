"""Spans, sources, and the path from where the input enters to its first block."""

import pytest
import torch

from tests.helpers import exactly, normal
from wherefrom.core.runner import RowsUnclear
from wherefrom.errors import NoBlock
from wherefrom.tracing.catalogue import TorchCall
from wherefrom.tracing.observers.entry_points import EntryPoint, EntryPoints, Span
from wherefrom.tracing.observers.first_block import FirstBlock, PathState, PathToBlock
from wherefrom.tracing.tags import role_of
from wherefrom.tracing.tracer import Tracer

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


def entering(own, laid_out, **options):
    """The entry points, the ids as the model lays them out, and its table."""
    sources = EntryPoints([own], **options)
    (ids,) = sources.fields
    with Tracer({}, sources):
        ids = laid_out(ids)
    return sources, ids, torch.randn(20, 4)


OWN = torch.tensor([[5, 6, 7], [8, 9, 1]])


def span_after(laid_out, own=OWN):
    """The span of the rows of a lookup, and the entry points."""
    sources, ids, table = entering(own.clone(), laid_out)
    sources.lookup(ids, table, table[ids])
    (source,) = sources.entered
    return source.span, sources


def test_a_lookup_on_the_ids_with_padding_behind_widens_the_extent():
    span, sources = span_after(lambda ids: torch.nn.functional.pad(ids, (0, 2)))
    assert span == Span(0, 0, 0, 3)
    assert (sources.length, sources.extent) == (3, 5)


@pytest.mark.parametrize("own", [OWN, OWN[:, :2]], ids=["wide", "square"])
def test_a_lookup_on_the_ids_in_one_row_or_turned_is_one_of_the_input(own):
    for laid_out, turned in ((torch.ravel, False), (lambda ids: ids.T.contiguous(), True)):
        span, sources = span_after(laid_out, own)
        (source,) = sources.entered
        assert (span, source.places_first) == (Span(0, 0, 0, own.shape[1]), turned)
        assert source.by_sample(source.leaf, 2).shape == (*own.shape, 4)


def shifted(ids):
    """As a decoder reads its ids: a start token, and all but the last id."""
    moved = ids.new_full(ids.shape, 2)
    moved[:, 1:] = ids[:, :-1].clone()
    moved[:, 0] = 3
    return moved


ORDERS = {  # how a model lays its ids out, and the unit of each row
    "shifted": (shifted, [-1, 0, 1]),
    "joined": (lambda ids: torch.cat([ids.new_ones(2, 1), ids[:, :-1]], 1), [-1, 0, 1]),
    "padded": (lambda ids: torch.nn.functional.pad(ids[:, :-1], (1, 0), value=4), [-1, 0, 1]),
    "a copied slice": (lambda ids: ids[:, 1:].clone(), [1, 2]),
    "masked": (lambda ids: ids.masked_fill(ids > 6, 0), [0, 1, 2]),
    "chosen": (lambda ids: torch.where(ids > 6, ids.new_zeros(()), ids), [0, 1, 2]),
    "backwards": (lambda ids: ids.flip(1), [2, 1, 0]),
    "rolled": (lambda ids: ids.roll(1, 1), [2, 0, 1]),
    "gathered": (lambda ids: ids.gather(1, torch.tensor([[2, 0], [2, 0]])), [2, 0]),
    "every second": (lambda ids: ids[:, ::2], [0, 2]),
    "repeated": (lambda ids: ids.repeat_interleave(2, 1), [0, 0, 1, 1, 2, 2]),
    "stacked": (lambda ids: torch.stack([ids, ids + 1], -1), [0, 0, 1, 1, 2, 2]),
    "pairs": (lambda ids: ids[:, 1:] + ids[:, :-1] % 5, [1, 2]),
    "hashed": (lambda ids: torch.bitwise_xor(ids * 3, ids % 4).remainder(11), [0, 1, 2]),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("own", [OWN, torch.full((2, 3), 7)], ids=["distinct", "equal"])
def test_rows_belong_to_the_units_that_their_ids_were_made_of(order, own):
    laid_out, units = ORDERS[order]
    span, _ = span_after(laid_out, own)
    rows = torch.tensor([[10.0**row for row in range(len(units))]] * 2)
    expected = torch.zeros(2, 3)
    for row, unit in enumerate(units):
        if unit >= 0:
            expected[:, unit] += 10.0**row
            assert span.row_of(unit) == units.index(unit)
    totals = torch.zeros(2, 3)
    span.add_to(totals, rows)
    exactly(totals, expected)
    written = span.rows_of(torch.tensor([[7, 8, 9]] * 2), torch.full((2, len(units)), -1))
    assert written.tolist() == [[-1 if unit < 0 else 7 + unit for unit in units]] * 2
    ahead = span.behind(2).rows_of(torch.ones(2, 3), torch.zeros(2, 2 + len(units)))
    assert ahead[0].tolist() == [0, 0, *(float(unit >= 0) for unit in units)]
    assert (span.stream < 0) == (order in ("backwards", "rolled", "gathered", "every second"))


def counted(ids):
    """A number at the place of each id."""
    table = torch.zeros(2, 10, dtype=torch.long)
    table[torch.arange(2)[:, None], ids] = torch.ones(2, 3, dtype=torch.long)
    return table


@pytest.mark.parametrize(
    "made",
    [torch.zeros_like, lambda ids: ids.new_ones(2, 3), lambda ids: (ids > 6).long(), counted],
)
def test_numbers_of_the_shape_of_ids_are_no_units(made):
    sources, ids, table = entering(OWN.clone(), made)
    sources.lookup(ids, table, table[ids])
    assert not sources.entered


def test_samples_whose_ids_are_in_different_orders_run_alone():
    sources, ids, table = entering(OWN.clone(), lambda ids: ids.sort(1)[0])
    with pytest.raises(RowsUnclear, match="several orders"):
        sources.lookup(ids, table, table[ids])
    span, _ = span_after(lambda ids: ids.sort(1)[0], OWN[1:])
    assert span.order == (2, 0, 1)


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

    sources, ids, weight = entering(own, laid_out, change=changed)
    rows = sources.lookup(ids, weight, weight[ids])
    exactly(entered[0].rows, weight[own])
    assert entered[0].table is weight
    exactly(rows.detach(), laid_out(weight[own] + change))


def test_rows_of_all_samples_in_one_matrix_can_enter_the_first_block():
    own = torch.tensor([[5, 6, 7], [8, 9, 1]])
    block = FirstBlock()
    sources, ids, weight = entering(own, torch.ravel, first_block=block)
    rows = sources.lookup(ids, weight, weight[ids])
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
