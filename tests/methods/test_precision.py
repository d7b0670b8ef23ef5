"""Scores are no rounding: float32 ranks as float64 does, and alone as in a batch."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import wherefrom
from wherefrom.methods import METHODS
from wherefrom.methods.intercept import intercepted_forward
from wherefrom.rules.tables import PLAIN

EXAMPLES = Path(__file__).parents[2] / "examples"
INPUTS = {
    "sentiment": [
        "has a lot of the virtues of eastwood at his best .",
        "it's a charming and often affecting journey, and it never quite drags .",
        "unflinchingly bleak and desperate",
    ],
    "digits": [EXAMPLES / f"{name}.png" for name in ("three", "seven", "eight")],
    "bace": ["CC(=O)Nc1ccc(O)cc1", "CCOC(=O)c1ccc(N)cc1", "CN1CCC(CC1)c1ccccc1O"],
}
# few steps and samples: each rank is compared with the same sum in another precision
SETTINGS = {
    "smoothgrad": {"samples": 3},
    "integrated_gradients": {"steps": 8},
    "path_gradients": {"steps": 8},
    "dix": {"steps": 2},
}
CASES = [(model, name) for model in INPUTS for name in METHODS if name != "random"]


@pytest.fixture(scope="module")
def explainers():
    pairs = {}
    for model in INPUTS:
        wide = wherefrom.load(model)
        wide.subject.model.double()
        pairs[model] = (wherefrom.load(model), wide)
    return pairs


def ranks_agree(one, other, least):
    largest = np.abs(other.scores).max()
    assert largest > 0
    # scores that are equal but for rounding have no rank of their own
    a, b = (np.round(e.scores.astype(float) / largest, 4) for e in (one, other))
    assert spearmanr(a, b).statistic >= least


@pytest.mark.parametrize(("model", "name"), CASES)
def test_float32_ranks_as_float64_and_alone_as_in_a_batch(explainers, model, name):
    narrow, wide = explainers[model]
    inputs, settings = INPUTS[model], SETTINGS.get(name, {})
    together = narrow(inputs, name, **settings)
    exact = wide(inputs, name, **settings)
    for item, in_batch, in_float64 in zip(inputs, together, exact, strict=True):
        ranks_agree(in_batch, in_float64, 0.99)
        ranks_agree(narrow(item, name, **settings), in_batch, 0.99)


@pytest.mark.parametrize(("float64", "dtype"), [(False, torch.float32), (True, torch.float64)])
def test_a_pass_in_float64_is_that_of_the_wide_model(explainers, float64, dtype):
    narrow, wide = explainers["sentiment"]
    inputs, target = narrow.prepare(INPUTS["sentiment"][0])
    with intercepted_forward(PLAIN, narrow.subject, inputs, target, float64=float64) as forward:
        logits = forward.logits.detach()
    assert logits.dtype == dtype
    with torch.no_grad():
        expected = wide.subject.run(inputs.tensors)
    tolerance = 1e-10 if float64 else 1e-4
    torch.testing.assert_close(logits.double(), expected, rtol=tolerance, atol=tolerance)
