"""Products of two factors that both depend on the input."""

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import exactly, normal, through
from wherefrom.methods.propagation import AH_LN, ATTN_LRP, CONSERVATIVE, CONSERVATIVE_SHARED, PLAIN

B, T, D = 1, 4, 3


@pytest.fixture
def ab(rng):
    return normal(rng, B, T, D), normal(rng, B, T, D)


def _dropped(a, b):
    a.mul_(b)
    return a


TIMES = {
    "a * b": lambda a, b: a * b,
    "mul": torch.mul,
    "multiply by name": lambda a, b: torch.multiply(a, other=b),
    "mul_": lambda a, b: (a * 1.0).mul_(b),
    "mul_, result dropped": lambda a, b: _dropped(a * 1.0, b),
    "einsum": lambda a, b: torch.einsum("btd,btd->btd", a, b),
    "addcmul": lambda a, b: torch.addcmul(torch.zeros(D, dtype=a.dtype), a, b),
}


@pytest.mark.parametrize("times", list(TIMES.values()), ids=list(TIMES))
@pytest.mark.parametrize("table", [CONSERVATIVE, CONSERVATIVE_SHARED, ATTN_LRP])
def test_two_plain_factors_get_half_each(times, table, ab):
    a, b = ab
    found = through(table, times, a, b)
    exactly(found.relevance[0], a * b / 2)
    exactly(found.relevance[1], a * b / 2)


@pytest.mark.parametrize("table", [CONSERVATIVE_SHARED, ATTN_LRP])
@pytest.mark.parametrize("shapes", [((4, 3), (4, 3)), ((4, 3), (4, 1)), ((1, 3), (4, 3))])
def test_each_factor_gets_half_of_each_of_its_uses(table, shapes, rng):
    a, b, weights = normal(rng, 1, *shapes[0]), normal(rng, 1, *shapes[1]), normal(rng, 1, 4, 3)
    found = through(table, lambda a, b: a * b * weights, a, b)
    amounts = a * b * weights / 2
    exactly(found.relevance[0], amounts.sum_to_size(a.shape))
    exactly(found.relevance[1], amounts.sum_to_size(b.shape))


def test_a_square_gets_all_of_it(ab):
    exactly(through(CONSERVATIVE_SHARED, lambda a, b: a * a, *ab).relevance[0], ab[0] ** 2)


MATRIX = {
    "@": lambda a, b: a @ b.mT,
    "matmul": lambda a, b: torch.matmul(a, b.transpose(1, 2)),
    "bmm": lambda a, b: torch.bmm(a, b.mT),
    "einsum": lambda a, b: torch.einsum("bqd,bkd->bqk", a, b),
    "einsum of a list": lambda a, b: torch.einsum("bqd,bkd->bqk", [a, b]),
    "baddbmm": lambda a, b: torch.baddbmm(torch.zeros(1, 1, 1, dtype=a.dtype), a, b.mT),
    "mm": lambda a, b: torch.mm(a[0], b[0].T)[None],
    "addmm": lambda a, b: torch.addmm(torch.zeros(1, dtype=a.dtype), a[0], b[0].T)[None],
    "linear": lambda a, b: F.linear(a[0], b[0])[None],
    "tensordot": lambda a, b: torch.tensordot(a[0], b[0], dims=([1], [1]))[None],
}


@pytest.mark.parametrize("times", list(MATRIX.values()), ids=list(MATRIX))
@pytest.mark.parametrize("table", [CONSERVATIVE, CONSERVATIVE_SHARED, ATTN_LRP])
def test_both_sides_of_a_matrix_product_get_half(times, table, ab, rng):
    a, b = ab
    seed = normal(rng, B, T, T)
    found = through(table, times, a, b, seed=seed)
    exactly(found.out, a @ b.mT)
    exactly(found.relevance[0], a * (seed @ b) / 2)
    exactly(found.relevance[1], b * (seed.mT @ a) / 2)


GATES = {
    "silu": F.silu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "relu": F.relu,
    "tanh": torch.tanh,
    "softmax": lambda x: x.softmax(-1),
    "then scaled": lambda x: (F.silu(x) * 2.0).view(B, T, D),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("gate", list(GATES.values()), ids=list(GATES))
def test_frozen_gate_is_a_constant_on_either_side(gate, turned, ab):
    a, b = ab

    def f(a, b):
        return b * gate(a) if turned else gate(a) * b

    found = through(CONSERVATIVE, f, a, b)
    exactly(found.relevance[0], torch.zeros_like(a))
    exactly(found.relevance[1], gate(a) * b)
    exactly(found.recorded, 0.0)


WRITTEN = {
    "scatter_": lambda p, places: torch.zeros(B, T, 2 * D, dtype=p.dtype).scatter_(-1, places, p),
    "scatter": lambda p, places: torch.zeros(B, T, 2 * D, dtype=p.dtype).scatter(-1, places, p),
}


@pytest.mark.parametrize("table", [CONSERVATIVE, CONSERVATIVE_SHARED])
@pytest.mark.parametrize("write", list(WRITTEN.values()), ids=list(WRITTEN))
def test_weights_that_are_written_among_zeros_are_weights(write, table, ab, rng):
    a, value = ab[0], normal(rng, B, T, 2 * D)
    places = torch.tensor([0, 4, 2]).expand(B, T, D)
    found = through(table, lambda a, b: write(a.softmax(-1), places) * b, a, value)
    exactly(found.relevance[0], torch.zeros(B, T, D))
    exactly(found.relevance[1], found.out)


SUMMED = {
    "einsum": lambda p, v: torch.einsum("bqk,bkd->bqd", p, v),
    "values first": lambda p, v: torch.einsum("bkd,bqk->bqd", v, p),
    "@": lambda p, v: p @ v,
}


@pytest.mark.parametrize("spelled", list(SUMMED.values()), ids=list(SUMMED))
def test_attention_to_values_that_are_constants_is_a_line_of_the_ledger(spelled, ab, rng):
    a, values = ab[0], normal(rng, B, D, 5)
    own = torch.ones(D, 5, dtype=a.dtype)
    found = through(CONSERVATIVE, lambda a: a @ own + spelled(a.softmax(-1), values), a)
    exactly(found.relevance[0], a * own.sum(1))
    exactly(found.recorded, float((a.softmax(-1) @ values).sum()))


def test_two_activated_factors_get_half_each(ab):
    a, b = ab
    found = through(CONSERVATIVE, lambda a, b: torch.tanh(a) * F.silu(b), a, b)
    exactly(found.relevance[0], torch.tanh(a) * F.silu(b) / 2)
    exactly(found.relevance[1], torch.tanh(a) * F.silu(b) / 2)


def test_a_gate_that_is_written_over_is_the_same_gate(ab):
    a, b = ab
    found = through(CONSERVATIVE, lambda a, b: _dropped(F.silu(a), b), a, b)
    exactly(found.out, F.silu(a) * b)
    exactly(found.relevance[0], torch.zeros_like(a))
    exactly(found.relevance[1], F.silu(a) * b)


def test_a_bilinear_form_of_two_gives_half_to_each_and_books_its_bias(ab, rng):
    a, b = ab
    weight, bias = normal(rng, 2, D, D), normal(rng, 2)
    found = through(CONSERVATIVE, lambda a, b: F.bilinear(a, b, weight, bias), a, b)
    form = torch.einsum("bti,oij,btj->bt", a, weight, b)
    exactly(found.relevance[0].sum(-1), form / 2)
    exactly(found.relevance[1].sum(-1), form / 2)
    exactly(found.recorded, T * float(bias.sum()))


@pytest.mark.parametrize("table", [PLAIN, AH_LN], ids=["plain", "ah_ln"])
def test_the_papers_tables_keep_the_product_rule(table, ab):
    a, b = ab
    found = through(table, lambda a, b: a * b, a, b)
    exactly(found.relevance[0], a * b)
    exactly(found.relevance[1], a * b)


@pytest.mark.parametrize("dim", [-1, 1])
@pytest.mark.parametrize("table", [CONSERVATIVE, CONSERVATIVE_SHARED])
def test_glu_is_a_gate_of_two_halves(dim, table, rng):
    x = normal(rng, B, 4, 6)

    def by_hand(x):
        a, b = x.chunk(2, dim)
        return a * torch.sigmoid(b)

    fused = through(table, lambda x: F.glu(x, dim), x)
    written = through(table, by_hand, x)
    exactly(fused.out, F.glu(x, dim))
    exactly(fused.relevance[0], written.relevance[0])
    exactly(fused.relevance[0].sum() + fused.recorded, F.glu(x, dim).sum())


def test_a_divisor_is_a_constant(ab):
    a, b = ab
    found = through(CONSERVATIVE, lambda a, b: a / b, a, b)
    exactly(found.relevance[0], a / b)
    exactly(found.relevance[1], torch.zeros_like(b))


def test_the_matrix_of_a_linear_system_is_a_constant(rng):
    a, b = normal(rng, 1, 3, 3) + 3 * torch.eye(3), normal(rng, 1, 3, 2)

    def f(a, b):
        return torch.linalg.solve_triangular(a, b, upper=True)

    found = through(CONSERVATIVE, f, a, b)
    exactly(found.relevance[0], torch.zeros_like(a))
    exactly(found.relevance[1].sum(), found.out.sum())


def test_a_product_with_a_constant_is_left_alone(rng):
    x, w = normal(rng, B, T, D), normal(rng, D, D)
    found = through(CONSERVATIVE, lambda x: (x * 2.0) @ w, x)
    exactly(found.relevance[0].sum(), (2 * x @ w).sum())
    assert not found.tracer.touched["gate"]


@pytest.mark.parametrize("gate", ["conservative", "shared"])
def test_swiglu_block_adds_up(gate, rng):
    table = CONSERVATIVE if gate == "conservative" else CONSERVATIVE_SHARED
    x = normal(rng, B, T, D)
    up, down, side = normal(rng, D, 8), normal(rng, 8, D), normal(rng, D, 8)
    b = normal(rng, 8)

    def f(x):
        return (F.silu(x @ side + b) * (x @ up + b)) @ down

    found = through(table, f, x)
    exactly(found.relevance[0].sum() + found.recorded, f(x).sum())
