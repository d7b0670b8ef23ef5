"""A text, an image and a molecule for models to be audited on."""

from pathlib import Path

import pytest

import wherefrom
from benchmarks.tiny import model
from tests.audits.cases import case_of_ids, float64_case

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def bert_case():
    return case_of_ids(model("bert", "classify"))


@pytest.fixture(scope="session")
def gpt2_case():
    return case_of_ids(model("gpt2", "classify"))


@pytest.fixture(scope="session")
def image_case():
    return float64_case(wherefrom.load("digits"), EXAMPLES / "three.png")


@pytest.fixture(scope="session")
def graph_case():
    return float64_case(wherefrom.load("bace"), "CC(=O)Nc1ccc(O)cc1")
