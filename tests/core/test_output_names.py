"""Labels are found by the number of their class, never by position or alphabetical order."""

import pytest
from torch import nn

from wherefrom import Explainer
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


def test_a_dict_of_labels_is_read_by_its_keys():
    explainer = Explainer(nn.Linear(2, 2), labels={1: "good", 0: "bad"})
    assert explainer.labels() == ["bad", "good"]
