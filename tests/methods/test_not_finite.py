"""Scores that are NaN or infinite are an error, even if the output is finite."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from wherefrom import Explainer
from wherefrom.core.runner import Rejected
from wherefrom.errors import NotFinite
from wherefrom.methods.forward_graph import ConservationCheck

METHODS = ("lrp", "gradient_x_input", "integrated_gradients", "gradient_rollout")
D = 16


class Overflows(nn.Module):
    """Attention, then three linear layers whose weights multiply to more than float16 holds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, D)
        self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        with torch.no_grad():
            self.embed.weight.mul_(1e-3)
            for layer in self.layers:
                layer.weight.mul_(250)
        self.half().eval()

    def forward(self, input_ids):
        x = self.embed(input_ids)
        x = (x @ x.mT).softmax(-1) @ x
        for layer in self.layers:
            x = layer(x)
        return x.mean(1)[:, :2]


class RootAtZero(nn.Module):
    """Attention, then the length of each token: its derivative is undefined where it is zero."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, D)
        self.head = nn.Linear(D, 2)
        with torch.no_grad():
            self.embed.weight[7] = 0  # the token whose length is zero
        self.double().eval()

    def forward(self, input_ids):
        x = self.embed(input_ids)
        x = torch.diag_embed(x.square().sum(-1).sqrt() / 4).softmax(-1) @ x
        return self.head(x).mean(1)


@pytest.mark.parametrize("method", METHODS)
def test_scores_that_overflow_are_an_error_that_names_layer_and_remedy(method):
    model = Overflows()
    ids = [[1, 2, 3], [4, 5, 6]]
    assert bool(model(torch.tensor(ids)).isfinite().all())
    with pytest.raises(NotFinite, match=r"NaN or infinite.*float32.*occlusion") as raised:
        Explainer(model)(ids, method)
    if method in ("lrp", "gradient_x_input"):
        assert "at the output of layers.0 it is still finite" in str(raised.value)
    assert "--dtype float32" in raised.value.for_command()
    finite = Explainer(model.float())(ids, method)
    assert all(np.isfinite(explanation.scores).all() for explanation in finite)


@pytest.mark.parametrize("method", ["gradient_x_input", "gradient", "integrated_gradients", "lrp"])
def test_one_sample_without_a_derivative_is_rejected_alone(method):
    explainer = Explainer(RootAtZero())
    texts = [[1, 2, 3], [4, 7, 6], [5, 8, 9]]
    found = explainer.each(texts, method)
    for ids, result in zip(texts, found, strict=True):
        if 7 in ids and method != "lrp":  # its rule takes the length as a constant
            assert isinstance(result, Rejected)
            assert isinstance(result.error, NotFinite)
            assert "scores of 1 of 1 input" in str(result.error)
            assert "float32" not in str(result.error)  # a wider number type does not help
        else:
            np.testing.assert_allclose(result.scores, explainer(ids, method).scores, rtol=1e-9)


def test_a_tolerance_is_not_chased_through_scores_that_are_not_finite():
    with pytest.raises(NotFinite):
        Explainer(Overflows())([1, 2, 3], "integrated_gradients", steps=2, tolerance=1e-6)


def test_a_ledger_line_that_is_not_a_number_counts_as_lost(monkeypatch):
    own = ConservationCheck.messages

    def spoiled(self, scores, output, forward):
        next(iter(scores.lines.values()))[0] = float("nan")
        return own(self, scores, output, forward)

    monkeypatch.setattr(ConservationCheck, "messages", spoiled)
    model = RootAtZero()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = Explainer(model)([[1, 2, 3], [4, 5, 6]], "lrp")
    assert "does not add up" in first.warnings[0]
    assert not second.warnings
