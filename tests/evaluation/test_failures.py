"""Single samples, methods or studies that fail: they are counted, and the run continues."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from benchmarks.tiny import model
from tests.evaluation.additive import additive_explainer
from wherefrom import Explainer, evaluate
from wherefrom.errors import InputError, ModelError, NotFinite
from wherefrom.methods import Method
from wherefrom.methods.base import Scores

TEXTS = ["the film is good", "a dull movie", "i love the great script .", "bad", "not dull"]


@dataclass(frozen=True)
class Picky(Method):
    """Fails on every text that contains a token, or on all."""

    name: ClassVar[str] = "picky"
    token: int | None = None

    def scores(self, case):
        ids = case.batch.tensors["input_ids"]
        if self.token is None or bool((ids == self.token).any()):
            raise NotFinite("not with this one")
        return Scores(ids.double() * case.batch.mask)


@pytest.fixture(scope="module")
def explainer(bert, wordpiece):
    return Explainer(bert, wordpiece)


def test_a_text_on_which_one_method_fails_is_left_out_for_all(explainer, wordpiece):
    picky = Picky(wordpiece.convert_tokens_to_ids("dull"))
    result = evaluate(explainer, TEXTS, ["lrp", picky], ["activation", "layers"], window=2)
    assert result.skipped == {"a method failed": 2}
    assert result.methods == ["lrp", picky.label]
    alone = evaluate(explainer, [TEXTS[0], TEXTS[2], TEXTS[3]], ["lrp"], ["activation"])
    assert result.values["lrp"]["activation"] == pytest.approx(alone.values["lrp"]["activation"])


def test_a_method_that_fails_on_all_texts_is_left_out_and_named(explainer):
    result = evaluate(explainer, TEXTS, ["lrp", Picky()], ["activation"], window=2)
    assert result.methods == ["lrp"]
    assert result.skipped == {}
    assert result.settings["failed"] == {"picky": "not with this one"}
    assert "picky was left out: not with this one" in str(result)
    with pytest.raises(ModelError, match="not with this one"):
        evaluate(explainer, TEXTS, [Picky()], ["activation"])


def test_a_method_that_was_left_out_stays_so_when_resumed(explainer, tmp_path):
    def stop(done, total, step):
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
    """The model breaks where more than five tokens are [UNK]: only the longer texts are hit."""

    def run(network, tensors):
        logits = network(**tensors).logits
        broken = (tensors["input_ids"] == 1).sum(1, keepdim=True) > 5
        return torch.where(broken, torch.full_like(logits, float("nan")), logits)

    explainer = Explainer(bert, wordpiece, forward=run)
    result = evaluate(explainer, TEXTS, ["random"], ["activation"])
    lengths = np.array([len(wordpiece(text)["input_ids"]) for text in TEXTS])
    assert 0 < (lengths > 5).sum() < len(TEXTS)
    assert result.skipped == {"output not finite after perturbation": (lengths > 5).sum()}
    assert np.isfinite(result.values["random"]["activation"]).all()


@pytest.mark.parametrize("copies", [1, 20])  # 20: all of the first chunk have an unknown class
def test_a_class_that_the_model_does_not_have_is_counted(wordpiece, copies):
    weights = torch.linspace(-1, 1, len(wordpiece)).tolist()
    explainer = additive_explainer(weights, wordpiece, labels=None)
    rows = [("bad", 5)] * copies + [(text, 1) for text in TEXTS if text != "bad"]
    result = evaluate(explainer, rows, ["lrp", "random"], ["activation"])
    assert result.skipped == {"unknown class": copies}
    assert len(result.values["lrp"]["activation"]) == 4


def test_unusable_texts_are_counted(explainer):
    texts = [*TEXTS, "", " ".join(["film"] * 200), "[SEP]"]
    result = evaluate(explainer, texts, ["random"], ["activation"])
    assert len(result.values["random"]["activation"]) == len(TEXTS)
    assert result.skipped == {"unreadable": 1, "too long": 1, "only special tokens": 1}
    assert "skipped: unreadable (1), too long (1), only special tokens (1)" in str(result)


def test_texts_are_explained_few_at_a_time_and_progress_is_reported_between(explainer):
    reports = []
    evaluate(
        explainer,
        [f"{text} {'film ' * n}" for text in TEXTS for n in range(8)],
        ["lrp", "random"],
        ["activation", "layers"],
        progress=lambda *args: reports.append(args),
    )
    done = [report[0] for report in reports]
    assert done == sorted(done)
    assert done[0] == 0
    assert done[-1] == 40
    assert {total for _, total, _ in reports} == {40}
    assert sum(step == "lrp" for *_, step in reports) == 4  # 4, 8, 16 and 12 texts
    assert {step for *_, step in reports} == {"lrp", "random", "perturbed inputs", "layers", ""}


def test_a_language_model_is_evaluated_at_its_last_position(gpt2, bytepairs):
    explainer = Explainer(gpt2, bytepairs)
    texts = ["the movie is", "love", "Paris is the"]
    result = evaluate(explainer, texts, ["lrp"], ["activation", "pruning", "flip"], blank=7)
    for text, curve in zip(texts, result.series["lrp"]["activation"], strict=True):
        assert curve[-1] == pytest.approx(explainer(text).probability, rel=1e-5)


def test_a_classifier_without_padding_is_run_one_by_one(bytepairs):
    network = model("gpt2", "classify", vocab_size=280)
    network.config.pad_token_id = None
    explainer = Explainer(network, bytepairs)
    texts = ["the movie is", "love", "Paris is the"]
    metrics = ["activation", "attention_erasure", "layers"]
    result = evaluate(explainer, texts, ["lrp"], metrics, blank=7)
    for text, curve in zip(texts, result.series["lrp"]["activation"], strict=True):
        assert curve[-1] == pytest.approx(explainer(text).probability, rel=1e-5)
    assert len(result.studies["attention_erasure"]) == 3


def test_an_encoder_decoder_that_generates_is_refused(t5, wordpiece):
    with pytest.raises(ModelError, match="generates text with a decoder"):
        evaluate(Explainer(t5, wordpiece), TEXTS, ["lrp"])


def test_a_masked_token_inside_the_text_is_counted(wordpiece):
    explainer = Explainer(model("bert", "fill", vocab_size=len(wordpiece)), wordpiece)
    with pytest.raises(InputError, match=r"prediction not at the last position \(2\)"):
        evaluate(explainer, ["a [MASK] film", "a dull [MASK]"], ["lrp"], ["activation"])


def test_an_explainer_without_a_tokenizer_reads_no_text():
    explainer = Explainer(model("fnet", "classify"), labels=["a", "b", "c"])
    with pytest.raises(InputError, match="no sample"):
        evaluate(explainer, ["a text without a tokenizer"], ["lrp"])
