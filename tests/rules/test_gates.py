"""Gates that are not zero without input: f(b) · a is linear in a, the rest of a · f(g) shared."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers import exactly, normal, through
from tests.oracles import gates
from wherefrom.methods.propagation import CONSERVATIVE, CONSERVATIVE_SHARED

T, D = 4, 3
GATES = {
    "sigmoid": torch.sigmoid,
    "module": nn.Sigmoid(),
    "in place": lambda g: (g * 1.0).sigmoid_(),
    "hardsigmoid": F.hardsigmoid,
    "1 + tanh": lambda g: 1 + torch.tanh(g),
    "1 - sigmoid": lambda g: 1 - g.sigmoid(),
    "ones - sigmoid": lambda g: torch.ones_like(g) - g.sigmoid(),
    "rsub": lambda g: torch.rsub(g.sigmoid(), 1.0),
    "2 sigmoid": lambda g: 2 * g.sigmoid(),
    "sigmoid / 2": lambda g: g.sigmoid() / 2,
    "-sigmoid": lambda g: -g.sigmoid(),
    "softplus": F.softplus,
    "exp": torch.exp,
    "cos": torch.cos,
    "exp of softplus": lambda g: torch.exp(-0.7 * F.softplus(g)),
    "relu6": lambda g: F.relu6(g + 3) / 6,
    "1 + g": lambda g: 1 + g,
    "shifted": lambda g: torch.sigmoid(g - 2),
    "of constants": lambda g: g.sigmoid() * torch.arange(1.0, 4.0, dtype=g.dtype),
    "a sum": lambda g: g.sigmoid() + F.softplus(g),
}
WAYS = {
    "at once": lambda g: g,
    "moved": lambda g: (
        F.dropout(g, training=False).transpose(1, 2).contiguous().permute(0, 2, 1).reshape(1, T, D)
    ),
    "selected": lambda g: g[:, None, torch.arange(T)].squeeze(1),
    "chunked": lambda g: g.repeat(1, 1, 2).chunk(2, -1)[1],
    "expanded": lambda g: g.unsqueeze(1).expand(1, 2, T, D)[:, 0],
}
TIMES = {
    "a * g": lambda a, g: a * g,
    "g * a": lambda a, g: g * a,
    "mul_": lambda a, g: (a * 1.0).mul_(g),
    "gate.mul_": lambda a, g: (g * 1.0).mul_(a),
    "einsum": lambda a, g: torch.einsum("btd,btd->btd", a, g),
    "addcmul": lambda a, g: torch.addcmul(torch.zeros(D, dtype=a.dtype), a, g),
    "two heads": lambda a, g: (a.view(1, T, D, 1) * g.view(1, T, D, 1)).view(1, T, D),
}


@pytest.fixture
def ag(rng):
    return normal(rng, 1, T, D), normal(rng, 1, T, D)


def both_paths(a, gate, at_zero):
    """What a and the gate's input get: a f₀ + a (f − f₀) / 2, and a (f − f₀) / 2."""
    shared = a * (gate - at_zero) / 2
    return a * at_zero + shared, shared


@pytest.mark.parametrize("name", list(GATES))
def test_what_a_gate_is_at_zero_goes_to_the_other_factor(name, ag):
    gate, (a, g) = GATES[name], ag
    found = through(CONSERVATIVE_SHARED, lambda a, g: a * gate(g), a, g)
    exactly(found.out, a * gate(g))
    for relevance, expected in zip(
        found.relevance, both_paths(a, gate(g), gate(g * 0)), strict=True
    ):
        exactly(relevance, expected)
    exactly(found.recorded, 0.0)


@pytest.mark.parametrize("times", list(TIMES.values()), ids=list(TIMES))
@pytest.mark.parametrize("way", list(WAYS.values()), ids=list(WAYS))
def test_it_is_the_same_some_calls_later_and_in_any_spelling(way, times, ag):
    a, g = ag
    found = through(CONSERVATIVE_SHARED, lambda a, g: times(a, way(g.sigmoid())), a, g)
    exactly(found.out, a * g.sigmoid())
    of_a, of_g = both_paths(a, g.sigmoid(), 0.5)
    exactly(found.relevance[0], of_a)
    exactly(found.relevance[1], of_g)
    exactly(found.recorded, 0.0)


@pytest.mark.parametrize("spelled", ["@", "einsum", "bmm"])
def test_in_a_matrix_product_too(spelled, ag, rng):
    a, seed = ag[0], normal(rng, 1, T, D)
    g = normal(rng, 1, T, T)
    run = {
        "@": lambda g, a: g @ a,
        "bmm": torch.bmm,
        "einsum": lambda g, a: torch.einsum("bqk,bkd->bqd", g, a),
    }[spelled]
    found = through(CONSERVATIVE_SHARED, lambda a, g: run(g.sigmoid(), a), a, g, seed=seed)
    mean = (g.sigmoid() + 0.5) / 2
    exactly(found.relevance[0], a * (mean.mT @ seed))
    exactly(found.relevance[1], (g.sigmoid() - 0.5) * (seed @ a.mT) / 2)
    exactly(found.recorded, 0.0)


def test_two_gates_leave_the_product_of_their_values_at_zero(ag):
    a, g = ag
    found = through(CONSERVATIVE_SHARED, lambda a, g: torch.sigmoid(a) * (1 + g), a, g)
    p, q = torch.sigmoid(a), 1 + g
    exactly(found.relevance[0], (p - 0.5) * (q + 1) / 2)
    exactly(found.relevance[1], (q - 1) * (p + 0.5) / 2)
    exactly(found.recorded, 0.5 * a.numel())


def test_a_product_of_two_gates_is_a_gate(ag, rng):
    (a, g), v = ag, normal(rng, 1, T, D)
    found = through(CONSERVATIVE_SHARED, lambda v, a, g: a.sigmoid() * (1 + g) * v, v, a, g)
    gate = a.sigmoid() * (1 + g)
    exactly(found.relevance[0], v * (gate + 0.5) / 2)
    exactly(found.relevance[1], (a.sigmoid() - 0.5) * (g + 2) / 2 * v / 2)
    exactly(found.relevance[2], g * (a.sigmoid() + 0.5) / 2 * v / 2)
    exactly(found.recorded, 0.0)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["glu", "conv", "highway", "softplus"])
def test_a_gate_without_weights_makes_a_linear_model(kind, bias, rng):
    """Σ v · f(b): the contributions are those of v, whatever f(b) is."""
    x, value = normal(rng, 1, T, D), nn.Linear(D, D, bias=False).double()
    gate = (nn.Conv1d(D, D, 1, bias=bias) if kind == "conv" else nn.Linear(D, D, bias)).double()
    nn.init.zeros_(gate.weight)
    b = gate.bias if bias else torch.zeros(D, dtype=x.dtype)
    model = nn.ModuleList([value, gate])

    def f(x):
        v = value(x)
        if kind == "glu":
            weight = torch.cat([value.weight, gate.weight])
            return F.glu(F.linear(x, weight, torch.cat([b * 0, b]) if bias else None), -1)
        if kind == "conv":
            return v * gate(x.transpose(1, 2)).sigmoid().transpose(1, 2)
        if kind == "softplus":
            return v * F.softplus(gate(x))
        return gate(x).sigmoid() * v + (1 - gate(x).sigmoid()) * x

    found = through(CONSERVATIVE_SHARED, f, x, model=model)
    exactly(found.relevance[0].sum(-1), f(x).detach().sum(-1))
    exactly(found.recorded, 0.0)


def test_silu_written_out_is_silu(ag):
    x = ag[0]
    exactly(
        through(CONSERVATIVE_SHARED, lambda x: x * x.sigmoid(), x).relevance[0],
        through(CONSERVATIVE_SHARED, F.silu, x).relevance[0],
    )


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_recurrent_layer_is_what_each_step_contributes(kind, bias, rng):
    torch.manual_seed(3)
    layer = {"gru": nn.GRU, "lstm": nn.LSTM}[kind](D, 2, bias=bias, batch_first=True).double()
    x = normal(rng, 1, T, D)
    weights = [p.detach() for p in layer.parameters()]
    if not bias:
        weights += [torch.zeros(len(weights[0]), dtype=x.dtype)] * 2
    expected = getattr(gates, kind)(x[0], weights)
    found = through(CONSERVATIVE_SHARED, lambda x: layer(x)[0][:, -1], x, model=layer)
    exactly(found.out[0], expected.value)
    exactly(found.relevance[0].sum(-1)[0], expected.parts.sum(-1))
    exactly(found.recorded, float(expected.constant.sum()))
    if not bias:
        exactly(found.recorded, 0.0)


def test_a_selective_scan_is_what_each_step_contributes(rng):
    """s ← exp(A Δ) s + Δ B x, y = C · s as in Mamba, Δ = softplus(W x + b), no other bias."""
    x, a = normal(rng, 1, T, D), -torch.rand(D, 2, generator=rng, dtype=torch.float64)
    w, b, c = (normal(rng, *shape) for shape in ((D, D), (2, D), (2, D)))
    bias = normal(rng, D)

    def scan(x):
        delta = F.softplus(x @ w.T + bias)[..., None]  # (1, T, D, 1)
        decay, enter = torch.exp(delta * a), delta * (x @ b.T)[:, :, None] * x[..., None]
        state, out = torch.zeros(1, D, 2, dtype=x.dtype), []
        for t in range(T):
            state = decay[:, t] * state + enter[:, t]
            out.append((state * (x[:, t] @ c.T)[:, None]).sum(-1))
        return torch.stack(out, 1)

    def halves(left, right):
        """The product of two numbers that are nothing without input."""
        return left.times(gates.Traced(right.parts, right.constant, right.constant * 0))

    inputs, total = gates.Traced.of(x[0]), torch.zeros(T, dtype=x.dtype)
    for d in range(D):
        for n in range(2):
            zero = torch.zeros((), dtype=x.dtype)
            state = gates.Traced(torch.zeros(T, dtype=x.dtype), zero)
            for t in range(T):
                now = inputs.row(t)
                pre = now.linear(w[d : d + 1], bias[d]).row_of(0)
                delta = pre.gate(F.softplus, bias[d])
                decay = pre.gate(lambda z, k=a[d, n]: torch.exp(k * F.softplus(z)), bias[d])
                enter = halves(now.linear(b[n : n + 1]).row_of(0).times(delta), now.row_of(d))
                state = state.times(decay).plus(enter)
                total += halves(state, now.linear(c[n : n + 1]).row_of(0)).parts
    found = through(CONSERVATIVE_SHARED, scan, x)
    exactly(found.relevance[0].sum(-1)[0], total)
    exactly(found.recorded, 0.0)


def test_a_gate_that_is_written_into_afterwards_is_what_was_written(ag):
    a, g = ag

    def f(a, g):
        gate = g.sigmoid()
        gate[:, 0] = 0.25
        return a * gate

    found = through(CONSERVATIVE_SHARED, f, a, g)
    exactly(found.out, f(a, g))
    exactly(float(sum(r.sum() for r in found.relevance)) + found.recorded, float(f(a, g).sum()))


def test_an_exponential_of_a_difference_is_a_weight_and_so_a_constant(ag, rng):
    (a, g), m = ag, normal(rng, 1, T, 1)
    found = through(
        CONSERVATIVE_SHARED, lambda a, g, m: a * (g - m).exp()[..., None].squeeze(-1), a, g, m
    )
    exactly(found.relevance[0], a * (g - m).exp())
    exactly(found.relevance[1], torch.zeros_like(g))
    exactly(found.relevance[2], torch.zeros_like(m))
    exactly(found.recorded, 0.0)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_router_of_normalised_sigmoids_leaves_no_bias(in_place, ag):
    """Weights σ(g) / Σ σ(g), the sum a constant, as in a mixture of experts."""
    a, g = ag

    def f(a, g):
        weights = g.sigmoid()
        total = weights.sum(-1, keepdim=True) + 1e-20
        weights = weights.div_(total) if in_place else weights / total
        return a * weights * 2.5

    found = through(CONSERVATIVE_SHARED, f, a, g)
    total = g.sigmoid().sum(-1, keepdim=True) / 2.5
    exactly(found.out, f(a, g))
    exactly(found.relevance[0], a * (g.sigmoid() + 0.5) / total / 2)
    exactly(found.relevance[1], a * (g.sigmoid() - 0.5) / total / 2)
    exactly(found.recorded, 0.0)


def test_under_a_mask_a_gate_still_adds_up(ag):
    a, g = ag
    mask = torch.ones(T, D, dtype=torch.bool).triu(1)

    def f(a, g):
        return a * g.masked_fill(mask, -math.inf).exp()

    found = through(CONSERVATIVE_SHARED, f, a, g)
    exactly(float(sum(r.sum() for r in found.relevance)) + found.recorded, float(f(a, g).sum()))


def test_a_gate_and_its_other_uses_add_up(ag):
    """The value at zero is a bias where the gate is used by itself, and there alone."""
    a, g = ag
    found = through(CONSERVATIVE_SHARED, lambda a, g: a * (s := g.sigmoid()) + s, a, g)
    exactly(found.recorded, 0.5 * g.numel())


def test_a_frozen_gate_is_a_constant_as_before(ag):
    a, g = ag
    found = through(CONSERVATIVE, lambda a, g: a * (1 - g.sigmoid()), a, g)
    exactly(found.relevance[0], a * (1 - g.sigmoid()))
    exactly(found.relevance[1], torch.zeros_like(g))
    exactly(found.recorded, 0.0)


def test_a_gate_under_dropout_that_draws_adds_up(ag):
    a, g = ag

    def f(a, g):
        torch.manual_seed(1)
        return a * F.dropout(g.sigmoid(), 0.5, training=True) * F.dropout(torch.ones(T, D), 0.5)

    found = through(CONSERVATIVE_SHARED, f, a, g)
    exactly(found.out, f(a, g))
    exactly(float(sum(r.sum() for r in found.relevance)) + found.recorded, float(found.out.sum()))
