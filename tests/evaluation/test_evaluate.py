"""The entry point: what is explained and erased, methods side by side, stop and resume."""

import copy
import itertools
import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from tests.helpers import exactly
from tests.oracles import protocols
from wherefrom import Explainer, evaluate, method
from wherefrom.errors import FileError, InputError, MethodError, TargetError
from wherefrom.evaluation.results import Evaluation
from wherefrom.methods import Method
from wherefrom.methods.base import Scores
from wherefrom.show.page import prose
from wherefrom.show.report import render_evaluation

TEXTS = ["the film is good", "a dull movie", "i love the great script and it is not bad .", "bad"]


@pytest.fixture(scope="module")
def explainer(bert, wordpiece):
    return Explainer(bert, wordpiece)


def test_curves_begin_and_end_with_the_outputs_of_the_model(explainer, bert, wordpiece):
    result = evaluate(explainer, TEXTS, ["lrp", "random"], ["activation", "pruning"])
    for at, text in enumerate(TEXTS):
        ids = wordpiece(text)["input_ids"]
        index = explainer(text).target.index
        empty = protocols.chance(protocols.outputs(bert, [1] * len(ids)), index)
        whole = protocols.chance(protocols.outputs(bert, ids), index)
        for label in result.methods:
            curve = result.series[label]["activation"][at]
            assert (curve[0], curve[-1]) == pytest.approx((empty, whole), rel=1e-12)
            assert result.series[label]["pruning"][at][0] == 0


def test_special_tokens_stay_with_keep_special(explainer, bert, wordpiece):
    result = evaluate(explainer, TEXTS[:1], ["lrp"], ["activation"], keep_special=True)
    ids = wordpiece(TEXTS[0])["input_ids"]
    empty = [ids[0], *[1] * (len(ids) - 2), ids[-1]]
    index = explainer(TEXTS[0]).target.index
    expected = protocols.chance(protocols.outputs(bert, empty), index)
    assert result.series["lrp"]["activation"][0][0] == pytest.approx(expected, rel=1e-12)


def test_every_has_a_point_for_each_unit(explainer, wordpiece):
    result = evaluate(explainer, TEXTS[:1], ["lrp"], ["pruning"], every=True)
    assert len(result.series["lrp"]["pruning"][0]) == len(wordpiece(TEXTS[0])["input_ids"]) + 1


def test_efficiency_is_the_share_of_the_measuring_that_is_spent_in_the_model(explainer):
    timing = evaluate(explainer, TEXTS[:2], ["gradient"], ["activation"]).timing
    measuring = timing["seconds"] - timing["explaining"] - timing["studies"]
    assert timing["efficiency"] == pytest.approx(timing["forward"] / measuring, rel=1e-9)
    assert 0 < timing["efficiency"] < 1


def test_the_label_is_the_class_that_is_explained(explainer):
    named = evaluate(explainer, [(text, "mixed") for text in TEXTS], ["lrp"], ["activation"])
    numbered = evaluate(explainer, [(text, 2) for text in TEXTS], ["lrp"], ["activation"])
    assert named.values == numbered.values
    assert named.sums["lrp"][0][1] == pytest.approx(explainer(TEXTS[0], target=2).output)
    assert "all samples have the label mixed: other classes are untested" in named.notes


def test_a_drawn_sample_depends_on_the_seed_alone(explainer):
    texts = [" ".join(["film"] * n) for n in range(1, 30)]

    def outputs(**options):
        result = evaluate(explainer, texts, ["random"], ["entropy"], **options)
        return [round(output, 9) for _, output in result.sums["random"]]

    drawn = outputs(sample=5, seed=1)
    assert len(set(drawn)) == 5
    assert drawn == outputs(sample=5, seed=1) != outputs(sample=5, seed=2)
    assert set(drawn) <= set(outputs(sample=99))


# Methods side by side.


def test_two_settings_of_one_method_stand_side_by_side(explainer, tmp_path):
    few, many = (method("integrated_gradients", steps=n) for n in (2, 8))
    metrics = ["activation", "conservation", "flip", "attention_erasure"]
    result = evaluate(explainer, TEXTS, [few, many, "random"], metrics, out=tmp_path, window=3)
    labels = [few.label, many.label, "random"]
    assert result.methods == labels == ["integrated_gradients(steps=2)", labels[1], "random"]
    for entry in (few, many):
        alone = evaluate(explainer, TEXTS, [entry], metrics[:3])
        for name in metrics[:3]:
            assert result.values[entry.label][name] == pytest.approx(
                alone.values[entry.label][name], rel=1e-9
            )
        exactly(result.sums[entry.label], alone.sums[entry.label])
    gaps = [result.conservation[label].gap for label in labels[:2]]
    assert gaps[1] < gaps[0]
    entries = dict(zip(labels, (few, many, "random"), strict=True))
    scores = {
        label: [explainer(text, entry).scores for text in TEXTS] for label, entry in entries.items()
    }
    for a, b in itertools.product(labels, labels):
        pairs = zip(scores[a], scores[b], strict=True)
        expected = np.mean([protocols.rank_correlation(*pair) for pair in pairs])
        assert result.agreement[a][b] == pytest.approx(expected, rel=1e-9)
    assert set(labels) <= set(result.study("attention_erasure")["to_flip"])
    resumed = evaluate(
        explainer, TEXTS, [few, many, "random"], metrics, out=tmp_path, window=3, resume=True
    )
    assert resumed.timing["computed"] == 0
    assert resumed.values == result.values
    pictures = result.plots(tmp_path)
    page = render_evaluation(result, pictures)
    for path in pictures:  # a caption, not the name of the file
        assert "<figcaption" in page
        assert f">{path.stem}</figcaption>" not in page
    for metric in filter(result.meaning, result.metrics):
        assert f"{result.title(metric)}: {prose(result.meaning(metric))}" in page
    for label in labels:
        assert page.count(f"<td>{label}</td>") == 3  # means, conservation, attention erasure
        assert label in str(result)
    assert Evaluation.from_json(_written(result, tmp_path)) == result


def _written(result, folder):
    result.to_json(folder / "e.json")
    return folder / "e.json"


def test_two_attributors_of_captum_stand_side_by_side(explainer):
    pytest.importorskip("captum")
    names = ["captum:Saliency", "captum:InputXGradient"]
    result = evaluate(explainer, TEXTS[:2], names, ["activation"])
    assert result.methods == names
    assert result.sums[names[0]] != result.sums[names[1]]


def test_the_same_method_with_the_same_settings_is_refused(explainer):
    twice = ["lrp", method("lrp"), "random"]
    with pytest.raises(MethodError, match=r"listed twice with the same settings: lrp$"):
        evaluate(explainer, TEXTS, twice)


# Stop and resume.


@dataclass(frozen=True)
class Stopping(Method):
    """Stops the run at its second call."""

    name: ClassVar[str] = "stopping"
    calls: ClassVar[list[int]] = []

    def scores(self, case):
        self.calls.append(len(case.batch))
        if len(self.calls) == 2:
            raise KeyboardInterrupt
        return Scores(case.batch.mask.double().cumsum(1) * case.batch.mask)


def test_a_run_that_was_stopped_resumes_to_the_same_result(explainer, tmp_path):
    settings = {"metrics": ["activation"], "window": 2, "out": tmp_path}
    Stopping.calls.clear()
    part = evaluate(explainer, TEXTS, [Stopping()], **settings)
    assert not part.complete
    assert "(interrupted: partial result)" in str(part)
    assert len(part.values["stopping"]["activation"]) == 2
    whole = evaluate(explainer, TEXTS, [Stopping()], resume=True, **settings)
    fresh = evaluate(explainer, TEXTS, [Stopping()], metrics=["activation"], window=2)
    assert whole.complete
    assert whole.values == fresh.values
    with pytest.raises(FileError, match=r"cannot resume .*rows 4 → 1; other data"):
        evaluate(explainer, TEXTS[:1], [Stopping()], resume=True, **settings)


def test_a_tensor_as_baseline_is_saved_and_resumed(explainer, bert, tmp_path):
    size = bert.config.hidden_size
    baseline = torch.linspace(-1, 1, size, dtype=torch.float64)
    integrated = method("integrated_gradients", steps=4, baseline=baseline)
    options = {"metrics": ["activation", "conservation"], "out": tmp_path}
    result = evaluate(explainer, TEXTS, [integrated, "integrated_gradients"], **options)
    assert result.methods == [integrated.label, "integrated_gradients"]
    assert Evaluation.from_json(_written(result, tmp_path)) == result
    again = evaluate(explainer, TEXTS, [integrated, "integrated_gradients"], resume=True, **options)
    assert again.timing["computed"] == 0
    assert again.values == result.values
    other = method("integrated_gradients", steps=4, baseline=baseline + 1e-9)
    with pytest.raises(FileError, match=r"changed \(methods "):
        evaluate(explainer, TEXTS, [other, "integrated_gradients"], resume=True, **options)


def test_a_default_that_has_changed_since_is_not_resumed(explainer, tmp_path):
    """The label shows no defaults, so the checkpoint has to hold them."""
    options = {"methods": ["smoothgrad"], "metrics": ["entropy"], "out": tmp_path}
    evaluate(explainer, TEXTS[:1], **options)
    file = tmp_path / "checkpoint" / "settings.json"
    settings = json.loads(file.read_bytes())
    settings["methods"]["smoothgrad"] |= {"samples": 3}
    file.write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(FileError, match=r"cannot resume .*methods .*'samples': 3.* → "):
        evaluate(explainer, TEXTS[:1], resume=True, **options)


@pytest.mark.parametrize(
    ("data", "options", "error", "words"),
    [
        ([], {}, InputError, "list of texts is empty"),
        ("a text", {}, InputError, "list of texts"),
        ([""], {}, InputError, r"no sample could be evaluated: unreadable \(1\)"),
        ([("a film", "goood")], {}, TargetError, 'did you mean "good"'),
        (["a film"], {"metrics": ["activaton"]}, MethodError, 'did you mean "activation"'),
        (["a film"], {"methods": ["lrpp"]}, MethodError, 'did you mean "lrp"'),
        (["a film"], {"sample": 0}, InputError, "sample must be 1 or more, got 0"),
        (["a film"], {"sample": -3}, InputError, "sample must be 1 or more, got -3"),
        (["a film"], {"seed": -1}, InputError, "seed must be 0 or more, got -1"),
        (["a film"], {"window": 0}, InputError, "window must be 1 or more, got 0"),
        (["a film"], {"blank": "nothing"}, MethodError, "zero, mean, pad, unk, mask"),
    ],
)
def test_bad_input_gets_a_message(explainer, data, options, error, words):
    with pytest.raises(error, match=words):
        evaluate(explainer, data, **{"methods": ["random"], **options})


def test_a_note_says_that_erased_tokens_end_the_text(bert, wordpiece):
    tokenizer = copy.deepcopy(wordpiece)
    before = evaluate(Explainer(bert, tokenizer), TEXTS, ["random"]).notes
    tokenizer.eos_token = tokenizer.unk_token
    explainer = Explainer(bert, tokenizer)
    (note,) = set(evaluate(explainer, TEXTS, ["random"]).notes) - set(before)
    assert "'[UNK]', which also ends a text" in note
    assert evaluate(explainer, TEXTS, ["random"], blank="pad").notes == before
