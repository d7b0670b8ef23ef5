"""Attention erased: equal to the last block written out by hand, and to masks."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from benchmarks.tiny import model
from tests.helpers import exactly
from tests.oracles import protocols
from tests.studies.conftest import TEXTS
from wherefrom import Explainer, evaluate
from wherefrom.core.target import Case, Target
from wherefrom.inputs.text import batch, from_ids
from wherefrom.methods import method
from wherefrom.methods.forward_pass import intercepted_forward
from wherefrom.methods.propagation import PLAIN
from wherefrom.studies.attention_erasure import (
    AttentionErasure,
    WeightErasure,
    attention_rankings,
    erase_attention,
    flip_table,
    fraction_to_flip,
    js_divergence,
    sample_rng,
    single_weights,
)
from wherefrom.tracing.observers.attention_maps import Maps

LRP = method("lrp", root=None)
ROWS = [[5, 17, 33, 8, 2], [9, 4, 11, 23, 40, 71, 2]]


def padded(runner, rows=ROWS):
    return batch(runner, None, [from_ids(None, row) for row in rows], None)


def test_erasing_nothing_changes_nothing_and_all_of_a_layer_equals_no_values(bert):
    runner = Explainer(bert).runner
    inputs = padded(runner, ROWS[:1])
    gone = torch.tensor([[False] * 5, [True] * 5])
    whole, without = erase_attention(runner, inputs, [0, 0], gone)
    with torch.no_grad():
        exactly(whole, bert(input_ids=torch.tensor(ROWS[:1])).logits[0].softmax(-1))
        attention = bert.bert.encoder.layer[-1].attention
        hidden = bert.bert(input_ids=torch.tensor(ROWS[:1]), output_hidden_states=True)
        before = hidden.hidden_states[-2]
        block = bert.bert.encoder.layer[-1]
        # no value is read: the attention's output is the bias of its last linear layer
        read = attention.output(torch.zeros_like(before), before)
        after = block.output(block.intermediate(read), read)
        expected = bert.classifier(bert.bert.pooler(after)).softmax(-1)[0]
    exactly(without, expected)


def test_erasing_one_place_renormalises_the_rest():
    module = model("bert", "classify", num_hidden_layers=1)
    runner = Explainer(module).runner
    inputs = padded(runner, ROWS[:1])
    gone = torch.tensor([[False, True, False, False, False]])
    # in a model of one block, erasing with renormalisation is masking the place
    chances = erase_attention(runner, inputs, [0], gone)[0]
    masked = inputs.tensors["attention_mask"].clone()
    masked[0, 1] = 0
    with torch.no_grad():
        logits = module(input_ids=inputs.tensors["input_ids"], attention_mask=masked).logits
    exactly(chances, logits[0].softmax(-1))


def test_single_weights_have_one_row_a_sample_and_a_table_that_adds_to_one(bert):
    runner = Explainer(bert).runner
    erasures = single_weights(runner, padded(runner), Target(torch.tensor([0, 1])))
    assert len(erasures) == 2
    assert all(erasure.delta_weight >= 0 for erasure in erasures)
    assert sum(flip_table(erasures).values()) == pytest.approx(1)
    both = [WeightErasure(0.1, 0.2, True, True), WeightErasure(0.1, 0.2, False, True)]
    assert flip_table(both) == {"both": 0.5, "only highest": 0, "only random": 0.5, "neither": 0}


def test_the_share_to_a_flip_is_found_by_erasing_one_by_one(bert):
    runner = Explainer(bert).runner
    inputs = padded(runner)
    scores = [np.arange(5.0), np.arange(7.0)]
    shares = fraction_to_flip(runner, inputs, scores)
    for i, share in enumerate(shares):
        order = np.argsort(-scores[i])
        expected = 1.0
        first = None
        for count in range(len(order) + 1):
            gone = torch.zeros(1, 7, dtype=torch.bool)
            gone[0, order[:count]] = True
            decided = erase_attention(runner, inputs, [i], gone)[0].argmax()
            first = decided if first is None else first
            if decided != first:
                expected = count / len(order)
                break
        assert share == pytest.approx(expected)


def test_shares_to_a_flip_equal_the_block_written_out(explainer, bert, wordpiece, result):
    for text, record in zip(TEXTS, result.studies["attention_erasure"], strict=True):
        ids = wordpiece(text)["input_ids"]
        expected = protocols.attention_to_flip(bert, ids, explainer(text, "lrp").scores)
        exactly(record["to_flip"]["lrp"], expected)


@pytest.fixture(scope="module")
def strong(bert):
    """Weights that let the attention of the last block decide."""
    strong = model("bert", "classify", id2label=bert.config.id2label)
    with torch.no_grad():
        strong.bert.encoder.layer[-1].attention.self.value.weight.mul_(8)
    return strong


def test_a_flip_is_seen_where_there_is_one(strong, wordpiece):
    """Some rankings flip and the shares still agree."""
    explainer = Explainer(strong, wordpiece)
    result = evaluate(explainer, TEXTS, [LRP], ["attention_erasure"])
    shares = []
    for text, record in zip(TEXTS, result.studies["attention_erasure"], strict=True):
        ids = wordpiece(text)["input_ids"]
        shares.append(protocols.attention_to_flip(strong, ids, explainer(text, LRP).scores))
        exactly(record["to_flip"][LRP.label], shares[-1])
    assert min(shares) < 1


def test_a_flip_by_the_first_weight_erased_is_a_share_of_one_weight(strong, wordpiece):
    ids = wordpiece("bad")["input_ids"]
    runner = Explainer(strong).runner
    scores = [np.array([0.0, 1.0, 0.5]), np.array([1.0, 0.5, 0.0])]
    expected = [protocols.attention_to_flip(strong, ids, ranking) for ranking in scores]
    assert expected[0] == pytest.approx(1 / 3)
    assert expected[1] > expected[0]
    exactly(fraction_to_flip(runner, padded(runner, [ids] * 2), scores), expected)


def test_the_random_ranking_is_the_studys_own_also_next_to_the_random_method(strong, wordpiece):
    explainer = Explainer(strong, wordpiece)
    ids = wordpiece("bad")["input_ids"]
    own = sample_rng(padded(explainer.runner, [ids]), 0, 1).random(len(ids))
    expected, other = (
        protocols.attention_to_flip(strong, ids, ranking)
        for ranking in (own, explainer("bad", "random").scores)
    )
    assert expected != other
    for methods in (["random"], ["lrp"]):
        (record,) = evaluate(explainer, ["bad"], methods, ["attention_erasure"]).studies[
            "attention_erasure"
        ]
        exactly(record["to_flip"]["random"], expected)


def test_the_highest_weight_changes_more_where_its_divergence_is_larger():
    singles = [{"delta_js": delta, "delta_weight": 0.1} for delta in (0.2, -0.2, 0.0, 0.1, -0.1)]
    records = [
        {"single": {**single, "flips_highest": False, "flips_random": False}, "to_flip": {}}
        for single in singles
    ]
    summary = AttentionErasure().summary([*records, {"single": None, "to_flip": {}}])
    assert summary["samples"] == 6
    assert summary["highest_changes_more"] == pytest.approx(2 / 5)


def test_erasures_run_in_batches_of_so_many_positions(bert):
    runner = Explainer(bert).runner
    inputs = padded(runner)  # two samples of seven positions
    erased = torch.eye(7, dtype=torch.bool)[:5]
    sizes = []
    hook = bert.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    try:
        batched = erase_attention(runner, inputs, [0, 1, 0, 1, 0], erased, positions=14)
    finally:
        hook.remove()
    assert sizes == [1, 2, 2, 1]  # the first pass counts the maps
    exactly(batched, erase_attention(runner, inputs, [0, 1, 0, 1, 0], erased))


def test_attention_rankings_are_the_maps_and_their_slopes(bert, wordpiece):
    """The gradient by a weight is a finite difference of the output as that weight is moved."""
    runner = Explainer(bert).runner
    inputs, target = padded(runner, ROWS[:1]), Target(torch.tensor([1]))
    rankings = attention_rankings(runner, inputs, target)

    def output(scale):
        def replace(index, weights):
            return weights * scale if index == 1 else weights

        maps = Maps(1, replace)
        with intercepted_forward(PLAIN, Case(runner, inputs, target), maps=maps) as forward:
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
