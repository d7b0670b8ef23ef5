"""Packed weights: the layer's own value, and the gradient of its dequantised weights."""

import warnings

import pytest
import torch
from torch import nn

from tests.helpers import exactly
from tests.modules import CLASSES, D
from wherefrom import Explainer
from wherefrom.errors import NotConserved
from wherefrom.methods import method


class Net(nn.Module):
    """Two layers and a norm, in float32: no packed layer takes float64."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm = nn.Linear(D, 8), nn.LayerNorm(8)
        self.head = nn.Linear(8, CLASSES)
        self.eval()

    def forward(self, x):
        return self.head(nn.functional.gelu(self.norm(self.first(x))).mean(1))


def dynamic(module, dtype=torch.qint8):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that this is deprecated
        return torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, dtype=dtype)


@pytest.fixture
def x():
    return torch.randn(3, 5, D, generator=torch.Generator().manual_seed(7))


def test_relevance_of_an_int8_layer_is_input_times_dequantised_weight(x):
    layer = dynamic(nn.Sequential(nn.Linear(D, CLASSES)).eval())
    explanation = Explainer(layer, forward=lambda m, t: m(t["x"]).mean(1))(x[0], target=1)
    weight, bias = layer[0].weight().dequantize(), layer[0].bias()
    exactly(explanation.scores, (x[0] * weight[1]).sum(-1).double().detach() / 5, 1e-6)
    exactly(explanation.ledger.of("bias"), float(bias.detach()[1]), 1e-6)
    output = float(layer(x[0]).mean(0)[1].detach())
    exactly(explanation.output, output, 1e-6)
    affine = float(nn.functional.linear(x[0], weight, bias).mean(0)[1].detach())
    assert abs(output - affine) > 1e-5  # activations are rounded too
    exactly(explanation.ledger.of("quantisation"), output - affine, 1e-6)


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
def test_ledger_of_a_dynamically_quantised_model_closes(dtype, x):
    model = dynamic(Net(), dtype)
    exact = Explainer(Net())(x)
    for row, plain in zip(x, exact, strict=True):  # alone: the scale depends on the whole batch
        explanation = Explainer(model)(row)
        assert explanation.ledger.relative < 1e-5
        assert explanation.warnings == ()
        assert abs(explanation.scores).max() > 0.01
        exactly(explanation.scores, plain.scores, 0.05)


@pytest.mark.parametrize("method", ["gradient_x_input", "integrated_gradients"])
def test_other_methods_see_through_it(method, x):
    explanation, plain = (Explainer(m)(x[0], method) for m in (dynamic(Net()), Net()))
    exactly(explanation.scores, plain.scores, 0.05)
    assert abs(explanation.scores).max() > 0.01


class Packed(torch.Tensor):
    """A packed weight as in other libraries: a tensor subclass with `dequantize`."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def dequantize(self, *_):
        return self.codes.float() * self.scale

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is not nn.functional.linear:
            return super().__torch_function__(function, types, args, kwargs)
        x, weight, bias = args
        with torch.no_grad():  # activations are rounded to eighths, with no derivative
            return nn.functional.linear((x * 8).round() / 8, weight.dequantize(), bias)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        assert function is torch.ops.aten.detach.default
        return Packed(args[0].codes, args[0].scale)


def test_a_weight_that_is_a_tensor_class_of_its_own(x):
    model = Net()
    codes = torch.randint(-8, 8, (8, D), generator=torch.Generator().manual_seed(5)).to(torch.int8)
    model.first.weight = nn.Parameter(Packed(codes, 0.1), requires_grad=False)
    explanation = Explainer(model, forward=lambda m, t: m.first(t["x"])[:, 0])(x[0], target=2)
    weight = codes[2].float() * 0.1
    exactly(explanation.scores[0], float((x[0, 0] * weight).sum()), 1e-6)
    exactly(explanation.scores[1:], torch.zeros(4))
    rounding = float((((x[0, 0] * 8).round() / 8 - x[0, 0]) * weight).sum())
    exactly(explanation.ledger.of("quantisation"), rounding, 1e-5)
    for whole in Explainer(model)(x):
        assert whole.ledger.relative < 1e-5


class PackedMatmul(torch.autograd.Function):
    """Weights in bytes, rounded activations and a bias inside, as in other libraries."""

    @staticmethod
    def forward(ctx, x, weight, bias, eighths):
        ctx.weight = weight
        rounded = (x * 8).round() / 8 if eighths else x
        return (rounded @ (weight.float() * 0.1).T + bias).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ (ctx.weight.float() * 0.1), None, None, None


class PackedLinear(nn.Module):
    def __init__(self, size, eighths):
        super().__init__()
        codes = torch.randint(-8, 8, (size, size), generator=torch.Generator().manual_seed(5))
        self.weight = nn.Parameter(codes.to(torch.int8), requires_grad=False)
        self.bias = nn.Parameter(torch.linspace(-1, 1, size))
        self.eighths = eighths

    def forward(self, x):
        return PackedMatmul.apply(x, self.weight, self.bias, self.eighths)


@pytest.mark.parametrize("eighths", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_what_a_packed_layer_adds_within_is_in_the_ledger(inside, eighths, x):
    """A layer as wide as its input is not an activation, nor is the module around it."""
    model = Net()
    layer = PackedLinear(D, eighths)
    model.first = nn.Sequential(nn.Sequential(layer) if inside else layer, model.first)
    for explanation, row in zip(Explainer(model)(x), x, strict=True):
        assert explanation.ledger.relative < 1e-5
        assert explanation.warnings == ()
        alone = Explainer(model)(row)
        exactly(explanation.ledger.of("quantisation"), alone.ledger.of("quantisation"), 1e-5)
    single = nn.Sequential(layer)
    explanation = Explainer(single, forward=lambda m, t: m(t["x"]).mean(1))(x[0], target=1)
    weight = layer.weight[1] * 0.1
    exactly(explanation.scores, (x[0] * weight).sum(-1) / 5, 1e-6)
    exactly(explanation.ledger.of("bias"), float(layer.bias.detach()[1]), 1e-6)
    rounding = float((((x[0] * 8).round() / 8 - x[0]) * weight).sum() / 5) if eighths else 0.0
    exactly(explanation.ledger.of("quantisation"), rounding, 1e-5)


def test_a_quantised_call_without_a_rule_is_warned_of(x):
    """A fused linear and ReLU layer has no derivative: a warning reports the lost relevance."""
    packed = dynamic(nn.Sequential(nn.Linear(D, D)).eval())[0]._packed_params._packed_params

    class Fused(Net):
        def forward(self, x):
            return super().forward(x + torch.ops.quantized.linear_relu_dynamic(x, packed))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        explanation = Explainer(Fused())(x[0])
    assert any(warning.category is NotConserved for warning in caught)
    assert "linear_relu_dynamic" in explanation.warnings[0]


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
def test_secants_of_a_dynamically_quantised_model_add_up(dtype, x):
    model = dynamic(Net(), dtype)
    for row in x:
        explanation = Explainer(model)(row, method=method("secant", root=torch.ones_like(x[:1])))
        assert explanation.ledger.relative < 1e-5
        assert explanation.warnings == ()
        expected = float(model(torch.ones(1, 5, D))[0, explanation.target.index].detach())
        exactly(explanation.ledger.of("reference"), expected, 1e-5)
