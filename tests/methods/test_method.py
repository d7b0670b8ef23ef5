"""The label of a method, and its settings for JSON."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from wherefrom.methods import Method, _problem, method


def test_a_label_names_the_settings_that_are_not_the_default():
    assert method("integrated_gradients").label == "integrated_gradients"
    assert method("integrated_gradients", steps=32).label == "integrated_gradients"
    assert method("integrated_gradients", steps=64).label == "integrated_gradients(steps=64)"
    assert method("dix", layers=(0,), steps=3).label == "dix(layers=[0], steps=3)"


def test_captum_attributors_have_names_of_their_own():
    first, second = method("captum:FeatureAblation"), method("captum:ShapleyValues")
    assert (first.name, second.label) == ("captum:FeatureAblation", "captum:ShapleyValues")
    assert method("captum:ShapleyValueSampling", n_samples=5).label == (
        "captum:ShapleyValueSampling(n_samples=5)"
    )


def test_a_tensor_setting_is_told_by_shape_and_content():
    ones, same, zeros = torch.ones(1, 4), torch.ones(1, 4), torch.zeros(1, 4)
    labels = [method("integrated_gradients", baseline=b).label for b in (ones, same, zeros)]
    assert labels[0] == labels[1] != labels[2]
    assert "tensor(1, 4)" in labels[0]
    half = method("integrated_gradients", baseline=ones.bfloat16())
    assert json.loads(json.dumps(half.settings()))["baseline"].startswith("tensor(1, 4) ")


def test_a_function_setting_is_told_by_its_name():
    assert json.loads(json.dumps(method("path_gradients").settings()))["path"] == "straight"


@dataclass(frozen=True)
class Needy(Method):
    """Has settings without a default."""

    name: ClassVar[str] = "needy"
    strength: float
    width: int
    colour: str = "red"

    def scores(self, case):
        raise NotImplementedError


def test_a_method_needs_a_default_for_each_setting():
    assert _problem("needy", Needy) == "these settings have no default: strength, width"
    assert _problem("lrp", type(method("lrp"))) is None
    assert _problem("lrp", Needy) == "its name is 'needy', not 'lrp'"


@pytest.mark.parametrize("name", ["gradient", "attention_rollout", "gae", "lrp"])
def test_a_setting_that_is_still_auto_is_not_shown(name):
    assert method(name).short_label == name


def test_a_setting_that_was_auto_is_shown_if_it_came_to_something():
    assert method("lrp", root="unk", attention=0).short_label == "lrp(root=unk)"
    assert method("gradient", at="first_block", reduce="sum").short_label == (
        "gradient(reduce=sum, at=first_block)"
    )
