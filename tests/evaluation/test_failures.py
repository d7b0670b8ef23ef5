"""Single texts that something fails on: counted, and the rest goes on."""

import numpy as np
import pytest
import torch

from benchmarks.tiny import model
from wherefrom import Explainer, evaluate
from wherefrom.errors import InputError, ModelError, NotFinite
from wherefrom.methods import Method
from wherefrom.methods.method import Scores

TEXTS = ["the film is good", "a dull movie", "i love the great script .", "bad", "not dull"]


class Picky(Method):
    """Fails on every text that holds a given id, or on all."""

    name = "picky"

    def __init__(self, bad=None):
        self.bad = bad

    def settings(self):
        return {"bad": self.bad}

    def scores(self, subject, inputs, target):
        ids = inputs.tensors["input_ids"]
        if self.bad is None or bool((ids == self.bad).any()):
            raise NotFinite("not with this one")
        return Scores(ids.double() * inputs.mask)


@pytest.fixture
def explainer(bert, wordpiece):
    return Explainer(bert, wordpiece)


def test_a_text_that_one_method_fails_on_is_left_out_for_all(explainer, wordpiece):
    dull = wordpiece.convert_tokens_to_ids("dull")
    found = evaluate(explainer, TEXTS, ["lrp", Picky(dull)], ["activation", "layers"], window=2)
    assert found.skipped == {"that a method fails on": 2}
    assert found.methods == ["lrp", "picky"]
    alone = evaluate(explainer, [TEXTS[0], TEXTS[2], TEXTS[3]], ["lrp"], ["activation"])
    assert found.values["lrp"]["activation"] == pytest.approx(alone.values["lrp"]["activation"])


def test_a_method_that_fails_on_all_is_left_out_and_named(explainer):
    found = evaluate(explainer, TEXTS, ["lrp", Picky()], ["activation"], window=2)
    assert found.methods == ["lrp"]
    assert found.skipped == {}
    assert found.settings["unable"] == {"picky": "not with this one"}
    assert "picky was left out: not with this one" in str(found)
    with pytest.raises(ModelError, match="not with this one"):
        evaluate(explainer, TEXTS, [Picky()], ["activation"])


def test_a_method_that_was_left_out_stays_so_when_resumed(explainer, tmp_path):
    def stop(done, total, note):
        if done > 2:
            raise KeyboardInterrupt

    settings = {"metrics": ["activation"], "window": 2, "out": tmp_path}
    part = evaluate(explainer, TEXTS, ["lrp", Picky()], progress=stop, **settings)
    assert not part.complete
    whole = evaluate(explainer, TEXTS, ["lrp", Picky()], resume=True, **settings)
    assert whole.complete
    assert whole.methods == ["lrp"]
    assert len(whole.values["lrp"]["activation"]) == len(TEXTS)


def test_a_perturbed_text_without_a_finite_output_is_left_out(bert, wordpiece):
    """The model breaks where more than four tokens are [UNK]: only the longer texts are hit."""

    def run(given, tensors):
        logits = given(**tensors).logits
        gone = (tensors["input_ids"] == 1).sum(1, keepdim=True) > 5
        return torch.where(gone, torch.full_like(logits, float("nan")), logits)

    explainer = Explainer(bert, wordpiece, forward=run)
    found = evaluate(explainer, TEXTS, ["random"], ["activation"])
    lengths = np.array([len(wordpiece(text)["input_ids"]) for text in TEXTS])
    assert 0 < (lengths > 5).sum() < len(TEXTS)
    assert found.skipped == {"not finite when perturbed": (lengths > 5).sum()}
    assert np.isfinite(found.values["random"]["activation"]).all()


def test_a_class_that_the_model_has_not_is_a_counted_skip_where_labels_have_no_names(wordpiece):
    from tests.evaluation.test_run import Additive, _run

    weights = torch.linspace(-1, 1, len(wordpiece)).tolist()
    explainer = Explainer(Additive(weights), wordpiece, forward=_run)
    rows = [(text, 5 if text == "bad" else 1) for text in TEXTS]
    found = evaluate(explainer, rows, ["lrp"], ["activation"])
    assert found.skipped == {"of no such class": 1}


def test_texts_are_explained_few_at_a_time_and_progress_is_told_between(explainer):
    told = []
    evaluate(
        explainer,
        [f"{text} {'film ' * n}" for text in TEXTS for n in range(8)],
        ["lrp", "random"],
        ["activation", "layers"],
        progress=lambda *args: told.append(args),
    )
    done = [each[0] for each in told]
    assert done == sorted(done)
    assert done[0] == 0
    assert done[-1] == 40
    assert {total for _, total, _ in told} == {40}
    assert sum(note == "lrp" for *_, note in told) == 3  # 40 texts by 16
    assert {note for *_, note in told} == {"lrp", "random", "perturbed inputs", "layers", ""}


def test_a_language_model_is_evaluated_at_its_last_place(gpt2, bytepairs):
    explainer = Explainer(gpt2, bytepairs)
    texts = ["the movie is", "love", "Paris is the"]
    found = evaluate(explainer, texts, ["lrp"], ["activation", "pruning", "flip"], blank=7)
    for text, curve in zip(texts, found.series["lrp"]["activation"], strict=True):
        assert curve[-1] == pytest.approx(explainer(text).probability, rel=1e-5)


def test_a_classifier_without_padding_is_run_one_by_one(bytepairs):
    made = model("gpt2", "classify", vocab_size=280)
    made.config.pad_token_id = None
    explainer = Explainer(made, bytepairs)
    texts = ["the movie is", "love", "Paris is the"]
    metrics = ["activation", "attention_erasure", "layers"]
    found = evaluate(explainer, texts, ["lrp"], metrics, blank=7)
    for text, curve in zip(texts, found.series["lrp"]["activation"], strict=True):
        assert curve[-1] == pytest.approx(explainer(text).probability, rel=1e-5)
    assert len(found.studies["attention_erasure"]) == 3


def test_what_writes_with_a_decoder_is_refused(t5, wordpiece):
    with pytest.raises(ModelError, match="writes with a decoder"):
        evaluate(Explainer(t5, wordpiece), TEXTS, ["lrp"])


def test_a_hole_to_fill_is_a_counted_skip(wordpiece):
    explainer = Explainer(model("bert", "fill", vocab_size=len(wordpiece)), wordpiece)
    with pytest.raises(InputError, match="2 with a hole to fill"):
        evaluate(explainer, ["a [MASK] film", "a dull [MASK]"], ["lrp"], ["activation"])
