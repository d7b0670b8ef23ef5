"""The kind of a call, and its arguments by name, positional or not."""

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import exactly, normal, through
from wherefrom.methods.propagation import ATTN_LRP, CONSERVATIVE, PLAIN
from wherefrom.tracing.catalogue import CATALOGUE, Kind, TorchCall, depends_on_input

C = torch.tensor([0.5, -2.0, 1.5], dtype=torch.float64)

SPELLINGS = {
    "x - c": lambda x: x - C,
    "c - x": lambda x: C - x,
    "2 - x": lambda x: 2 - x,
    "sub": lambda x: torch.sub(x, C),
    "sub by name": lambda x: torch.sub(input=x, other=C),
    "sub by name, the other way round": lambda x: torch.sub(other=C, input=x),
    "sub of a constant by name": lambda x: torch.sub(other=x, input=C),
    "sub by alpha": lambda x: torch.sub(x, other=C, alpha=3),
    "rsub": lambda x: torch.rsub(x, C),
    "rsub by alpha": lambda x: torch.rsub(x, C, alpha=3),
    "rsub by name": lambda x: torch.rsub(other=C, input=x, alpha=2),
    "rsub of a constant": lambda x: torch.rsub(C, x, alpha=3),
    "add by name": lambda x: torch.add(other=x, input=C, alpha=2),
    "linear by name": lambda x: F.linear(bias=C[:2], weight=torch.stack([C, -C])[:2], input=x),
    "addmm by name": lambda x: torch.addmm(
        mat2=torch.stack([C, C, -C]), mat1=x[0], input=C, beta=0.5
    )[None],
    "pad by name": lambda x: F.pad(value=0.7, pad=(1, 0), input=x),
    "cat by name": lambda x: torch.cat(dim=-1, tensors=[x, C.expand(x.shape)]),
}


@pytest.mark.parametrize("f", list(SPELLINGS.values()), ids=list(SPELLINGS))
def test_an_affine_call_is_recorded_however_it_is_spelled(f, rng):
    x = normal(rng, 1, 4, 3)
    run = through(CONSERVATIVE, f, x)
    exactly(run.out, f(x))
    exactly(float(run.relevance[0].sum()) + run.recorded, float(f(x).sum()))


CLOSED = {
    "1 / x": lambda x: x * (1 / (x.square().sum(-1, keepdim=True) + 1)),
    "2 ** x": lambda x: 2**x,
    "pow of a number": lambda x: torch.pow(2.0, x),
    "div by name": lambda x: torch.div(other=x.exp().sum(-1, keepdim=True), input=x),
    "mul by name": lambda x: torch.mul(other=x.sigmoid(), input=x),
    "matmul by name": lambda x: torch.matmul(other=x.mT, input=x.sigmoid()),
    "softmax by name": lambda x: torch.softmax(dim=-1, input=x @ x.mT) @ x,
    "silu in place, by position": lambda x: F.silu(x * 1.0, True),
    "elu in place": lambda x: F.elu(x * 1.0, 0.5, True),
    "hardtanh in place": lambda x: F.hardtanh(x + 0.3, -0.5, 0.5, True),
    "sigmoid_": lambda x: (x * 1.0).sigmoid_(),
    "layer_norm by name": lambda x: F.layer_norm(bias=C, weight=C, normalized_shape=(3,), input=x),
    "attention by name": lambda x: F.scaled_dot_product_attention(value=x, key=x, query=x),
    "einsum of a list": lambda x: torch.einsum("bij,bjk->bik", [(x @ x.mT).softmax(-1), x]),
}


@pytest.mark.parametrize("f", list(CLOSED.values()), ids=list(CLOSED))
def test_a_call_adds_up_however_it_is_spelled(f, rng):
    x = normal(rng, 1, 4, 3)
    seed = normal(rng, *f(x).shape)
    run = through(CONSERVATIVE, f, x, seed=seed)
    exactly(run.out, f(x))
    exactly(float(run.relevance[0].sum()) + run.recorded, float((seed * f(x)).sum()))


def test_a_power_of_two_is_no_square(rng):
    x = normal(rng, 1, 4, 3)
    run = through(CONSERVATIVE, lambda x: 2**x, x)
    exactly(run.relevance[0], 2**x - 1)  # the secant through 2⁰ = 1
    exactly(run.recorded, 12.0)


def test_arguments_are_read_and_changed_by_name():
    x, y = torch.ones(2), torch.zeros(2)
    call = TorchCall(torch.rsub, (x,), {"other": y, "alpha": 3})
    assert (call.kind, call.name, call.in_place) == (Kind.SUM, "rsub", False)
    assert call["left"] is y
    assert call["right"] is x
    assert call.get("alpha") == 3
    assert call.get("beta", 7) == 7
    exactly(call.run(right=y, left=x), x)
    exactly(call.run(alpha=5), y - 5 * x)
    with pytest.raises(KeyError, match="add was called without right"):
        TorchCall(torch.add, (x,))["right"]


@pytest.mark.parametrize(
    ("function", "kind", "in_place"),
    [
        (torch.Tensor.__iadd__, Kind.SUM, True),
        (torch.Tensor.add_, Kind.SUM, True),
        (torch.Tensor.__radd__, Kind.SUM, False),
        (torch.Tensor.__setitem__, Kind.WRITE, True),
        (torch.Tensor.__getitem__, Kind.SELECT, False),
        (torch.Tensor.__matmul__, Kind.CONTRACTION, False),
        (F.layer_norm, Kind.LAYER_NORM, False),
        (torch.layer_norm, Kind.LAYER_NORM, False),
        (F.scaled_dot_product_attention, Kind.ATTENTION, False),
        (torch.special.expit, Kind.ACTIVATION, False),
        (torch.linalg.vector_norm, Kind.ROOT, False),
    ],
)
def test_every_spelling_is_one_kind(function, kind, in_place):
    call = TorchCall(function, (torch.ones(2), torch.ones(2)))
    assert (call.kind, call.in_place) == (kind, in_place)


def test_every_row_of_the_catalogue_names_a_torch_function():
    names = {entry.name for entry in CATALOGUE.values()}
    from wherefrom.tracing.catalogue import _ROWS

    listed = {name for _, _, row in _ROWS for name in row.split()}
    assert listed == names


def test_what_is_live_is_what_requires_a_gradient():
    assert depends_on_input(torch.ones(1, requires_grad=True))
    assert not depends_on_input(torch.ones(1))
    assert not depends_on_input(1.0)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_normalize_takes_the_norm_it_is_told(p, rng):
    x = normal(rng, 1, 4, 3)
    run = through(CONSERVATIVE, lambda x: F.normalize(x, p=p, dim=-1), x)
    exactly(run.out, F.normalize(x, p=p, dim=-1))
    exactly(run.relevance[0], x / x.abs().pow(p).sum(-1, keepdim=True).pow(1 / p))


def test_a_softmax_written_by_hand_is_attention(rng):
    x = normal(rng, 1, 4, 3)

    def by_hand(x):
        scores = x @ x.mT
        powers = (scores - scores.amax(-1, keepdim=True).detach()).exp()
        return powers / powers.sum(-1, keepdim=True) @ x

    weights = (x @ x.mT).softmax(-1)
    run = through(CONSERVATIVE, by_hand, x)
    assert run.tracer.touched["attention"] == 1
    exactly(run.relevance[0], x * weights.sum(1, keepdim=True).mT)  # weights are constants
    shared = through(ATTN_LRP, by_hand, x)
    assert shared.tracer.touched["attention"] == 1
    assert through(PLAIN, by_hand, x).tracer.touched["attention"] == 1


def test_a_mask_that_depends_on_the_input_is_a_constant_too(rng):
    x = normal(rng, 1, 4, 3)

    def biased(x):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=x.sum(-1)[:, None, :] * 0.3)

    weights = (x @ x.mT / 3**0.5 + x.sum(-1)[:, None, :] * 0.3).softmax(-1)
    run = through(CONSERVATIVE, biased, x)
    exactly(run.relevance[0], x * weights.sum(1, keepdim=True).mT)


def test_the_fused_call_of_many_keys_freezes_its_mask_as_well(rng):
    x = normal(rng, 1, 300, 2)

    def biased(x):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=x.sum(-1)[:, None, :] * 0.3)

    weights = (x @ x.mT / 2**0.5 + x.sum(-1)[:, None, :] * 0.3).softmax(-1)
    run = through(CONSERVATIVE, biased, x)
    exactly(run.relevance[0], x * weights.sum(1, keepdim=True).mT)
