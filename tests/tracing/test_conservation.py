"""A ledger that does not add up gives a warning with the call that loses relevance."""

import json
import warnings

import pytest
import torch
from torch import nn

from tests.helpers import exactly, normal
from tests.modules import CLASSES, Block, D, Plain
from wherefrom import Explainer, Explanation
from wherefrom.errors import NotConserved
from wherefrom.methods.propagation import CONSERVATIVE, Lrp
from wherefrom.show.html import render as page
from wherefrom.show.terminal import render as lines
from wherefrom.show.terminal import render_rows
from wherefrom.tracing.observers.balances import Balances
from wherefrom.tracing.observers.entry_points import EntryPoints
from wherefrom.tracing.tracer import Tracer


class Twice(torch.autograd.Function):
    """A derivative that is twice the true one."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient @ ctx.saved_tensors[0], None


twice = Twice.apply  # bound before the pass


class Open(Plain):
    """A layer for which there is no rule, between two others."""

    def __init__(self, layer):
        super().__init__()
        self.first, self.head = nn.Linear(D, D), nn.Linear(D, CLASSES)
        self.layer = layer
        self.shaken()

    def forward(self, x):
        return self.head(self.layer(self.first(x)).mean(1))


class Products(nn.Module):
    def forward(self, x):
        return torch.cumprod(x, 1)


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(D))

    def forward(self, x):
        return twice(x, self.weight)


@pytest.mark.parametrize(
    ("layer", "place"),
    [
        (Products, r"Relevance is lost in layer \(cumprod\)"),
        (Custom, r"lost at the autograd Function Twice|in .*\(the autograd Function Twice\)"),
    ],
)
def test_the_warning_names_the_call_that_loses_relevance(layer, place, rng):
    x = normal(rng, 3, 5, D)
    with pytest.warns(NotConserved, match=place) as caught:
        explanations = Explainer(Open(layer()))(x)
    assert [warning.category for warning in caught] == [NotConserved]  # one, and not run alone
    for explanation in explanations:
        (text,) = explanation.warnings
        assert f"the residual is {explanation.ledger.residual:.3g}" in text
        assert f"{100 * explanation.ledger.relative:.1f} % of it" in text


def test_what_each_call_loses_is_its_result_less_its_arguments(rng):
    """x² with its true derivative 2x loses x² − 2x·x; a linear layer loses nothing."""
    x, weight = normal(rng, 1, 4, D), normal(rng, 1, D)
    table = {kind: rule for kind, rule in CONSERVATIVE.items() if kind.name != "ACTIVATION"}
    sources = EntryPoints([x])
    balances = Balances()
    with Tracer(table, sources, observers=[balances]):
        entered = sources.enter(x.clone(), sources.span_of(0))
        squares = torch.square(entered)
        out = nn.functional.linear(squares, weight) + 3.0
        torch.autograd.grad(out.sum(), sources.entered[0].leaf)
    lost = {balance.call: balance.lost for balance in balances.balances}
    exactly(lost["square"], float(-(x.square() @ weight.T).sum()))
    exactly([lost["linear"], lost["add"]], [0.0, 0.0])
    assert balances.first_open(1e-9).call == "square"


def test_only_a_method_that_promises_to_close_warns(rng):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explanation = Explainer(Open(Products()))(normal(rng, 5, D), "gradient_x_input")
    assert explanation.warnings == ()


@pytest.fixture
def warned(rng):
    with pytest.warns(NotConserved):
        return Explainer(Open(Products()))(normal(rng, 5, D))


def test_warnings_travel_with_the_explanation(warned):
    (text,) = warned.warnings
    assert json.loads(warned.to_json())["warnings"] == [text]
    assert Explanation.from_json(warned.to_json()).warnings == (text,)
    old = warned.to_dict()
    del old["warnings"]  # as in a file without warnings
    assert Explanation.from_dict(old).warnings == ()


def test_warnings_are_shown(warned):
    (text,) = warned.warnings
    for shown in (lines(warned, color=False), render_rows([warned, warned], color=False)):
        assert f"warning: {text}" in " ".join(shown.split())
    escaped = text.replace('"', "&quot;")
    for shown in (page([warned]), page([warned, warned])):
        assert f'<p class="warning">Warning: {escaped}</p>' in shown


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_the_precision_rounds_is_no_reason_to_warn(dtype, rng):
    module = Block().to(dtype)
    for explanation in Explainer(module)(normal(rng, 4, 5, D).to(dtype)):
        assert explanation.warnings == ()


@pytest.mark.parametrize("share", [0.002, 0.05, 0.3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_what_is_lost_beyond_the_precision_is_warned_of(dtype, share, rng):
    """A layer whose derivative is too small by a share loses this share of the units' relevance."""

    class Lossy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(weight)
            return x @ weight.T

        @staticmethod
        def backward(ctx, gradient):
            return (1 - share) * gradient @ ctx.saved_tensors[0], None

    lossy = Lossy.apply

    class Layer(Custom):
        def forward(self, x):
            return lossy(x, self.weight)

    module = Open(Layer())
    with torch.no_grad():
        for layer in (module.first, module.head):  # nothing cancels: the share lost is exact
            layer.bias.zero_()
            layer.weight.abs_()
        module.layer.weight.abs_()
    allowed = {torch.float64: 0, torch.float32: 0.001, torch.float16: 0.01, torch.bfloat16: 0.08}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Explainer(module.to(dtype))(normal(rng, 5, D).abs().to(dtype), Lrp())
    assert any(w.category is NotConserved for w in caught) == (share > allowed[dtype])
