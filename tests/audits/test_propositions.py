"""The two propositions of Ali et al. on tiny models: what attention and norms do to relevance."""

import numpy as np
import pytest
import torch

from benchmarks.tiny import model
from tests.helpers import exactly
from tests.modules import Pooled
from wherefrom import Explainer
from wherefrom.audits.propositions import propositions
from wherefrom.core.explanation import Unit
from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.core.target import Case, Target
from wherefrom.inputs.text import batch, from_ids

ROWS = [[5, 17, 33, 8, 2], [9, 4, 11, 23, 40, 71, 2]]


def inputs_of(runner, rows=ROWS):
    return batch(runner, None, [from_ids(None, row) for row in rows], None)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_both_propositions_hold_and_the_rules_conserve(family, attention):
    runner = Explainer(model(family, "classify", attn_implementation=attention)).runner
    conserved = propositions(Case(runner, inputs_of(runner, ROWS[:1]), Target(torch.tensor([1]))))
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
        runner = Explainer(model("bert", "classify", attn_implementation=attention)).runner
        inputs = inputs_of(runner, ROWS[:1])
        conserved = propositions(Case(runner, inputs, Target(torch.tensor([1]))))
        excess.append(conserved.attention_excess)
    exactly(*excess)


def test_a_model_without_attention_has_no_heads_to_probe():
    x = torch.randn(1, 4, 6, dtype=torch.float64)
    units = (tuple(Unit(str(i)) for i in range(4)),)
    inputs = Batch({"x": x}, ("x",), units, torch.ones(1, 4, dtype=torch.bool), (None,))
    runner = ModelRunner(Pooled(), lambda module, tensors: module(tensors["x"]))
    conserved = propositions(Case(runner, inputs, Target(torch.tensor([1]))))
    assert conserved.heads == 0
    assert np.isnan(conserved.attention_error)
