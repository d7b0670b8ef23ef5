"""The studies on a tiny model equal slow references."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from benchmarks.tiny import model
from tests.evaluation.additive import additive_explainer
from tests.helpers import exactly
from tests.oracles import protocols
from wherefrom import Explainer, evaluate
from wherefrom.audits.propositions import propositions
from wherefrom.evaluation.results import Evaluation
from wherefrom.inputs.text import batch, from_ids
from wherefrom.methods.intercept import intercepted_forward
from wherefrom.rules.maps import Maps
from wherefrom.rules.tables import CONSERVATIVE, PLAIN
from wherefrom.show.report import render_evaluation
from wherefrom.studies.attention_erasure import attention_rankings, js_divergence
from wherefrom.studies.base import StudySamples
from wherefrom.studies.layer_profile import TABLES, block_shares, norm_shares, relevance_sums
from wherefrom.subject import Subject
from wherefrom.target import Target
from wherefrom.testing import untouched

TEXTS = ["the film is good", "a dull movie", "i love the great script and it is not bad .", "bad"]
STUDIES = ["attention_erasure", "layers"]


@pytest.fixture(scope="module")
def explainer(bert, wordpiece):
    return Explainer(bert, wordpiece)


@pytest.fixture(scope="module")
def result(explainer):
    return evaluate(explainer, TEXTS, ["lrp", "random"], ["activation", *STUDIES], window=3)


def inputs_of(subject, ids=(5, 17, 33, 8, 2)):
    return batch(subject, None, [from_ids(None, ids)], None)


def test_shares_to_a_flip_equal_the_block_written_out(explainer, bert, wordpiece, result):
    for text, record in zip(TEXTS, result.studies["attention_erasure"], strict=True):
        ids = wordpiece(text)["input_ids"]
        expected = protocols.attention_to_flip(bert, ids, explainer(text, "lrp").scores)
        exactly(record["to_flip"]["lrp"], expected)


def test_a_flip_is_seen_where_there_is_one(bert, wordpiece):
    """On weights that let the last block decide, some rankings flip and the shares still agree."""
    strong = model("bert", "classify", id2label=bert.config.id2label)
    with torch.no_grad():
        strong.bert.encoder.layer[-1].attention.self.value.weight.mul_(8)
    explainer = Explainer(strong, wordpiece)
    result = evaluate(explainer, TEXTS, ["lrp"], ["attention_erasure"])
    shares = []
    for text, record in zip(TEXTS, result.studies["attention_erasure"], strict=True):
        ids = wordpiece(text)["input_ids"]
        shares.append(protocols.attention_to_flip(strong, ids, explainer(text, "lrp").scores))
        exactly(record["to_flip"]["lrp"], shares[-1])
    assert min(shares) < 1


def test_attention_rankings_are_the_maps_and_their_slopes(bert, wordpiece):
    """The gradient by a weight is a finite difference of the output as that weight is moved."""
    subject = Explainer(bert).subject
    inputs, target = inputs_of(subject), Target(torch.tensor([1]))
    rankings = attention_rankings(subject, inputs, target)

    def output(scale):
        def replace(index, weights):
            return weights * scale if index == 1 else weights

        maps = Maps(1, replace)
        with intercepted_forward(PLAIN, subject, inputs, target, maps=maps) as forward:
            return float(forward.output.detach())

    for place in range(5):
        step = torch.ones(5, dtype=torch.float64)
        ends = []
        for sign in (1, -1):
            step[place] = 1 + sign * 1e-5
            ends.append(output(step))
        slope = (ends[0] - ends[1]) / 2e-5  # by α itself, times α, over heads and rows
        exactly(rankings["attention_x_gradient"][0, place], slope, 1e-6)
    eager = model("bert", "classify", attn_implementation="eager", id2label=bert.config.id2label)
    eager.load_state_dict(bert.state_dict())
    with torch.no_grad():
        maps = eager(input_ids=inputs.tensors["input_ids"], output_attentions=True).attentions
    exactly(rankings["attention"][0], maps[-1][0].mean(0)[0])  # [CLS] is read


def test_single_weights_equal_the_block_written_out(explainer, bert, wordpiece, result):
    for text, record in zip(TEXTS, result.studies["attention_erasure"], strict=True):
        ids = wordpiece(text)["input_ids"]
        whole = _chances(protocols.erased_outputs(bert, ids, []))
        drops = [
            protocols.js(whole, _chances(protocols.erased_outputs(bert, ids, [place])))
            for place in range(len(ids))
        ]
        eager = _attention(bert, ids)
        top = int(np.argmax(eager))
        single = record["single"]
        pairs = [
            (eager[top] - eager[i], drops[top] - drops[i]) for i in range(len(ids)) if i != top
        ]
        near = [abs(a - single["delta_weight"]) + abs(b - single["delta_js"]) for a, b in pairs]
        assert min(near) < 1e-8


def _chances(logits):
    return [protocols.chance(logits, i) for i in range(len(logits))]


def _attention(bert, ids):
    eager = model("bert", "classify", attn_implementation="eager", id2label=bert.config.id2label)
    eager.load_state_dict(bert.state_dict())
    with torch.no_grad():
        maps = eager(input_ids=torch.tensor([ids]), output_attentions=True).attentions
    return maps[-1][0].mean(0)[0].numpy()


def test_texts_whose_class_is_not_predicted_have_no_share(explainer):
    predicted = [explainer(text).target.index for text in TEXTS]
    pairs = list(zip(TEXTS, [predicted[0], *((d + 1) % 3 for d in predicted[1:])], strict=True))
    result = evaluate(explainer, pairs, ["lrp"], ["attention_erasure"])
    records = result.studies["attention_erasure"]
    assert [bool(record["to_flip"]) for record in records] == [True, False, False, False]
    assert result.study("attention_erasure")["to_flip"]["lrp"]["samples"] == 1


def test_records_do_not_depend_on_the_window(explainer, result):
    at_once = evaluate(explainer, TEXTS, ["lrp", "random"], ["activation", *STUDIES], window=64)
    for name in STUDIES:
        _same(at_once.studies[name], result.studies[name])


def _same(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            _same(a[key], b[key])
    elif isinstance(a, list):
        for x, y in zip(a, b, strict=True):
            _same(x, y)
    else:
        assert a == (pytest.approx(b, rel=1e-9, abs=1e-12) if isinstance(a, float) else b)


def test_relevance_at_each_block_is_gradient_times_state(bert):
    subject = Explainer(bert).subject
    inputs, target = inputs_of(subject), Target(torch.tensor([1]))
    with untouched(bert):
        sums = relevance_sums(subject, inputs, target, PLAIN)
    out = bert(input_ids=inputs.tensors["input_ids"], output_hidden_states=True)
    slopes = torch.autograd.grad(out.logits[0, 1], out.hidden_states[1:])
    expected = [
        float((g * h).detach().sum()) for g, h in zip(slopes, out.hidden_states[1:], strict=True)
    ]
    assert list(sums.blocks) == ["input", "bert.encoder.layer.0", "bert.encoder.layer.1"]
    exactly(list(sums.blocks.values())[1:], expected)
    exactly(sums.output, float(out.logits[0, 1].detach()))


def test_under_the_rules_what_a_block_loses_is_in_the_ledger(bert, wordpiece):
    """Σ at the last block and the constants behind it are the output; likewise at the input."""
    explainer = Explainer(bert, wordpiece)
    explanation = explainer(TEXTS[0])
    inputs = batch(explainer.subject, wordpiece, explainer.encode(TEXTS[:1]), None)
    target = Target(torch.tensor([explanation.target.index]))
    sums = relevance_sums(explainer.subject, inputs, target, CONSERVATIVE)
    biases = {
        line.label: line.value for line in explanation.ledger.lines if line.kind not in ("word",)
    }
    words = next(line.value for line in explanation.ledger.lines if line.kind == "word")
    exactly(sums.blocks["input"], words, 1e-6)
    behind = sum(v for k, v in biases.items() if k in ("bert.pooler", "classifier"))
    exactly(sums.blocks["bert.encoder.layer.1"] + behind, explanation.output, 1e-6)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_norms_are_those_of_proposition_two(family):
    subject = Explainer(model(family, "classify")).subject
    inputs, target = inputs_of(subject), Target(torch.tensor([1]))
    expected = propositions(subject, inputs, target).collapse
    norms = relevance_sums(subject, inputs, target, PLAIN).norms
    exactly([n[1] for n in norms], [norm.before for norm in expected], 1e-8)
    exactly([n[2] for n in norms], [norm.after for norm in expected], 1e-8)


@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
def test_the_rules_lose_nothing_at_any_norm_and_gradients_nearly_all(family):
    subject = Explainer(model(family, "classify")).subject
    inputs, target = inputs_of(subject), Target(torch.tensor([1]))
    for name, table in TABLES.items():
        norms = relevance_sums(subject, inputs, target, table).norms
        assert len(norms) >= 4
        for _, before, after in norms:
            if name == "gradient_x_input":
                assert abs(before) < 0.1 * abs(after) + 1e-12
            else:
                assert before == pytest.approx(after, rel=1e-5, abs=1e-9)


def test_all_of_it_goes_to_json_and_back_and_to_tables(result, tmp_path):
    result.to_json(tmp_path / "e.json")
    assert Evaluation.from_json(tmp_path / "e.json") == result
    names = {path.name for path in result.to_csvs(tmp_path)}
    assert names == {
        "summary.csv", "conservation.csv", "layers.csv", "collapse.csv",
        "attention_erasure_weights.csv", "attention_erasure_flips.csv",
        "attention_erasure_to_flip.csv",
    }  # fmt: skip
    rows = (tmp_path / "conservation.csv").read_text().splitlines()
    assert rows[0] == "method,slope,r2,r2_diagonal,gap,relative_gap"
    assert len(rows) == 1 + len(result.methods)
    flips = result.study("attention_erasure")["flips"]
    assert math.isclose(sum(flips.values()), 1)


def test_plots_and_report_show_the_studies(result, tmp_path):
    pictures = result.plot(tmp_path)
    names = {path.stem for path in pictures}
    assert {"attention_erasure", "attention_to_flip", "layers", "collapse"} <= names
    page = render_evaluation(result, pictures)
    assert "Is attention a reason?" in page
    assert "R² of the diagonal" in page
    assert page.count("<img") == len(pictures)


def test_studies_alone_make_a_result(explainer, tmp_path):
    result = evaluate(explainer, TEXTS, ["lrp"], ["layers"])
    assert result.best is None
    assert "best method" not in str(result)
    assert result.to_csv().splitlines() == ["method,metric,mean,low,high,samples,better"]
    assert Evaluation.from_json(_written(result, tmp_path)) == result
    assert "trusted" in render_evaluation(result, [])


def _written(result, folder):
    result.to_json(folder / "e.json")
    return folder / "e.json"


def test_a_study_that_the_model_does_not_support_is_named(wordpiece):
    weights = torch.linspace(-1, 1, len(wordpiece)).tolist()
    explainer = additive_explainer(weights, wordpiece)
    result = evaluate(explainer, TEXTS, ["lrp"], ["activation", *STUDIES])
    assert result.studies == result.study_summaries == result.study_tables == {}
    notes = "\n".join(result.notes)
    assert "attention_erasure was left out" in notes
    assert "layers was left out" in notes


def test_shares_are_medians_over_samples_without_outputs_of_zero():
    records = [
        {
            "output": output,
            "blocks": {"lrp": {"input": share * output, "layer.0": 2 * share * output}},
            "norms": {"lrp": [["norm", share * output, 3 * share * output]]},
        }
        for output, share in ((2.0, 0.5), (-1.0, 0.75), (4.0, 1.0), (0.0, 9.0))
    ]
    blocks = block_shares(records)["lrp"]
    exactly([blocks["input"][key] for key in ("low", "share", "high")], [0.625, 0.75, 0.875])
    exactly(blocks["layer.0"]["share"], 1.5)
    assert norm_shares(records)["lrp"] == [{"norm": "norm", "before": 0.75, "after": 2.25}]


def test_the_divergence_is_that_of_entropies_and_zero_for_equals():
    chance = np.random.default_rng(0)
    for _ in range(20):
        p, q = chance.dirichlet(np.ones(4), size=2)
        exactly(js_divergence(p, q), protocols.js(p, q), 1e-12)
        exactly(js_divergence(p, q), jensenshannon(p, q) ** 2, 1e-12)
        exactly(js_divergence(p, q), js_divergence(q, p), 1e-15)
        # rounding makes SciPy's distance NaN for some of these
        assert 0 <= js_divergence(p, p * (1 + 1e-12 * chance.normal(size=4))) < 1e-12
    exactly(js_divergence(np.array([1.0, 0.0]), np.array([0.0, 1.0])), math.log(2), 1e-15)


def test_targets_lie_on_the_device_of_the_model(explainer):
    elsewhere = Subject(torch.nn.Linear(2, 2, device="meta"))
    samples = StudySamples(elsewhere, None, {"lrp": [explainer(text) for text in TEXTS]})
    target = samples.targets([0, 2])
    assert target.index.device.type == "meta"
    here = StudySamples(explainer.subject, None, samples.explanations)
    assert here.targets([0, 2]).index.tolist() == [explainer(TEXTS[i]).target.index for i in (0, 2)]
