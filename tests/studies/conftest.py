"""A tiny model and its studies, computed once."""

import pytest

from wherefrom import Explainer, evaluate

TEXTS = ["the film is good", "a dull movie", "i love the great script and it is not bad .", "bad"]
STUDIES = ["attention_erasure", "layers"]


@pytest.fixture(scope="session")
def explainer(bert, wordpiece):
    return Explainer(bert, wordpiece)


@pytest.fixture(scope="session")
def result(explainer):
    return evaluate(explainer, TEXTS, ["lrp", "random"], ["activation", *STUDIES], window=3)
