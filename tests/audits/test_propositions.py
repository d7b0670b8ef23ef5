"""Attention erased by hand, and the two propositions, on tiny models."""

import numpy as np
import pytest
import torch

from benchmarks.tiny import model
from tests.helpers import exactly
from tests.modules import Pooled
from wherefrom import Explainer
from wherefrom.audits.propositions import propositions
from wherefrom.explanation import Unit
from wherefrom.inputs.text import batch, from_ids
from wherefrom.studies.attention_erasure import (
    WeightErasure,
    erase_attention,
    flip_table,
    fraction_to_flip,
    js_divergence,
    single_weights,
)
from wherefrom.subject import Inputs, Subject
from wherefrom.target import Target

ROWS = [[5, 17, 33, 8, 2], [9, 4, 11, 23, 40, 71, 2]]


def inputs_of(subject, rows=ROWS):
    return batch(subject, None, [from_ids(None, row) for row in rows], None)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_both_propositions_hold_and_the_rules_conserve(family, attention):
    subject = Explainer(model(family, "classify", attn_implementation=attention)).subject
    conserved = propositions(subject, inputs_of(subject, ROWS[:1]), Target(torch.tensor([1])))
    assert conserved.heads == 2
    assert conserved.attention_error < 1e-8
    assert any(abs(excess) > 1e-6 for excess in conserved.attention_excess)
    if family == "llama":  # has no LayerNorm, so proposition 2 does not apply
        assert np.isnan(conserved.norm_error)
        assert np.isnan(conserved.conserved_by_rules)
        return
    assert conserved.norm_error < 1e-8
    assert conserved.conserved_by_rules < 1e-8
    for norm in conserved.collapse:
        assert 0 <= norm.factor < 0.1  # nearly all relevance is lost in a norm


def test_eager_and_fused_attention_create_the_same_excess():
    excess = []
    for attention in ("sdpa", "eager"):
        subject = Explainer(model("bert", "classify", attn_implementation=attention)).subject
        inputs = inputs_of(subject, ROWS[:1])
        conserved = propositions(subject, inputs, Target(torch.tensor([1])))
        excess.append(conserved.attention_excess)
    exactly(*excess)


def test_a_model_without_attention_has_no_heads_to_probe():
    x = torch.randn(1, 4, 6, dtype=torch.float64)
    units = (tuple(Unit(str(i)) for i in range(4)),)
    inputs = Inputs({"x": x}, ("x",), units, torch.ones(1, 4, dtype=torch.bool), (None,))
    subject = Subject(Pooled(), lambda module, tensors: module(tensors["x"]))
    conserved = propositions(subject, inputs, Target(torch.tensor([1])))
    assert conserved.heads == 0
    assert np.isnan(conserved.attention_error)


def test_erasing_nothing_changes_nothing_and_all_of_a_layer_equals_no_values(bert):
    subject = Explainer(bert).subject
    inputs = inputs_of(subject, ROWS[:1])
    gone = torch.tensor([[False] * 5, [True] * 5])
    whole, without = erase_attention(subject, inputs, [0, 0], gone)
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


def test_erasing_one_place_renormalises_the_rest(bert):
    eager = model("bert", "classify", attn_implementation="eager", id2label=bert.config.id2label)
    eager.load_state_dict(bert.state_dict())
    subject = Explainer(eager).subject
    inputs = inputs_of(subject, ROWS[:1])
    gone = torch.tensor([[False, True, False, False, False]])
    masked = inputs.tensors["attention_mask"].clone()
    masked[0, 1] = 0
    one = model("bert", "classify", num_hidden_layers=1)
    alone = Explainer(one).subject
    # in a model of one block, erasing with renormalisation is masking the place
    found = erase_attention(alone, inputs, [0], gone, layer=0)[0]
    with torch.no_grad():
        logits = one(input_ids=inputs.tensors["input_ids"], attention_mask=masked).logits
    exactly(found, logits[0].softmax(-1))


def test_divergence_is_zero_for_equals_and_symmetric():
    p, q = np.array([0.2, 0.8]), np.array([0.6, 0.4])
    assert js_divergence(p, p) == 0
    assert js_divergence(p, q) == pytest.approx(js_divergence(q, p))


def test_single_weights_have_one_row_a_sample_and_a_table_that_adds_to_one(bert):
    subject = Explainer(bert).subject
    found = single_weights(subject, inputs_of(subject), Target(torch.tensor([0, 1])))
    assert len(found) == 2
    assert all(each.delta_weight >= 0 for each in found)
    assert sum(flip_table(found).values()) == pytest.approx(1)
    both = [WeightErasure(0.1, 0.2, True, True), WeightErasure(0.1, 0.2, False, True)]
    assert flip_table(both) == {"both": 0.5, "only highest": 0, "only random": 0.5, "neither": 0}


def test_the_share_to_a_flip_is_found_by_erasing_one_by_one(bert):
    subject = Explainer(bert).subject
    inputs = inputs_of(subject)
    scores = [np.arange(5.0), np.arange(7.0)]
    found = fraction_to_flip(subject, inputs, scores)
    for i, share in enumerate(found):
        order = np.argsort(-scores[i])
        expected = 1.0
        first = None
        for count in range(len(order) + 1):
            gone = torch.zeros(1, 7, dtype=torch.bool)
            gone[0, order[:count]] = True
            decided = erase_attention(subject, inputs, [i], gone)[0].argmax()
            first = decided if first is None else first
            if decided != first:
                expected = count / len(order)
                break
        assert share == pytest.approx(expected)
