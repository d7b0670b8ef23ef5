"""Every constant added to an input-dependent tensor is recorded."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers import exactly, normal, through
from wherefrom.methods.propagation import AH_LN, CONSERVATIVE, PLAIN

B, T, D = 1, 4, 3


def _c(*shape):
    return torch.linspace(-1, 2, torch.Size(shape).numel(), dtype=torch.float64).view(shape)


def _into_constant(x):
    held = _c(B, T, D)
    held += x
    return held


def _written(x):
    held = _c(B, T, D)
    held[:, 1:3] = x[:, :2]
    return held


def _filled(x):
    held = x * 1.0
    held[:, 0] = 0.7
    return held


CALLS = {
    "x + c": lambda x: x + _c(D),
    "c + x": lambda x: _c(D) + x,
    "x - c": lambda x: x - _c(D),
    "c - x": lambda x: _c(D) - x,
    "1 - x": lambda x: 1 - x,
    "x + 0.1": lambda x: x + 0.1,
    "rsub": lambda x: torch.rsub(x, _c(D)),
    "add by alpha": lambda x: torch.add(x, _c(D), alpha=3),
    "sub by alpha": lambda x: torch.sub(x, _c(D), alpha=3),
    "subtract": lambda x: torch.subtract(x, _c(D)),
    "method subtract": lambda x: x.subtract(_c(D)),
    "add by name": lambda x: torch.add(input=x, other=_c(D)),
    "add_": lambda x: (x * 1.0).add_(_c(D)),
    "sub_": lambda x: (x * 1.0).sub_(_c(D)),
    "+= into a constant": _into_constant,
    "add_ into a constant": lambda x: _c(B, T, D).add_(x),
    "-= from a constant": lambda x: _c(B, T, D).sub_(x),
    "linear": lambda x: F.linear(x, _c(5, D), _c(5)),
    "linear by name": lambda x: F.linear(x, _c(5, D), bias=_c(5)),
    "conv1d": lambda x: F.conv1d(x.mT, _c(5, D, 2), _c(5)),
    "conv2d": lambda x: F.conv2d(x[:, None], _c(2, 1, 2, 2), _c(2)),
    "conv_transpose1d": lambda x: F.conv_transpose1d(x.mT, _c(D, 5, 2), _c(5)),
    "addmm": lambda x: torch.addmm(_c(5), x[0], _c(D, 5))[None],
    "baddbmm": lambda x: torch.baddbmm(_c(1, T, 5), x, _c(1, D, 5), beta=0.5),
    "cat": lambda x: torch.cat([_c(B, 1, D), x], 1),
    "stack": lambda x: torch.stack([x, _c(B, T, D)], 1),
    "where": lambda x: torch.where(x > 0, x, 0.5),
    "where of two": lambda x: torch.where(x > 0, x, _c(D)),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.5),
    "pad": lambda x: F.pad(x, (0, 0, 0, 2), value=0.3),
    "setitem": _written,
    "setitem of a number": _filled,
    "index_add": lambda x: _c(T, D).index_add(0, torch.tensor([2, 0, 0, 1]), x[0])[None],
    "scatter_add": lambda x: _c(B, T, D).scatter_add(1, torch.zeros(B, T, D).long(), x),
    "masked_scatter": lambda x: _c(B, T, D).masked_scatter(_c(B, T, D) > 0, x),
    "lerp": lambda x: torch.lerp(x, _c(D), 0.3),
    "addcmul": lambda x: torch.addcmul(_c(D), x, _c(D)),
    "addcdiv": lambda x: torch.addcdiv(_c(D), x, _c(D) + 3),
}


@pytest.mark.parametrize("table", [CONSERVATIVE, AH_LN, PLAIN], ids=["lrp", "ah_ln", "plain"])
@pytest.mark.parametrize("f", list(CALLS.values()), ids=list(CALLS))
def test_an_affine_call_is_its_linear_part_and_a_recorded_constant(f, table, rng):
    x = normal(rng, B, T, D)
    plain = f(x)
    seed = normal(rng, *plain.shape)
    found = through(table, f, x, seed=seed)
    exactly(found.out, plain)
    expected = float((seed * plain).sum())
    exactly(float(found.relevance[0].sum()) + found.recorded, expected)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(f(leaf), leaf, seed)
    exactly(found.relevance[0], x * gradient)  # affine: the gradient is the linear part


class Positions(nn.Module):
    """A class token, learned position embeddings and a bias; channels last or over time."""

    def __init__(self, channels):
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Parameter(torch.randn(1, T, D, dtype=torch.float64))
        self.over = nn.Conv1d(D, channels, 3, padding=1, dtype=torch.float64)

    def forward(self, x):
        return self.over((x + self.table).mT)


def test_a_constant_with_a_row_for_each_place_is_a_position(rng):
    module, x = Positions(5), normal(rng, B, T, D)
    entries = through(CONSERVATIVE, module, x, model=module).tracer.ledger.entries
    assert {kind for _, kind in entries} == {"position", "bias"}
    weight = module.over.weight.detach()
    effect = F.conv_transpose1d(torch.ones(B, 5, T, dtype=torch.float64), weight, padding=1).mT
    expected = (module.table.detach() * effect).sum(-1)
    exactly(entries["", "position"].places, expected)


def test_the_bias_of_as_many_channels_as_there_are_places_is_still_a_bias(rng):
    module, x = Positions(T), normal(rng, B, T, D)
    entries = through(CONSERVATIVE, module, x, model=module).tracer.ledger.entries
    exactly(entries["over", "bias"].total, [float(module.over.bias.detach().sum()) * T])
    assert ("over", "position") not in entries


def test_parameters_are_constants_also_when_transposed_or_indexed(rng):
    weight = nn.Parameter(normal(rng, D, D))
    x = normal(rng, B, T, D)
    found = through(CONSERVATIVE, lambda x: x @ weight.T + weight[0] + weight.mT[1], x)
    exactly(found.relevance[0], x * weight.detach().sum(0))
    held = weight.detach()
    expected = T * float(held[0].sum() + held[:, 1].sum())
    exactly(found.recorded, expected)
    assert weight.grad is None


def test_closed_books_stay_empty_and_change_no_relevance(rng):
    x = normal(rng, B, T, D)

    def f(x):
        return F.gelu(F.linear(x, _c(5, D), _c(5))).cos()

    with_books, without = (through(CONSERVATIVE, f, x, ledger=on) for on in (True, False))
    assert with_books.tracer.ledger.entries
    assert not without.tracer.ledger.entries
    exactly(with_books.relevance[0], without.relevance[0])


def test_a_token_put_in_front_is_no_position(rng):
    x = normal(rng, B, T, D)
    token = _c(B, 1, D)
    entries = through(CONSERVATIVE, lambda x: torch.cat([token, x], 1), x).tracer.ledger.entries
    assert set(entries) == {("", "token")}
    exactly(entries["", "token"].total, [float(token.sum())])
    assert entries["", "token"].places is None


@pytest.mark.parametrize(
    ("length", "f"),
    [
        (T, lambda x: torch.baddbmm(_c(B, T, T), x, x.mT)),
        (T, lambda x: torch.einsum("bqd,bkd->bqk", x, x) * 0.5 + _c(B, T, T)),
        (T, lambda x: F.batch_norm(x.mT, _c(D), _c(D) + 2, _c(D), _c(D))),
        (1, lambda x: F.batch_norm(x.mT, _c(D), _c(D) + 2, _c(D), _c(D))),
        (1, lambda x: x[:, 0] + _c(1, D)),
    ],
    ids=["added to scores", "to scores by einsum", "channels", "channels of one", "a state"],
)
def test_a_constant_whose_rows_are_not_those_of_units_is_a_bias(rng, length, f):
    entries = through(CONSERVATIVE, f, normal(rng, B, length, D)).tracer.ledger.entries
    assert {kind for _, kind in entries} == {"bias"}
