"""The two propositions of Ali et al. on tiny models: what attention and norms do to relevance."""

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
