"""Labels are found by the number of their class, never by position or alphabetical order."""

import numpy as np
import pytest
import torch
from torch import nn

from wherefrom import Explainer, evaluate
from wherefrom.core.runner import ModelRunner
from wherefrom.core.target import OutputNames
from wherefrom.errors import ModelError, TargetError


def names_of(id2label):
    model = nn.Linear(2, 12)
    model.config = type("Config", (), {"id2label": id2label})()
    return OutputNames(ModelRunner(model))


TWELVE = {str(i): f"c{i}" for i in range(12)}


@pytest.mark.parametrize(
    "labels", [TWELVE, dict(reversed(TWELVE.items())), {i: f"c{i}" for i in reversed(range(12))}]
)
def test_twelve_classes_keep_their_labels_whatever_their_keys(labels):
    names = names_of(labels)
    for i in range(12):
        assert names.name(i, 12) == f"c{i}"
        assert names.index(f"c{i}") == i


def test_a_gap_moves_no_label():
    names = names_of({0: "bad", 2: "good"})
    assert [names.name(i, 4) for i in range(4)] == ["bad", "1", "good", "3"]
    assert names.index("good") == 2


def test_a_label_of_two_classes_is_refused_by_name_and_found_by_index():
    names = names_of({0: "other", 1: "good", 2: "other"})
    with pytest.raises(TargetError, match='"other" is the label of classes 0, 2: pass an'):
        names.index("other")
    assert [names.index(0), names.index(2), names.index("good")] == [0, 2, 1]


def test_labels_that_differ_in_case_only_are_found_as_they_are_written():
    names = names_of({0: "US", 1: "us"})
    assert [names.index("US"), names.index("us")] == [0, 1]
    with pytest.raises(TargetError, match="classes 0, 1"):
        names.index("Us")


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ({"good", "bad"}, "got a set"),
        ("ab", "got a str"),
        (3, "got a int"),
        ({"good": 1, "bad": 0}, "got 'good'"),
        ({1: "a", "1": "b"}, "got '1'"),
        ({-1: "a"}, "got -1"),
        ({1 << 40: "a"}, "got 1099511627776"),
    ],
)
def test_labels_without_an_order_are_refused(labels, says):
    with pytest.raises(ModelError, match=says):
        Explainer(nn.Linear(2, 2), labels=labels)
    if isinstance(labels, dict):
        with pytest.raises(ModelError, match=says):
            names_of(labels).name(0, 2)


def test_a_series_of_labels_is_read_by_its_index():
    pandas = pytest.importorskip("pandas")
    labels = pandas.Series({1: "good", 0: "bad"})
    assert Explainer(nn.Linear(2, 2), labels=labels).labels() == ["bad", "good"]


def test_whole_floats_as_text_are_indices_unless_they_are_labels():
    """pandas writes a column of integers with gaps as 1.0 and 0.0."""
    explainer = Explainer(nn.Linear(2, 2), labels=["bad", "good"])
    assert [explainer.index_of(text) for text in ("1.0", "0.0")] == [1, 0]
    assert Explainer(nn.Linear(2, 2), labels=["1.0", "0.0"]).index_of("1.0") == 0
    for text in ("0.5", "1.00", "2.0", "-1.0", ".0"):
        with pytest.raises(TargetError):
            explainer.index_of(text)


def test_a_dict_of_labels_is_read_by_its_keys():
    explainer = Explainer(nn.Linear(2, 2), labels={1: "good", 0: "bad"})
    assert explainer.labels() == ["bad", "good"]


class Ending(nn.Module):
    """Three outputs, and what the model makes of them."""

    def __init__(self, ending):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head, self.ending = nn.Embedding(200, 8), nn.Linear(8, 3), ending

    def forward(self, input_ids):
        return self.ending(self.head(self.table(input_ids).tanh().mean(1)) * 3)


ENDINGS = {
    "softmax": lambda logits: logits.softmax(-1),
    "half": lambda logits: logits.half().softmax(-1),
    "divided": lambda logits: logits.exp() / logits.exp().sum(-1, keepdim=True),
    "sigmoid": lambda logits: torch.sigmoid(logits),
    "tuple of sigmoids": lambda logits: (logits.sum(), nn.functional.sigmoid(logits)),
}


@pytest.mark.parametrize("method", ["occlusion", "integrated_gradients", "random"])
@pytest.mark.parametrize("ending", list(ENDINGS.values()), ids=list(ENDINGS))
def test_outputs_that_are_probabilities_are_taken_as_they_are(ending, method):
    explainer = Explainer(Ending(ending))
    for explanation in (explainer([3, 4, 5], method), *explainer([[3, 4], [5, 6]], method)):
        assert explanation.probability == pytest.approx(explanation.output, abs=1e-6)
        assert explanation.largest[0].probability == explanation.probability
    assert explainer.output_names.to_probability(3) == "identity"


def test_outputs_between_0_and_1_that_are_no_probabilities_get_a_softmax():
    endings = (
        lambda logits: logits.sigmoid() * 0.5,  # sigmoids within the model
        lambda logits: logits / 10 + 0.5,
        lambda logits: logits.log_softmax(-1),
    )
    for ending in endings:
        explanation = Explainer(Ending(ending))([3, 4, 5], "occlusion")
        logits = ending(Ending(lambda x: x)(torch.tensor([[3, 4, 5]])))
        expected = logits.softmax(-1)[0, explanation.target.index]
        assert explanation.probability == pytest.approx(float(expected.detach()), abs=1e-6)


def test_curves_of_an_evaluation_use_probabilities_as_they_are(wordpiece):
    curves = []
    texts = ["the film was good and great", "the dull film was bad"]
    for ending, function in ((lambda logits: logits, "softmax"), (ENDINGS["softmax"], "identity")):
        explainer = Explainer(Ending(ending), wordpiece)
        result = evaluate(explainer, texts, ["random"], ["activation"], progress=False)
        curves.append(result.values["random"]["activation"])
        assert explainer.output_names.to_probability(3) == function
    np.testing.assert_allclose(*curves, rtol=1e-5)
