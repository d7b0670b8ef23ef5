"""A gradient that ends before the input is reported with its module and call."""

import pytest
import torch
from torch import nn

from benchmarks.tiny import model as tiny
from tests.helpers import exactly, normal
from tests.modules import CLASSES, D, Plain
from wherefrom import Explainer
from wherefrom.errors import ModelError, NotConserved


class Frozen(Plain):
    """A backbone through which no gradient, or only a part, passes."""

    def __init__(self, way):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(D, D), nn.GELU())
        self.head = nn.Linear(D, CLASSES)
        self.way = way
        self.shaken()

    def forward(self, x):
        return self.head(getattr(self, self.way)(x).mean(1))

    @torch.no_grad()
    def no_grad(self, x):
        return self.backbone(x)

    def inference_mode(self, x):
        with torch.inference_mode():
            hidden = self.backbone(x)
        return hidden.clone()

    def detach(self, x):
        return self.backbone(x).detach()

    def data(self, x):
        return self.backbone(x).data

    def counted(self, x):
        return (64 * self.backbone(x)).detach().to(torch.int64).to(torch.float64)

    def long(self, x):
        return (64 * self.backbone(x)).long().double()

    def written(self, x):
        hidden = torch.zeros_like(x)
        with torch.no_grad():
            hidden[:] = self.backbone(x)
        return hidden

    def integers(self, x):
        return (self.backbone(x) * 8).round().to(torch.int8).double() / 8

    def partly(self, x):
        return x + self.backbone(x).detach()

    def joined(self, x):
        return torch.cat([x, self.backbone(x).detach()], 1)

    def gated(self, x):
        return x * self.backbone(x).detach()

    def cast(self, x):
        return x + torch.ones(D).type_as(x)

    def blank(self, x):
        return x + torch.zeros_like(x) + x.new_ones(D)


@pytest.mark.parametrize("method", ["lrp", "gradient", "integrated_gradients", "attn_lrp"])
@pytest.mark.parametrize(
    ("way", "place"),
    [
        ("no_grad", r"in backbone\.0, at linear \(torch\.no_grad\(\)\)"),
        ("inference_mode", r"in backbone\.0, at linear \(torch\.inference_mode\(\)\)"),
        ("written", r"in backbone\.0, at linear \(torch\.no_grad\(\)\)"),
        ("detach", r"in the model's own forward, at detach \(\.detach\)"),
        ("counted", r"in the model's own forward, at detach \(\.detach\)"),
        ("data", r"in the model's own forward, at data \(\.data\)"),
        ("integers", r"in the model's own forward, at to \(it has no derivative\)"),
        ("long", r"in the model's own forward, at long \(it has no derivative\)"),
    ],
)
def test_a_gradient_that_ends_is_an_error_that_names_the_module(way, place, method, rng):
    with pytest.raises(ModelError, match=rf"the gradient of Frozen ends {place}: all scores"):
        Explainer(Frozen(way))(normal(rng, 2, 5, D), method)


def test_occlusion_needs_no_gradient(rng):
    assert abs(Explainer(Frozen("no_grad"))(normal(rng, 5, D), "occlusion").scores).min() > 0


@pytest.mark.parametrize("method", ["lrp", "attention_rollout", "gae"])
def test_an_embedding_without_gradients_is_named(method):
    model = tiny("bert", "classify")

    class Backbone(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert, self.head = model.bert, model.classifier

        def forward(self, input_ids, attention_mask):
            with torch.no_grad():
                hidden = self.bert(input_ids, attention_mask).last_hidden_state
            return self.head(hidden[:, 0])

    with pytest.raises(
        ModelError, match=r"ends in bert\.embeddings\.word_embeddings, at embedding"
    ):
        Explainer(Backbone())([5, 17, 33], method)


@pytest.mark.parametrize("way", ["partly", "joined"])
def test_what_reaches_the_output_without_a_gradient_is_a_line_and_a_warning(way, rng):
    module, x = Frozen(way), normal(rng, 2, 5, D)
    with pytest.warns(NotConserved, match="own forward, at detach") as caught:
        explanations = Explainer(module)(x, target=1)
    assert len(caught) == 1
    hidden = module.backbone(x).detach() / (2 if way == "joined" else 1)  # the mean is of both
    for explanation, row in zip(explanations, hidden, strict=True):
        detached = explanation.ledger.of("detached")
        exactly(detached, float((module.head.weight[1] * row.mean(0)).sum().detach()))
        assert explanation.ledger.relative < 1e-12
        share = abs(detached / explanation.output)
        assert f"{100 * share:.1f} % of the output" in explanation.warnings[0]


@pytest.mark.parametrize("way", ["gated", "blank", "cast"])
def test_a_constant_factor_and_a_blank_tensor_are_no_loss(way, rng):
    explanation = Explainer(Frozen(way))(normal(rng, 5, D))
    assert explanation.warnings == ()
    assert explanation.ledger.of("detached") == 0
    assert explanation.ledger.relative < 1e-12


def test_a_model_that_gives_back_its_input(rng):
    x = normal(rng, 5, D)
    explanation = Explainer(nn.Identity(), forward=lambda m, t: t["x"])(x, target=2, position=1)
    exactly(explanation.scores, [0.0, float(x[1, 2]), 0.0, 0.0, 0.0], 1e-6)


def test_a_length_as_the_output_is_held_constant_by_its_rule(rng):
    class Length(Plain):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(D, CLASSES)
            self.shaken()

        def forward(self, x):
            return self.head(x).square().sum(1).sqrt()

    x = normal(rng, 5, D)
    with pytest.raises(ModelError, match=r"at sqrt \(its rule makes it a constant\)"):
        Explainer(Length())(x)
    assert abs(Explainer(Length())(x, "gradient").scores).min() > 0
