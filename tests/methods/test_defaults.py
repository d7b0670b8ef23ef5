"""What "auto" means for `lrp`: by the kind of input, and shown in the explanation."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

import wherefrom
from tests.helpers import exactly
from tests.methods.calling import ROWS, family, of_ids
from wherefrom import Explainer
from wherefrom.errors import MethodError
from wherefrom.methods import method

TEXT = "a charming film"


def test_a_text_is_compared_with_unknown_words():
    explainer = wherefrom.load("sentiment")
    explanation = explainer(TEXT, "lrp")
    assert (explanation.settings["root"], explanation.settings["attention"]) == ("unk", 0.0)
    spelled = explainer(TEXT, "lrp", root="unk", attention=0, gate="shared")
    exactly(explanation.scores, spelled.scores)
    assert abs(explanation.scores - explainer(TEXT, "lrp", root=None).scores).max() > 0.1
    assert "root" in {line.kind for line in explanation.ledger.lines}


def test_a_language_model_is_compared_with_the_mean_embedding():
    explanation = Explainer(family("llama", "write"))(ROWS[0])
    assert (explanation.settings["root"], explanation.settings["attention"]) == ("mean", 0.0)
    assert explanation.settings["gate"] == "shared"


def test_a_text_without_an_unknown_token_has_no_root(bert):
    explanation = Explainer(bert)(ROWS[0])
    assert explanation.settings["root"] is None


def test_an_unknown_token_that_ends_texts_is_no_missing_word(bert, wordpiece):
    tokenizer = deepcopy(wordpiece)
    assert Explainer(bert, tokenizer)(ROWS[0]).settings["root"] == "unk"
    tokenizer.eos_token = tokenizer.unk_token
    assert Explainer(bert, tokenizer)(ROWS[0]).settings["root"] is None


@pytest.mark.parametrize(
    ("name", "source"), [("digits", "examples/three.png"), ("bace", "CC(=O)Nc1ccc(O)cc1")]
)
def test_pixels_and_nodes_share_attention_and_have_no_root(name, source):
    explainer = wherefrom.load(name)
    explanation = explainer(source)
    assert (explanation.settings["root"], explanation.settings["attention"]) == (None, 0.25)
    assert abs(explanation.ledger.residual) < 1e-4
    frozen, half = (explainer(source, "lrp", attention=share).scores for share in (0, 0.5))
    assert not np.allclose(explanation.scores, frozen, atol=1e-3)
    assert not np.allclose(explanation.scores, half, atol=1e-3)


def test_at_a_half_with_shared_gates_it_is_attn_lrp(bert):
    explainer = Explainer(bert)
    ours = explainer(ROWS[0], "lrp", attention=0.5, gate="shared", root=None)
    exactly(ours.scores, explainer(ROWS[0], "attn_lrp").scores, 1e-6)


def test_texts_to_classify_get_secants_from_the_unknown_word():
    explanation = wherefrom.load("sentiment")(TEXT)
    assert explanation.label == "secant(root=unk)"
    assert {line.kind for line in explanation.ledger.lines} == {"word", "reference"}
    assert abs(explanation.ledger.residual) < 1e-4


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ({"attention": 0.25}, "lrp"),
        ({"splits": 1}, "secant"),
        ({"tolerance": 1}, "integrated_gradients"),
    ],
)
def test_settings_of_a_method_need_its_name(setting, name):
    with pytest.raises(MethodError, match=f'Name a method: method="{name}"'):
        wherefrom.load("sentiment")(TEXT, **setting)


@pytest.mark.parametrize("share", [-0.1, 1.5, "half", float("nan"), None])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(MethodError, match="from 0 to 1"):
        method("lrp", attention=share)


def test_tokens_with_an_image_get_the_rule_of_tokens(bert):
    tokens = of_ids(bert, ROWS)
    pixels = torch.zeros(len(ROWS), 2, 3)
    both = replace(tokens.with_tensors({"pixels": pixels}), fields=(*tokens.fields, "pixels"))
    alone = replace(both, fields=("pixels",))
    shares = [method("lrp").resolved(inputs).attention for inputs in (tokens, both, alone)]
    assert shares == [0.0, 0.0, 0.25]


def test_what_is_auto_does_not_change_the_label_that_results_are_keyed_by(bert):
    lrp = method("lrp")
    assert lrp.label == "lrp"
    resolved = lrp.resolved(of_ids(bert, ROWS))
    assert resolved.settings()["attention"] == 0.0
