"""The embedded models: what they say of themselves is so, and a damaged one is refused."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import wherefrom
from wherefrom.core.target import Case
from wherefrom.errors import FileError, ModelError
from wherefrom.inputs.text import batch
from wherefrom.methods.forward_pass import run
from wherefrom.models import embedded

KEPT = Path(__file__).with_name("sentiment_logits.json")
PLACES = [os.environ.get("WHEREFROM_DATA", "data"), "../shared/data"]
SST2 = next((Path(p, "sst2_glue") for p in PLACES if Path(p, "sst2_glue").is_dir()), None)


def logits_of(explainer, texts):
    rows = explainer.encode(texts)
    logits = []
    for start in range(0, len(rows), 64):
        inputs = batch(explainer.runner, explainer.tokenizer, rows[start : start + 64], None)
        logits.append(run(Case(explainer.runner, inputs)))
    return torch.cat(logits).numpy()


@pytest.fixture(scope="module")
def sentiment():
    return wherefrom.load("sentiment")


def test_the_folder_and_other_options_give_the_classifier_of_transformers(sentiment):
    import transformers

    kind = transformers.BertForSequenceClassification
    assert not isinstance(sentiment.runner.model, kind)
    for explainer in (
        wherefrom.load(embedded.HOME / "sentiment"),
        wherefrom.load("sentiment", attn_implementation="eager"),
    ):
        assert isinstance(explainer.runner.model, kind)
        assert explainer.labels() == sentiment.labels() == ["NEGATIVE", "POSITIVE"]


def test_the_card_is_true_of_the_files():
    card = embedded.embedded()["sentiment"]
    assert card.megabytes < 8
    assert card.figures["validation"] >= 0.82
    model = wherefrom.load("sentiment").runner.model
    assert card.parameters == sum(p.numel() for p in model.parameters())
    assert embedded.verified(card) == card.folder


def test_logits_on_sentences_of_our_own_are_as_when_it_was_trained(sentiment):
    expected = json.loads(KEPT.read_text(encoding="utf-8"))
    logits = logits_of(sentiment, [row["text"] for row in expected])
    np.testing.assert_allclose(logits, [row["logits"] for row in expected], rtol=1e-3, atol=1e-3)


def test_it_tells_praise_from_blame(sentiment):
    for text, label in (
        ("a charming and often affecting journey", "POSITIVE"),
        ("a dull , lifeless and boring mess", "NEGATIVE"),
    ):
        assert sentiment(text).target.label == label


def test_the_ledger_closes_and_the_telling_word_leads(sentiment):
    explanation = sentiment("has a lot of the virtues of eastwood at his best.")
    assert explanation.ledger.relative < 1e-4
    assert explanation.top(1)[0][0] == "best"


@pytest.mark.skipif(SST2 is None, reason="SST-2 is not at hand; set WHEREFROM_DATA to its parent")
def test_accuracy_on_the_validation_sentences_is_what_the_card_says(sentiment):
    rows = wherefrom.read_table(SST2 / "validation.csv.gz")
    predicted = logits_of(sentiment, rows.texts).argmax(1)
    share = float((predicted == [sentiment.index_of(label) for label in rows.labels]).mean())
    assert share == pytest.approx(embedded.embedded()["sentiment"].figures["validation"], abs=2e-3)
    assert share >= 0.82


@pytest.fixture
def copied(tmp_path, monkeypatch):
    shutil.copytree(embedded.HOME / "sentiment", tmp_path / "sentiment")
    monkeypatch.setattr(embedded, "HOME", tmp_path)
    return tmp_path / "sentiment"


def test_damaged_weights_are_refused(copied):
    weights = copied / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(FileError, match="damaged"):
        wherefrom.load("sentiment")


def test_missing_weights_are_refused(copied):
    (copied / "model.safetensors").unlink()
    with pytest.raises(FileError, match="missing"):
        wherefrom.load("sentiment")


def test_a_damaged_card_is_refused(copied):
    (copied / "card.json").write_text("{")
    with pytest.raises(FileError, match="card"):
        wherefrom.load("sentiment")


def test_an_unknown_name_says_which_models_there_are():
    with pytest.raises(ModelError, match='did you mean "sentiment"'):
        wherefrom.load("sentimnet")


@pytest.mark.parametrize("method", [m for m in wherefrom.METHODS if m != "random"])
def test_classes_differ_where_the_method_looks_at_the_class_and_only_there(sentiment, method):
    attention_alone = {"attention_last", "attention_rollout", "attention_flow"}
    text = "a charming but often dull journey"
    positive, negative = (
        sentiment(text, method, target=t).scores for t in ("POSITIVE", "NEGATIVE")
    )
    same = np.allclose(positive, negative, rtol=1e-4, atol=1e-6 * np.abs(positive).max())
    assert same == (method in attention_alone)
