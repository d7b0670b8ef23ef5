"""The model's own autograd Functions: written out, or as they are with a line of the ledger."""

import math
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.nn import functional as F

from tests.helpers import exactly, normal, through
from tests.modules import CLASSES, D, Plain
from wherefrom import Explainer
from wherefrom.errors import NotConserved
from wherefrom.rules.tables import ATTN_LRP, CONSERVATIVE, CONSERVATIVE_SHARED, PLAIN

WRITTEN = vars(Function)["apply"]


class MaskedSoftmax(Function):
    """As DeBERTa had it: writes into what the softmax gave."""

    @staticmethod
    def forward(ctx, scores, mask):
        with torch.no_grad():
            out = torch.softmax(scores.masked_fill(mask, torch.finfo(scores.dtype).min), -1)
            out.masked_fill_(mask, 0)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        (out,) = ctx.saved_tensors
        return (gradient - (gradient * out).sum(-1, keepdim=True)) * out, None


class BoundRoot(Function):
    """A root whose derivative is bounded: as a gate of its own it would lose half."""

    @staticmethod
    def forward(x):
        return x.sqrt()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        return gradient / (4 * ctx.saved_tensors[0]).clip(min=1e-6).sqrt()


class Kernel(Function):
    """x Wᵀ + b in a library that torch does not see, and twice its derivative."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(weight)
        out = x.detach().numpy() @ weight.detach().numpy().T + bias.detach().numpy()
        return torch.from_numpy(out)

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient @ ctx.saved_tensors[0], None, None


class Rounded(Function):
    """Rounding, straight through."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Halves(Function):
    """The larger and the smaller half; which they are has no gradient."""

    @staticmethod
    def forward(ctx, x):
        values, places = x.sort(-1)
        ranks = places.to(x.dtype)
        ctx.mark_non_differentiable(ranks)
        return values, ranks

    @staticmethod
    def backward(ctx, gradient, _):
        raise AssertionError("is not run")


@pytest.mark.parametrize("table", [CONSERVATIVE, CONSERVATIVE_SHARED, ATTN_LRP])
def test_a_function_gives_what_the_same_calls_outside_of_it_give(table, rng):
    x, weight = normal(rng, 1, 5, 4), normal(rng, 4, 4)
    mask = torch.zeros(5, 5, dtype=torch.bool).index_fill_(-1, torch.tensor([3]), True)

    def attends(softmax):
        def run(x):
            scores = (x @ weight @ x.mT) / math.sqrt(4)
            return softmax(scores) @ x

        return run

    def plain(scores):
        out = torch.softmax(scores.masked_fill(mask, torch.finfo(scores.dtype).min), -1)
        return out.masked_fill(mask, 0)

    expected = through(table, attends(plain), x)
    found = through(table, attends(lambda scores: MaskedSoftmax.apply(scores, mask)), x)
    exactly(found.out, expected.out)
    exactly(found.relevance[0], expected.relevance[0])
    exactly(found.booked, expected.booked)
    exactly(float(found.relevance[0].sum()) + found.booked, float(found.out.sum()))


def test_a_root_in_a_function_is_a_scale_and_a_constant(rng):
    """y = x · [√(1 − a²)] with a = σ(x): of a shared gate x has the whole, the root nothing."""
    x = normal(rng, 1, 5, 3)

    def gated(x):
        a = torch.sigmoid(x)
        return x * BoundRoot.apply(1 - a * a)

    found = through(CONSERVATIVE_SHARED, gated, x)
    a = torch.sigmoid(x)
    exactly(found.relevance[0], x * (1 - a * a).sqrt())
    exactly(found.booked, 0.0)


def test_the_true_gradient_is_that_of_the_function(rng):
    x, weight, bias = normal(rng, 1, 5, 3), normal(rng, 2, 3), normal(rng, 2)
    found = through(PLAIN, lambda x: Kernel.apply(x, weight, bias), x)
    exactly(found.relevance[0], 2 * x * weight.sum(0))


def test_what_is_hidden_is_a_line_of_the_ledger(rng):
    """Relevance is that of its own backward pass, 2 g W; the line is what that is too much."""
    x, weight, bias = normal(rng, 1, 5, 3), normal(rng, 2, 3), normal(rng, 2)
    found = through(CONSERVATIVE, lambda x: Kernel.apply(x, weight, bias), x)
    exactly(found.relevance[0], 2 * x * weight.sum(0))
    exactly(found.booked, float((bias - x @ weight.T).sum()))
    ((key, _),) = found.tracer.ledger.entries.items()
    assert key == ("", "function")
    assert found.tracer.opaque == ["the autograd Function Kernel"]


def test_rounding_goes_straight_through_as_its_author_says(rng):
    x = normal(rng, 1, 5, 3) * 3
    found = through(CONSERVATIVE, lambda x: Rounded.apply(x) * 2.0, x)
    exactly(found.relevance[0], 2 * x)
    exactly(found.booked, float(2 * (x.round() - x).sum()))


def test_results_without_a_gradient_have_none(rng):
    x = normal(rng, 1, 5, 3)

    def run(x):
        values, ranks = Halves.apply(x)
        assert values.requires_grad
        assert not ranks.requires_grad
        return values[..., 0] - ranks[..., 0]

    found = through(CONSERVATIVE, run, x)
    first = torch.zeros_like(x).scatter_(-1, x.argmin(-1, keepdim=True), 1.0)
    exactly(found.relevance[0], x * first)
    exactly(found.booked, -float(x.argmin(-1).sum()))


class Deep(nn.Module):
    """As reversible layers: a Function around modules, gradients off around all of them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(D, D, dtype=torch.float64)

    def forward(self, x):
        class Around(Function):
            @staticmethod
            def forward(ctx, x, layer):
                with torch.no_grad():
                    out = F.gelu(layer(x))
                    with torch.no_grad():
                        scale = out.mean()
                    return out + scale

            @staticmethod
            def backward(ctx, gradient):
                raise AssertionError("is not run")

        return Around.apply(x, self.layer)


@pytest.mark.filterwarnings("ignore::wherefrom.errors.NotConserved")
def test_gradients_off_around_a_function_mean_nothing_and_within_that_what_they_say(rng):
    x, deep = normal(rng, 1, 5, D), Deep()
    found = through(CONSERVATIVE, deep, x, model=deep)
    z = deep.layer(x).detach()
    slope = F.gelu(z) / z
    exactly(found.relevance[0], x * (slope @ deep.layer.weight.detach()))
    kinds = {key: float(entry.total.detach()) for key, entry in found.tracer.ledger.entries.items()}
    exactly(kinds["layer", "bias"], float((slope * deep.layer.bias.detach()).sum()))
    exactly(kinds["", "detached"], float(F.gelu(z).mean()) * z.numel())


class Net(Plain):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(D, D), nn.Linear(D, CLASSES)
        self.weight, self.bias = nn.Parameter(torch.eye(D)), nn.Parameter(torch.ones(D))
        self.shaken()

    def forward(self, x):
        return self.head(Kernel.apply(self.first(x), self.weight, self.bias).mean(1))


def test_a_hidden_function_is_warned_of_and_named_and_the_ledger_adds_up(rng):
    x = normal(rng, 3, 5, D)
    net = Net()
    with pytest.warns(NotConserved, match=r"those of the autograd Function Kernel, in which no"):
        explanations = Explainer(net)(x, target=1, attention=0)
    for explanation, row in zip(explanations, x, strict=True):
        assert explanation.ledger.relative < 1e-12
        with torch.no_grad():
            hidden = net.bias - net.first(row) @ net.weight.T
            expected = hidden.mean(0) @ net.head.weight[1]
        exactly(explanation.ledger.of("function"), float(expected))


def test_a_function_of_a_linear_map_is_not_warned_of(rng):
    class Honest(Net):
        def forward(self, x):
            class Exact(Kernel):
                @staticmethod
                def backward(ctx, gradient):
                    return gradient @ ctx.saved_tensors[0], None, None

            return self.head(Exact.apply(self.first(x), self.weight, 0 * self.bias).mean(1))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explanation = Explainer(Honest())(normal(rng, 5, D), target=1)
    assert abs(explanation.ledger.of("function")) < 1e-12


def test_a_constant_that_the_model_wants_a_gradient_for_is_a_constant(rng):
    """What is computed of it is no way from the input, but adds to the output."""

    class Zeros(Net):
        def forward(self, x):
            other = torch.full_like(x, 2.0).requires_grad_()
            return self.head((self.first(x) + F.linear(other, self.weight, self.bias)).mean(1))

    x, net = normal(rng, 3, 5, D), Zeros()
    for explanation, row in zip(Explainer(net)(x, target=1, root=None), x, strict=True):
        words = (row @ net.first.weight.T @ net.head.weight[1]).detach() / 5
        exactly(explanation.scores, words, 1e-6)
        constant = (net.first.bias + net.weight.sum(1) * 2 + net.bias).detach()
        expected = (constant @ net.head.weight[1] + net.head.bias[1]).detach()
        exactly(explanation.ledger.of("bias"), float(expected))
        assert explanation.ledger.relative < 1e-12


def test_torch_applies_functions_itself_again_after_a_pass(rng):
    """And in another thread while it is made."""
    x, seen = normal(rng, 1, 5, 3), []

    def executor():
        given = torch.ones(2, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(Rounded.apply(given * 1.4).sum(), given)
        seen.append((vars(Function)["apply"] is WRITTEN, gradient.tolist()))

    def run(x):
        thread = threading.Thread(target=executor)
        thread.start()
        thread.join()
        return x * 2.0

    through(CONSERVATIVE, run, x)
    assert seen == [(False, [1.4, 1.4])]
    assert vars(Function)["apply"] is WRITTEN
    with pytest.raises(ZeroDivisionError):
        through(CONSERVATIVE, lambda x: 1 / 0, x)
    assert vars(Function)["apply"] is WRITTEN
