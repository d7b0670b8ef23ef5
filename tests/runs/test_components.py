"""Components ranked over texts, against a sum over the explanations of single texts."""

import numpy as np
import pytest

import wherefrom
from wherefrom.errors import InputError
from wherefrom.runs.components import rank_components

TEXTS = ["a good film", "not a good film", "dull and long", "good " * 600]


@pytest.fixture(scope="module")
def explainer():
    return wherefrom.load("sentiment")


@pytest.mark.parametrize("kind", ["neuron", "head"])
def test_they_are_ranked_by_their_mean_size_over_texts(explainer, kind):
    ranking = rank_components(explainer, TEXTS, kind, count=4, examples=2, target="POSITIVE")
    assert ranking.explained == 3
    assert [rejected.index for rejected in ranking.rejected] == [3]
    insides = [explainer.inside(text, target="POSITIVE") for text in TEXTS[:3]]
    if kind == "head":
        by_text = np.array([inside.heads.ravel() for inside in insides])
        names = [f"layer.{i}.head.{k}" for i, k in np.ndindex(insides[0].heads.shape)]
    else:
        layers = [[inside.neurons(i).sum(0) for i in range(inside.depth)] for inside in insides]
        by_text = np.array([np.concatenate(layer) for layer in layers])
        names = [f"layer.{i}.neuron.{k}" for i in range(4) for k in range(len(layers[0][i]))]
    order = np.argsort(-abs(by_text).mean(0))[:4]
    assert [own.component for own in ranking.components] == [names[i] for i in order]
    for own, i in zip(ranking.components, order, strict=True):
        assert own.mean == pytest.approx(by_text[:, i].mean(), abs=1e-5)
        assert own.mean_size == pytest.approx(abs(by_text[:, i]).mean(), abs=1e-5)
        largest = np.argsort(-abs(by_text[:, i]))[:2]
        assert [text for text, _ in own.examples] == [TEXTS[k] for k in largest]


def test_an_unknown_kind_is_an_error(explainer):
    with pytest.raises(InputError, match="kind must be one of neuron"):
        rank_components(explainer, TEXTS, "circuit")
