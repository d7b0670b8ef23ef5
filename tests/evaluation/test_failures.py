"""Single samples, methods or studies that fail: they are counted, and the run continues."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

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


@dataclass(frozen=True)
class Overflowing(Method):
    """Scores that are not finite for a text that contains a token, though its output is."""

    name: ClassVar[str] = "overflowing"
    value: float = float("nan")
    token: int | None = None

    def scores(self, case):
        ids = case.batch.tensors["input_ids"]
        hit = torch.full_like(ids, True) if self.token is None else ids == self.token
        return Scores(torch.where(hit.bool(), self.value, ids.double()) * case.batch.mask)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("word", [None, "dull"])
def test_a_method_with_scores_that_are_not_finite_has_failed(explainer, wordpiece, value, word):
    """For one text in a later window too: it is neither ranked nor starred, and costs no text."""
    token = None if word is None else wordpiece.convert_tokens_to_ids(word)
    bad = Overflowing(value, token)
    texts = [TEXTS[0], *TEXTS[2:4], TEXTS[1]]
    result = evaluate(explainer, texts, [bad, "lrp", "random"], ["activation"], window=2)
    assert result.methods == ["lrp", "random"]
    assert result.samples == 4
    reason = result.settings["failed"][bad.label]
    assert reason == f"its scores are NaN or infinite (sample {0 if word is None else 3})."
    assert f"{bad.label} was left out: {reason}" in str(result)
    assert result.best_by("activation") in ("lrp", "random")
    with pytest.raises(ModelError, match="its scores are NaN or infinite"):
        evaluate(explainer, texts, [bad], ["activation"], window=2)


class Overflows(nn.Module):
    """Float16: the output is finite, the slopes of four large layers on a small input are not."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(4)))
        self.head = nn.Linear(32, 2)
        with torch.no_grad():
            for layer in self.layers:
                layer.weight.mul_(250)

    def forward(self, x):
        return self.head(self.layers(x * 1e-4)).mean(1)


def test_gradients_that_overflow_are_no_scores_to_rank():
    torch.manual_seed(0)
    explainer = Explainer(Overflows().half())
    rows = [torch.randn(4, 32).half() * 1e-3 for _ in range(3)]
    result = evaluate(explainer, rows, ["gradient", "random"], ["activation"])
    assert result.methods == ["random"]
    assert "NaN or infinite" in result.settings["failed"]["gradient"]


def test_each_row_that_is_left_out_is_named_with_its_reason(bert, wordpiece):
    """A NaN output, a method that fails, an empty text and one that is too long."""
    broken = wordpiece.convert_tokens_to_ids("dull")

    def run(network, tensors):
        logits = network(**tensors).logits
        hit = (tensors["input_ids"] == broken).any(1, keepdim=True)
        return torch.where(hit, torch.full_like(logits, float("nan")), logits)

    explainer = Explainer(bert, wordpiece, forward=run)
    picky = Picky(wordpiece.convert_tokens_to_ids("script"))
    texts = [*TEXTS, "", "film " * 200]
    result = evaluate(explainer, texts, ["lrp", picky], ["activation"])
    assert [rejection["sample"] for rejection in result.rejected] == [1, 2, 4, 5, 6]
    by_row = {r["sample"]: r for r in result.rejected}
    assert by_row[1]["input"] == TEXTS[1]
    assert {by_row[i]["kind"] for i in (1, 2, 4)} == {"a method failed"}
    assert by_row[2]["reason"] == "not with this one"
    assert "NaN or infinite" in by_row[1]["reason"]
    assert result.skipped == {"a method failed": 3, "unreadable": 1, "too long": 1}
    assert result.samples == 2
    assert f"left out: sample 1 “{TEXTS[1]}”: {by_row[1]['reason']}" in str(result)
    alone = evaluate(explainer, [TEXTS[0], TEXTS[3]], ["lrp"], ["activation"])
    assert result.values["lrp"]["activation"] == pytest.approx(
        alone.values["lrp"]["activation"], rel=1e-12
    )


def test_a_batch_that_fails_is_halved_until_the_row_is_found(explainer, wordpiece):
    """The policy of every command: 1 of 16 texts costs 2 · log₂ 16 further passes, not 16."""
    sizes = []

    @dataclass(frozen=True)
    class Counting(Picky):
        def scores(self, case):
            sizes.append(len(case.batch))
            return super().scores(case)

    texts = ["the film is good"] * 15 + ["the film is dull"]
    picky = Counting(wordpiece.convert_tokens_to_ids("dull"))
    result = evaluate(explainer, texts, ["random", picky], ["entropy"], window=16)
    assert [r["sample"] for r in result.rejected] == [15]
    assert sum(sizes) < 80
    assert 1 in sizes


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
