"""Logits are computed only where they are explained, without changing scores."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers import exactly
from tests.methods.calling import ROWS, asked, family, found, of_ids
from wherefrom.core.runner import ModelRunner

pytestmark = pytest.mark.skipif(
    not ModelRunner(family("gpt2", "write")).keeps_rows,
    reason="this version of transformers cannot be asked for single rows of logits",
)
METHODS = ["lrp", "attn_lrp", "gradient_x_input", "integrated_gradients", "occlusion", "gae"]


def rows_seen(layer, run):
    """The shapes of a layer's inputs while `run` runs."""
    shapes = []
    handle = layer.register_forward_pre_hook(lambda _module, args: shapes.append(args[0].shape))
    try:
        run()
    finally:
        handle.remove()
    return shapes


class Tiny(nn.Module):
    """A causal model by hand: no config, no logits_to_keep."""

    def __init__(self, tied=False, scaled=False):
        super().__init__()
        torch.manual_seed(2)
        self.wte, self.wpe = nn.Embedding(80, 8), nn.Embedding(16, 8)
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 80)
        self.scaled = scaled
        if tied:
            self.head.weight = self.wte.weight
        self.double().eval()

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        q, k, v = self.qkv(x).chunk(3, -1)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        logits = self.head(self.norm(x))
        return logits / 2 if self.scaled else logits


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("method", METHODS)
def test_a_model_that_can_is_asked_for_one_row(name, method):
    model = family(name, "write")
    inputs = of_ids(model, ROWS[:1])
    shapes = rows_seen(model.lm_head, lambda: found(model, inputs, method, 5))
    assert shapes
    assert {shape[1] for shape in shapes} == {1}


@pytest.mark.parametrize("method", METHODS)
def test_scores_and_ledger_are_those_of_all_rows(monkeypatch, method):
    model = family("llama", "write")
    inputs = of_ids(model, ROWS)  # three lengths: three positions
    few = found(model, inputs, method, 5)
    monkeypatch.setattr(ModelRunner, "keeps_rows", False)
    whole = found(model, inputs, method, 5)
    exactly(few.values, whole.values)
    for key, line in (whole.lines or {}).items():
        exactly(few.lines[key], line)
    assert few.logits.shape[1] == 1
    target = asked(inputs, 5)
    exactly(target.row(few.logits), target.row(whole.logits))
