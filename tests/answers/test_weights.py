"""Answers of models in other number types, quantised, or spread by accelerate."""

import copy
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.tiny import model as tiny
from wherefrom import Explainer, load
from wherefrom.errors import ModelError

PROMPT = [1, 17, 45, 8, 99, 23]
ANSWER = [33, 71, 5, 60]


@pytest.fixture(scope="module")
def model():
    return tiny("llama", "write").float()


def shares(answer):
    values = answer.row().values
    return values / np.abs(values).sum()


def closes(answer, bound):
    ledger = answer.of().ledger
    size = sum(abs(line.value) for line in ledger.lines)
    return abs(ledger.residual) < bound * size


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_says_nearly_the_same_and_adds_up(model, dtype):
    expected = Explainer(model).answer(PROMPT, ANSWER, of="logit")
    answer = Explainer(copy.deepcopy(model).to(dtype)).answer(PROMPT, ANSWER, of="logit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # NotConserved would say that it does not
        assert closes(answer, 10 * torch.finfo(dtype).eps)
    np.testing.assert_allclose(shares(answer), shares(expected), atol=0.05)
    matrix = np.stack([row.values for row in answer.rows()]).sum(0)
    np.testing.assert_allclose(matrix, answer.row().values, atol=0.02 * np.abs(matrix).sum())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_an_answer_of_a_quantised_model_adds_up(model):
    packed = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    answer = Explainer(packed).answer(PROMPT, ANSWER)
    assert closes(answer, 1e-5)
    assert answer.of().ledger.of("quantisation")
    assert len(Explainer(packed).generate(PROMPT, 3)) == 3


def test_weights_that_are_not_in_memory_are_refused_in_a_line(model):
    """As accelerate leaves them that offloads to the CPU or a disk."""
    away = copy.deepcopy(model)
    layer = away.model.layers[1].mlp.up_proj
    layer.weight = nn.Parameter(torch.empty_like(layer.weight, device="meta"))
    with pytest.raises(ModelError, match=r"layers.1.mlp.up_proj.weight is offloaded.*device_map"):
        Explainer(away)


def test_weights_that_were_repacked_for_inference_are_refused_in_a_line(model):
    """bitsandbytes does so on a CPU; its layers have a `quant_state` on an integer weight."""

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(8, 1, dtype=torch.uint8), requires_grad=False)
            self.weight.quant_state = SimpleNamespace(packing_format_for_cpu=True)

        def forward(self, x):
            return x.detach() * 2

    packed = copy.deepcopy(model)
    packed.model.layers[1].mlp.up_proj = Packed()
    packed.model.layers[1].mlp.gate_proj = nn.Linear(32, 32)
    packed.model.layers[1].mlp.down_proj = nn.Linear(32, 32)
    with pytest.raises(ModelError, match=r"layers.1.mlp.up_proj: bitsandbytes repacked"):
        Explainer(packed).answer(PROMPT, ANSWER).of()


def test_a_device_map_of_one_device_is_no_different(model, tmp_path):
    pytest.importorskip("accelerate")
    model.save_pretrained(tmp_path)
    mapped = load(tmp_path, device_map={"": "cpu"}).answer(PROMPT, ANSWER)
    expected = load(tmp_path).answer(PROMPT, ANSWER)
    np.testing.assert_allclose(mapped.row().values, expected.row().values, rtol=1e-5, atol=1e-6)
