"""A fingerprint differs where a result may differ, and nowhere else."""

import copy

import numpy as np
import pytest
import torch
from PIL import Image

from wherefrom import Explainer
from wherefrom.inputs.graph import Graph
from wherefrom.storage.fingerprint import changes, digest, explainer_fingerprint, weights_digest

DIFFERENT = {
    "where texts end": (["ab", "c"], ["a", "bc"]),
    "a text like the header of another": (["atext \nb", "c"], ["a", "btext \nc"]),
    "a text like a header without its length": (["atext\nb", "c"], ["a", "btext\nc"]),
    "text and bytes": ("a", b"a"),
    "nesting": (["a", ["b"]], [["a"], "b"]),
    "text and number": ("1", 1),
    "number and truth": (1, True),
    "nothing and its name": (None, "None"),
    "half characters": ("\ud800", "\ud801"),
    "shape": (torch.zeros(2, 3), torch.zeros(3, 2)),
    "type": (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
    "the last number": (torch.zeros(5000), torch.zeros(5000).index_fill(0, torch.tensor(4999), 1)),
    "arrays": (np.arange(5000), np.arange(1, 5001)),
    "array and tensor": (np.zeros(3), torch.zeros(3)),
    "pictures": (Image.new("L", (2, 2)), Image.new("L", (2, 2), 7)),
    "graphs": (Graph([[1.0], [2.0]], [(0, 1)]), Graph([[1.0], [3.0]], [(0, 1)])),
    "keys": ({"a": 1}, {"b": 1}),
}


@pytest.mark.parametrize(("one", "other"), list(DIFFERENT.values()), ids=list(DIFFERENT))
def test_what_differs_has_another_digest(one, other):
    assert digest(one) == digest(copy.deepcopy(one))
    assert digest(one) != digest(other)


def test_numbers_of_every_type_are_read():
    for dtype in (torch.bfloat16, torch.float16, torch.bool, torch.complex64, torch.int64):
        one = torch.ones(3, dtype=dtype)
        assert digest(one) == digest(one.clone())
        assert digest(one) != digest(torch.zeros(3, dtype=dtype))
    assert digest(torch.ones(4, 4).T[::2]) == digest(torch.ones(2, 4))  # strides do not matter


def test_a_file_is_known_by_its_content(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"one")
    before = digest(path)
    path.write_bytes(b"two")
    assert digest(path) != before
    (tmp_path / "b.png").write_bytes(b"one")
    assert digest(tmp_path / "b.png") == before


def test_one_weight_the_config_and_the_class_are_part_of_a_model(bert):
    model = copy.deepcopy(bert)
    assert weights_digest(model) == weights_digest(bert)
    model.config._name_or_path = "elsewhere"
    assert weights_digest(model) == weights_digest(bert)
    model.config.hidden_act = "relu"
    assert weights_digest(model) != weights_digest(bert)
    model = copy.deepcopy(bert)
    with torch.no_grad():
        model.classifier.bias[0] = torch.nextafter(
            model.classifier.bias[0], torch.tensor(9.0, dtype=torch.float64)
        )
    assert weights_digest(model) != weights_digest(bert)


def test_a_tokenizer_is_known_by_its_rules_and_not_by_its_last_call(bert, wordpiece):
    before = explainer_fingerprint(Explainer(bert, wordpiece))
    wordpiece("a film", padding="max_length", max_length=9, truncation=True)
    assert explainer_fingerprint(Explainer(bert, wordpiece)) == before
    other = copy.deepcopy(wordpiece)
    other.add_tokens(["zzz"])
    assert changes(before, explainer_fingerprint(Explainer(bert, other))) == ["other tokenizer"]
    labelled = Explainer(bert, wordpiece, labels=["x", "y", "z"])
    assert changes(before, explainer_fingerprint(labelled)) == ["other labels"]
    run = Explainer(bert, wordpiece, forward=lambda model, tensors: model(**tensors))
    found = changes(before, explainer_fingerprint(run))
    assert any("forward None → " in change for change in found)


def test_versions_are_part_of_it(bert):
    versions = explainer_fingerprint(Explainer(bert))["versions"]
    assert versions["torch"] == torch.__version__.split("+")[0] or versions["torch"]
    assert set(versions) == {"wherefrom", "torch", "transformers", "tokenizers", "numpy"}


def test_of_names_that_are_searched_for_it_is_said_only_that_they_differ():
    assert changes({"names": digest(["Ada"])}, {"names": digest(["Eve"])}) == ["other names"]


def test_long_values_are_shortened_in_the_words():
    (words,) = changes({"methods": "a" * 1000}, {"methods": "b" * 1000})
    assert len(words) < 450
