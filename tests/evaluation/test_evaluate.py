import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

from tests.helpers import exactly
from tests.oracles import protocols
from wherefrom import Explainer, evaluate
from wherefrom.errors import FileError, InputError, MethodError, TargetError
from wherefrom.evaluation.forward_cache import Pool
from wherefrom.evaluation.metrics import METRICS, correlations
from wherefrom.evaluation.results import Evaluation
from wherefrom.methods import Method
from wherefrom.methods.method import Scores

TEXTS = ["the film is good", "a dull movie", "i love the great script and it is not bad .", "bad"]
ALL = ["activation", "pruning", "flip", "leave_one_out", "conservation", "conciseness", "entropy"]


@pytest.fixture
def explainer(bert, wordpiece):
    return Explainer(bert, wordpiece)


@pytest.fixture
def result(explainer):
    return evaluate(explainer, TEXTS, ["lrp", "gradient", "random"], ALL, window=3)


@pytest.mark.parametrize("name", ["lrp", "gradient", "random"])
def test_protocols_equal_the_slow_loop(explainer, bert, wordpiece, result, name):
    for at, text in enumerate(TEXTS):
        found = explainer(text, name)
        ids, blank, index = wordpiece(text)["input_ids"], 1, found.target.index
        values, series = result.values[name], result.series[name]
        area, curve = protocols.auac(bert, ids, found.scores, index, blank)
        exactly(values["activation"][at], area, 1e-6)
        exactly(series["activation"][at], curve, 1e-6)
        area, curve = protocols.au_mse(bert, ids, found.scores, blank)
        exactly(values["pruning"][at], area, 1e-6)
        exactly(series["pruning"][at], curve, 1e-6)
        exactly(values["flip"][at], protocols.to_flip(bert, ids, found.scores, blank))
        lost = [
            protocols.outputs(bert, ids)[index]
            - protocols.outputs(bert, [blank if i == k else t for i, t in enumerate(ids)])[index]
            for k in range(len(ids))
        ]
        exactly(values["leave_one_out"][at], protocols.rank_correlation(found.scores, lost), 1e-6)


def test_curves_begin_and_end_with_the_models_own_outputs(explainer, bert, wordpiece, result):
    for at, text in enumerate(TEXTS):
        ids = wordpiece(text)["input_ids"]
        index = explainer(text).target.index
        empty = protocols.chance(protocols.outputs(bert, [1] * len(ids)), index)
        whole = protocols.chance(protocols.outputs(bert, ids), index)
        for name in result.methods:
            exactly(result.series[name]["activation"][at][0], empty, 1e-6)
            exactly(result.series[name]["activation"][at][-1], whole, 1e-6)
            assert result.series[name]["pruning"][at][0] == 0


class Additive(nn.Module):
    """Two classes; the second's logit is the sum of a weight for each token."""

    def __init__(self, weights):
        super().__init__()
        self.table = nn.Embedding.from_pretrained(torch.tensor(weights)[:, None])

    def forward(self, input_ids, attention_mask=None):
        held = self.table(input_ids)[..., 0] * attention_mask
        return torch.stack([torch.zeros_like(held[:, 0]), held.sum(1)], 1)


class Given(Method):
    """Scores from a table of weights, times a sign."""

    name = "given"

    def __init__(self, weights, sign):
        self.weights, self.sign = torch.tensor(weights, dtype=torch.float64), sign

    def settings(self):
        return {"sign": self.sign}

    def scores(self, subject, inputs, target):
        return Scores(self.sign * self.weights[inputs.tensors["input_ids"]] * inputs.mask)


def test_on_a_linear_model_the_true_ranking_has_the_best_area_and_its_inverse_the_worst(wordpiece):
    chance = np.random.default_rng(0)
    weights = chance.normal(size=len(wordpiece)).astype(np.float32).tolist()
    weights[1] = 0.0  # [UNK] says nothing
    explainer = Explainer(Additive(weights), wordpiece, labels=["no", "yes"], forward=_run)
    pairs = [(text, "yes") for text in TEXTS[:3]]

    def areas(method):
        found = evaluate(explainer, pairs, [method], ["activation"])
        return np.array(found.values[method.name]["activation"])

    best, worst = areas(Given(weights, 1.0)), areas(Given(weights, -1.0))
    for seed in range(8):
        other = areas(Given(chance.normal(size=len(weights)).tolist(), 1.0))
        assert (other <= best + 1e-7).all(), seed
        assert (other >= worst - 1e-7).all(), seed
    assert (best > worst).all()


def _run(model, tensors):
    return model(tensors["input_ids"], tensors["attention_mask"])


def test_special_tokens_stay_when_asked(explainer):
    kept = evaluate(explainer, TEXTS[:1], ["lrp"], ["activation"], keep_special=True)
    erased = evaluate(explainer, TEXTS[:1], ["lrp"], ["activation"])
    first = [e.series["lrp"]["activation"][0][0] for e in (kept, erased)]
    assert first[0] != first[1]


def test_every_step_has_a_point_for_each_unit(explainer, wordpiece):
    found = evaluate(explainer, TEXTS[:1], ["lrp"], ["pruning"], every=True)
    assert len(found.series["lrp"]["pruning"][0]) == len(wordpiece(TEXTS[0])["input_ids"]) + 1


def test_the_label_is_what_is_explained(explainer):
    texts = [(text, "mixed") for text in TEXTS]
    named = evaluate(explainer, texts, ["lrp"], ["activation"])
    numbered = evaluate(explainer, [(text, 2) for text in TEXTS], ["lrp"], ["activation"])
    assert named.values == numbered.values
    assert named.sums["lrp"][0][1] == pytest.approx(explainer(TEXTS[0], target=2).output)


def test_the_same_perturbed_input_is_run_once(explainer, monkeypatch):
    ran = []
    reader = explainer.reader("a text")

    def collate(items):
        ran.extend(map(tuple, items))
        return {
            "input_ids": torch.tensor(np.stack(items)),
            "attention_mask": torch.ones(len(items), 3),
        }

    monkeypatch.setattr(reader, "collate", collate)
    pool = Pool(reader)
    first = pool.ask([np.array([2, 7, 3]), np.array([2, 8, 3]), np.array([2, 7, 3])])
    again = pool.ask([np.array([2, 8, 3])])
    pool.run()
    assert first[0] == first[2]
    assert again == [first[1]]
    assert sorted(ran) == [(2, 7, 3), (2, 8, 3)]
    assert (pool.asked, pool.ran) == (4, 2)


def test_conservation_is_rounding_for_lrp_alone(result):
    assert max(result.values["lrp"]["conservation"]) < 1e-9
    assert min(result.values["gradient"]["conservation"]) > 1e-3


def test_a_run_that_was_stopped_goes_on_to_the_same_result(explainer, tmp_path):
    class Stop(Method):
        """Stops at the second window."""

        name = "random"
        calls = 0

        def settings(self):
            return {}

        def scores(self, subject, inputs, target):
            Stop.calls += 1
            if Stop.calls == 2:
                raise KeyboardInterrupt
            return Scores(inputs.mask.double().cumsum(1) * inputs.mask)

    settings = {"metrics": ["activation"], "window": 2, "out": tmp_path}
    part = evaluate(explainer, TEXTS, [Stop()], **settings)
    assert not part.complete
    assert len(part.values["random"]["activation"]) == 2
    whole = evaluate(explainer, TEXTS, [Stop()], resume=True, **settings)
    fresh = evaluate(explainer, TEXTS, [Stop()], metrics=["activation"], window=2)
    assert whole.complete
    assert whole.values == fresh.values
    with pytest.raises(FileError, match="other settings"):
        evaluate(explainer, TEXTS[:1], [Stop()], resume=True, **settings)


def test_it_goes_to_json_and_csv_and_back(result, tmp_path):
    result.to_json(tmp_path / "e.json")
    back = Evaluation.from_json(tmp_path / "e.json")
    assert back.values == result.values
    assert back.best == result.best
    assert len(result.to_csv().splitlines()) == 1 + len(result.methods) * len(result.metrics)
    (tmp_path / "bad.json").write_text(json.dumps({"schema": "x"}))
    with pytest.raises(FileError, match="no evaluation"):
        Evaluation.from_json(tmp_path / "bad.json")


def test_the_table_marks_the_best_and_shows_the_direction(result):
    text = str(result)
    assert "AUAC ↑" in text
    assert "AU-MSE ↓" in text
    assert "*" in text
    assert result.best in ("lrp", "gradient")
    low = result.summary("lrp", "activation")
    assert low.low <= low.mean <= low.high


def test_plots_are_written_for_each_metric(result, tmp_path):
    names = {path.name for path in result.plot(tmp_path)}
    assert names == {
        "activation.png",
        "pruning.png",
        "conservation.png",
        "flip.png",
        "agreement.png",
    }
    assert all((tmp_path / name).stat().st_size > 5000 for name in names)


def test_unusable_texts_are_counted_not_run(explainer):
    long = " ".join(["film"] * 200)
    found = evaluate(explainer, [*TEXTS, "", long, "[SEP]"], ["random"], ["activation"])
    assert len(found.values["random"]["activation"]) == len(TEXTS)
    assert found.skipped == {"unreadable": 1, "too long": 1, "only special tokens": 1}


@pytest.mark.parametrize(
    ("data", "options", "error", "words"),
    [
        ([], {}, InputError, "list of texts is empty"),
        ("a text", {}, InputError, "list of texts"),
        ([""], {}, InputError, "no sample could be evaluated"),
        ([("a film", "goood")], {}, TargetError, 'did you mean "good"'),
        (["a film"], {"metrics": ["activaton"]}, MethodError, 'did you mean "activation"'),
        (["a film"], {"methods": ["lrpp"]}, MethodError, 'did you mean "lrp"'),
        (["a film"], {"blank": "nothing"}, MethodError, "zero, pad, unk, mask"),
    ],
)
def test_bad_input_says_what_is_wrong(explainer, data, options, error, words):
    with pytest.raises(error, match=words):
        evaluate(explainer, data, **{"methods": ["random"], **options})


def test_methods_that_the_model_cannot_take_are_left_out_and_named():
    from benchmarks.tiny import model

    explainer = Explainer(model("fnet", "classify"), labels=["a", "b", "c"])
    explainer.tokenizer = None
    with pytest.raises(InputError, match="no sample"):
        evaluate(explainer, ["a text without a tokenizer"], ["lrp"])


def test_metrics_of_known_scores():
    assert METRICS["entropy"].better == ""
    scores = np.array([0.0, 9.0, 1.0, 0.0])
    sample = _sample(scores)
    assert METRICS["conciseness"].value(sample, None)[0] == 0.25
    expected = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1)) / math.log(4)
    exactly(METRICS["entropy"].value(sample, None)[0], expected)


def _sample(scores):
    from wherefrom.evaluation.metrics import Sample
    from wherefrom.explanation import Explanation, TargetInfo, Unit

    units = tuple(Unit(str(i)) for i in range(len(scores)))
    explanation = Explanation(units, scores.astype(np.float32), TargetInfo(0, "a"), 1.0, None, "x")
    return Sample(explanation, np.ones(len(scores), bool), 0, False)


def test_rank_correlations_are_scipys_also_with_ties():
    rows = np.random.default_rng(0).normal(size=(5, 12)).round(1)
    np.testing.assert_allclose(correlations(rows), spearmanr(rows.T)[0], atol=1e-12)
    rows[2] = 0.3  # a constant says nothing
    assert not correlations(rows)[2].any()
