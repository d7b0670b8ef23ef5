"""Interventions equal the same change made by module hooks."""

import copy

import pytest
import torch

from wherefrom.errors import InputError

TEXT = "a film with charm, but not a good one"


def logit(explainer, text=TEXT):
    return explainer(text, "occlusion", target="POSITIVE").output


@pytest.fixture
def layer(sentiment):
    return sentiment.runner.model.bert.encoder.layer


def hooked(module, change, explainer):
    """The output with a change of what a module takes."""
    handle = module.register_forward_pre_hook(lambda _, args: (change(args[0].clone()), *args[1:]))
    try:
        return logit(explainer)
    finally:
        handle.remove()


def zero_head(x):
    x[..., 96:128] = 0  # head 3 of 32 features
    return x


def test_a_removed_head_is_a_head_of_zeros(sentiment, layer):
    expected = hooked(layer[1].attention.output.dense, zero_head, sentiment)
    assert logit(sentiment.without("layer.1.head.3")) == pytest.approx(expected, abs=1e-5)
    assert abs(expected - logit(sentiment)) > 1e-3


def test_neurons_are_scaled_and_streams_steered(sentiment, layer):
    vector = torch.randn(192, generator=torch.Generator().manual_seed(0)) / 5

    def tenfold(x):
        x[..., 7] *= 10
        return x

    expected = hooked(layer[2].output.dense, tenfold, sentiment)
    assert logit(sentiment.intervene({"layer.2.neuron.7": 10.0})) == pytest.approx(
        expected, abs=1e-5
    )
    expected = hooked(layer[2], lambda x: x + vector, sentiment)
    assert logit(sentiment.intervene({"layer.2": vector})) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("method", ["lrp", "secant", "attn_lrp", "integrated_gradients"])
def test_the_changed_model_is_explained_with_an_exact_ledger(sentiment, method):
    vector = torch.randn(32, generator=torch.Generator().manual_seed(0))
    changed = sentiment.intervene({"layer.1.mlp": 0.0, "layer.3.head.2": vector})
    texts = [TEXT, "a bad film"]
    for text, explanation in zip(texts, changed(texts, method, target="POSITIVE"), strict=True):
        assert explanation.output == pytest.approx(logit(changed, text), abs=1e-5)
        if method != "integrated_gradients":
            assert explanation.ledger.relative < 1e-5


def test_a_component_that_is_not_there_is_an_error(sentiment):
    for name in ("layer.9", "layer.1.head.77", "layer.0.expert.1"):
        with pytest.raises(InputError, match="has no layer"):
            sentiment.without(name)(TEXT)
    with pytest.raises(InputError, match="there is no component"):
        sentiment.without("encoder.3")
    with pytest.raises(InputError, match="at all units"):
        sentiment.without("layer.1.head.3@2")


def test_the_model_and_the_explainer_stay_as_they_were(sentiment):
    before = logit(sentiment)
    weights = copy.deepcopy(sentiment.runner.model.state_dict())
    changed = sentiment.without("layer.0.mlp")
    changed(TEXT)
    assert logit(sentiment) == before
    assert all(torch.equal(weights[k], v) for k, v in sentiment.runner.model.state_dict().items())
    assert not sentiment.runner.model.bert.encoder.layer[0]._forward_pre_hooks
