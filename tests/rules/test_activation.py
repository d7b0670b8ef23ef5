"""The secant rule."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from tests.helpers import exactly, normal, through
from wherefrom.methods.propagation import AH_LN, CONSERVATIVE, CONSERVATIVE_SHARED, PLAIN

HOLDS = {
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "method": lambda x: x.sigmoid(),
    "softplus": F.softplus,
    "elu": F.elu,
    "exp": torch.exp,
    "cos": torch.cos,
    "erf": torch.erf,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "logsigmoid": F.logsigmoid,
    "square": torch.square,
    "cube": lambda x: x**3,
    "clamp": lambda x: x.clamp(-0.3, 0.4),
    "relu": F.relu,
    "leaky": lambda x: F.leaky_relu(x, 0.1),
}


def secant(f, x):
    """The relevance and f(0) by the formula of the rule."""
    at_zero = f(torch.zeros(1, dtype=x.dtype))
    return f(x) - at_zero, at_zero.expand_as(x)


@pytest.mark.parametrize("f", list(HOLDS.values()), ids=list(HOLDS))
def test_activation_is_the_line_through_its_value_and_its_value_at_zero(f, rng):
    x, seed = normal(rng, 1, 5, 3) * 2, normal(rng, 1, 5, 3)
    found = through(CONSERVATIVE, f, x, seed=seed)
    relevance, at_zero = secant(f, x)
    exactly(found.out, f(x))
    exactly(found.relevance[0], relevance * seed)
    exactly(found.recorded, float((at_zero * seed).sum()))


@pytest.mark.parametrize("f", [torch.exp, torch.sigmoid], ids=["exp", "sigmoid"])
def test_where_a_mask_makes_it_infinite_the_value_is_a_constant(f, rng):
    x, seed = normal(rng, 1, 4, 4), normal(rng, 1, 4, 4)
    mask = torch.ones(4, 4, dtype=torch.bool).triu(1)
    found = through(CONSERVATIVE, lambda x: f(x.masked_fill(mask, -math.inf)), x, seed=seed)
    relevance, at_zero = secant(f, x)
    exactly(found.relevance[0], (relevance * seed).masked_fill(mask, 0.0))
    exactly(found.recorded, float((at_zero * seed)[:, ~mask].sum()))


@pytest.mark.parametrize("table", [PLAIN, AH_LN], ids=["plain", "ah_ln"])
@pytest.mark.parametrize("f", list(HOLDS.values()), ids=list(HOLDS))
def test_the_papers_tables_keep_the_derivative_of_an_activation(f, table, rng):
    x = normal(rng, 1, 5, 3)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(f(leaf).sum(), leaf)
    exactly(through(table, f, x).relevance[0], x * gradient)


@pytest.mark.parametrize(("f", "slope"), [(F.gelu, 0.5), (torch.tanh, 1.0), (torch.sigmoid, 0.25)])
def test_at_zero_the_slope_is_the_derivative(f, slope):
    gradients = []
    x = torch.tensor([[[0.0, 1.0]]], dtype=torch.float64)

    def keep(x):
        x = x * 1.0
        x.register_hook(lambda g: gradients.append(g))
        return f(x)

    through(CONSERVATIVE, keep, x)
    exactly(gradients[0][0, 0, 0], slope)
    assert torch.isfinite(gradients[0]).all()


NAMES = ["gelu_new", "gelu_fast", "quick_gelu", "gelu_python", "mish", "relu2", "tanh", "sigmoid"]


@pytest.mark.parametrize("name", NAMES)
def test_activation_module_written_in_primitives_is_one_unit(name, rng):
    act = ACT2FN[name]
    x, seed = normal(rng, 1, 5, 3), normal(rng, 1, 5, 3)
    found = through(CONSERVATIVE, act, x, seed=seed)
    relevance, at_zero = secant(act, x)
    exactly(found.out, act(x))
    exactly(found.relevance[0], relevance * seed)
    exactly(found.recorded, float((at_zero * seed).sum()))
    assert found.tracer.touched["activation"] == 1


def tanh_by_hand(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def erf_by_hand(x):
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def swish_by_hand(x):
    return x * torch.sigmoid(x)


@pytest.mark.parametrize("f", [tanh_by_hand, erf_by_hand, swish_by_hand])
def test_activation_written_by_hand_is_the_same_secant(f, rng):
    x, seed = normal(rng, 1, 5, 3), normal(rng, 1, 5, 3)
    found = through(CONSERVATIVE, f, x, seed=seed)
    exactly(found.relevance[0], f(x) * seed)  # f(0) = 0
    exactly(found.recorded, 0.0)


IN_PLACE = {
    "tanh_": lambda x: x.tanh_(),
    "sigmoid_": torch.sigmoid_,
    "silu": lambda x: F.silu(x, inplace=True),
    "silu, result dropped": lambda x: (F.silu(x, inplace=True), x)[1],
    "elu_": F.elu_,
    "elu by place": lambda x: F.elu(x, 1.0, True),
    "hardtanh_": F.hardtanh_,
    "relu_": F.relu_,
    "clamp_": lambda x: x.clamp_(min=-0.5),
    "SiLU": nn.SiLU(inplace=True),
    "ELU": nn.ELU(inplace=True),
    "Hardtanh": nn.Hardtanh(inplace=True),
    "ReLU": nn.ReLU(inplace=True),
    "ReLU6": nn.ReLU6(inplace=True),
}


@pytest.mark.parametrize("f", list(IN_PLACE.values()), ids=list(IN_PLACE))
def test_in_place_activation_is_the_same_secant(f, rng):
    x, seed, weight = normal(rng, 1, 5, 3), normal(rng, 1, 5, 3), normal(rng, 3, 3)
    values = f(x @ weight)
    at_zero = f(torch.zeros(1, dtype=x.dtype))
    found = through(CONSERVATIVE, lambda x: f(x @ weight), x, seed=seed)
    exactly(found.out, values)
    inner = x @ weight
    slopes = (values - at_zero) / inner
    exactly(found.relevance[0], x * ((seed * slopes) @ weight.T))
    exactly(found.recorded, float((at_zero * seed).sum()))


@pytest.mark.parametrize("count", [1, 4])
def test_prelu_module_with_a_slope_for_each_channel(count, rng):
    act = nn.PReLU(count, init=0.3, dtype=torch.float64)
    x = normal(rng, 1, 4, 3)  # channels on the axis after the batch
    found = through(CONSERVATIVE, act, x)
    exactly(found.relevance[0], act(x).detach())


@pytest.mark.parametrize("gate", [nn.Sigmoid(), nn.Hardsigmoid(), nn.Softplus()])
def test_what_an_activation_module_is_at_zero_is_a_bias(gate, rng):
    x = normal(rng, 1, 5, 3)
    found = through(CONSERVATIVE, nn.Sequential(gate), x)
    ((kind, entry),) = ((key[1], entry) for key, entry in found.tracer.ledger.entries.items())
    assert kind == "bias"
    exactly(float(entry.total), 15 * float(gate(torch.zeros(1, dtype=torch.float64))))


def test_an_activation_of_a_parameter_is_a_constant(rng):
    """tanh(α) · x, the gate of adapters in a trained model."""
    gate, layer, x = nn.Tanh(), nn.Module(), normal(rng, 1, 5, 3)
    layer.alpha = nn.Parameter(normal(rng, 3))
    found = through(CONSERVATIVE_SHARED, lambda x: gate(layer.alpha) * x, x, model=layer)
    exactly(found.relevance[0], x * layer.alpha.detach().tanh())


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


class Cube(nn.Module):
    def forward(self, x):
        return _Cube.apply(x)


def test_module_around_an_autograd_function_is_an_activation(rng):
    x = normal(rng, 1, 5, 3)
    found = through(CONSERVATIVE, Cube(), x)
    exactly(found.relevance[0], x**3)


def test_a_constant_that_goes_through_an_activation_is_left_alone(rng):
    x, other = normal(rng, 1, 5, 3), normal(rng, 3)
    found = through(CONSERVATIVE, lambda x: x * F.gelu(other), x)
    assert not found.tracer.touched["activation"]
    exactly(found.relevance[0], x * F.gelu(other))
