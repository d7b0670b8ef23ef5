"""The bridge to Captum's attributors."""

import sys

import pytest
import torch
from captum.attr import IntegratedGradients, Saliency

from tests.helpers import normal
from tests.methods.calling import ROWS, family, of_ids, of_tensor, same, scores
from tests.modules import Block, D
from wherefrom import Explainer
from wherefrom.errors import MethodError, MissingExtra, WherefromError
from wherefrom.methods import method

IDS = [2, 17, 9, 33, 8, 41, 3]


def words(model, ids):
    return model.bert.embeddings.word_embeddings(torch.tensor([ids])).detach()


def logit(model, target=1):
    return lambda x: model(inputs_embeds=x).logits[:, target]


def test_integrated_gradients_are_captums_own_on_the_embedded_input(bert):
    actual = scores(bert, of_ids(bert, ROWS), "captum:IntegratedGradients", 1, n_steps=6)
    for row, ids in zip(actual, ROWS, strict=True):
        expected = IntegratedGradients(logit(bert)).attribute(words(bert, ids), n_steps=6)
        same(row[: len(ids)], expected[0].detach().sum(-1))
        assert not row[len(ids) :].any()


def test_integrated_gradients_are_wherefroms_own_to_captums_precision(bert):
    inputs = of_ids(bert, [IDS])
    expected = scores(bert, inputs, "integrated_gradients", 1, steps=12)
    same(scores(bert, inputs, "captum:IntegratedGradients", 1, n_steps=12), expected, 2e-7)


def test_shapley_values_add_up_to_the_rise_from_the_baseline(rng):
    module, x = Block(), normal(rng, 2, 4, D)
    torch.manual_seed(0)
    actual = scores(module, of_tensor(x), "captum:ShapleyValueSampling", 1, n_samples=3)
    rise = (module(x) - module(torch.zeros_like(x)))[:, 1].detach()
    torch.testing.assert_close(actual.sum(1), rise, rtol=1e-5, atol=1e-5)  # it adds in float32


@pytest.mark.parametrize("name", ["FeatureAblation", "Occlusion"])
def test_ablation_of_whole_units_is_occlusion(bert, name):
    inputs = of_ids(bert, ROWS)
    expected = scores(bert, inputs, "occlusion", 1)
    same(scores(bert, inputs, f"captum:{name}", 1), expected, 1e-6)


def test_saliency_keeps_the_options_it_is_given(rng):
    module, x = Block(), normal(rng, 2, 4, D)
    expected = Saliency(lambda b: module(b)[:, 1]).attribute(x.clone().requires_grad_(), abs=False)
    actual = scores(module, of_tensor(x), "captum:Saliency", 1, abs=False)
    same(actual, expected.detach().sum(-1))


def test_each_sample_has_its_own_target(bert):
    explainer = Explainer(bert)
    both = explainer([IDS, IDS], "captum:IntegratedGradients", target=[0, 2], n_steps=4)
    for one, target in zip(both, (0, 2), strict=True):
        alone = explainer(IDS, "captum:IntegratedGradients", target=target, n_steps=4)
        same(one.scores, alone.scores, 1e-6)


def test_the_explanation_names_the_attributor_and_its_options(bert):
    found = Explainer(bert)(IDS, "captum:IntegratedGradients", n_steps=4)
    assert found.settings == {"n_steps": 4}
    assert found.label == "captum:IntegratedGradients(n_steps=4)"
    assert Explainer(bert)(IDS, "captum:Saliency").label == "captum:Saliency"


def test_name_and_settings_make_the_same_method_again():
    first = method("captum:Lime", n_samples=50)
    again = method(first.name, **first.settings())
    assert again == first
    assert again.label == again.short_label == "captum:Lime(n_samples=50)"


def test_an_unknown_attributor_is_told_with_the_nearest(bert):
    with pytest.raises(MethodError, match='did you mean "IntegratedGradients"'):
        Explainer(bert)(IDS, "captum:IntegratedGradient")


@pytest.mark.parametrize("name", ["DeepLift", "GuidedBackprop", "LayerIntegratedGradients"])
def test_an_attributor_that_needs_the_module_itself_is_refused_with_its_name(bert, name):
    with pytest.raises(WherefromError, match=name):
        Explainer(bert)(IDS, f"captum:{name}")


def test_an_option_the_attributor_does_not_have_is_refused_with_its_name(bert):
    with pytest.raises(WherefromError, match="n_stepz"):
        Explainer(bert)(IDS, "captum:IntegratedGradients", n_stepz=4)


def test_without_captum_the_error_has_the_install_line(bert, monkeypatch):
    monkeypatch.setitem(sys.modules, "captum", None)
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(MissingExtra, match=r'pip install "wherefrom\[captum\]"'):
        Explainer(bert)(IDS, "captum:IntegratedGradients")


def test_two_places_of_entry_are_refused():
    model = family("t5", "translate")
    with pytest.raises(MethodError, match="enters T5ForConditionalGeneration at 2 points"):
        Explainer(model)(IDS, "captum:IntegratedGradients")
