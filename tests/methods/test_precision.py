"""Scores are not rounding errors: float32 ranks like float64, alone like in a batch."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch.nn import functional as F

import wherefrom
from benchmarks.tiny import model as tiny
from tests.helpers import exactly, normal, through
from tests.methods.calling import found, of_ids, rows_run
from wherefrom.core.target import Case
from wherefrom.errors import NotConserved, SamplesRunAlone
from wherefrom.methods import METHODS
from wherefrom.methods.forward_pass import intercepted_forward
from wherefrom.methods.propagation import CONSERVATIVE, PLAIN

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
    "shapley": {"budget": 300},
}
CASES = [(model, name) for model in INPUTS for name in METHODS if name != "random"]


@pytest.fixture(scope="module")
def explainers():
    pairs = {}
    for model in INPUTS:
        wide = wherefrom.load(model)
        wide.runner.model.double()
        pairs[model] = (wherefrom.load(model), wide)
    return pairs


def ranks_agree(one, other, least):
    largest = np.abs(other.scores).max()
    assert largest > 0
    # scores that differ by rounding only have no order
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
    inputs, target = narrow._prepared(INPUTS["sentiment"][0])
    with intercepted_forward(
        PLAIN, Case(narrow.runner, inputs, target), float64=float64
    ) as forward:
        logits = forward.logits.detach()
    assert logits.dtype == dtype
    with torch.no_grad():
        expected = wide.runner.run(inputs.tensors)
    tolerance = 1e-10 if float64 else 1e-4
    torch.testing.assert_close(logits.double(), expected, rtol=tolerance, atol=tolerance)


HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("family", ["bert", "llama", "gpt2"])
def test_half_precision_closes_in_one_pass_of_a_batch(family, dtype, recwarn):
    model = tiny(family, "classify").to(dtype)
    inputs = of_ids(model, [[5, 17, 33, 8, 60, 71, 2], [9, 4, 11, 23, 2], [7, 8, 2]])
    with rows_run(model) as rows:
        scores = found(model, inputs, "lrp", 1)
    assert rows == [3]
    kinds = {warning.category for warning in recwarn}
    assert not kinds & {NotConserved, SamplesRunAlone}
    lines = torch.stack(list(scores.lines.values()))
    sizes = lines.abs().sum(0).maximum(scores.values.abs().sum(1))
    residual = scores.logits[:, 1].double() - lines.sum(0)
    assert (residual.abs() <= 8 * torch.finfo(dtype).eps * sizes).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_what_a_constant_adds_is_summed_up_in_more_than_half_precision(dtype, rng):
    x, bias, seed = (normal(rng, *shape).to(dtype) for shape in ((1, 50, 96), (96,), (1, 50, 96)))
    weight = torch.eye(96, dtype=dtype)
    run = through(CONSERVATIVE, lambda x: F.linear(x, weight, bias), x, seed=seed)
    expected = float((seed.double() * bias.double()).sum())
    assert abs(run.recorded - expected) < 1e-5 * float((seed.double() * bias.double()).abs().sum())
    relevance = run.tracer.entry_points.relevance([seed])
    exactly(relevance.units, (seed.double() * x.double()).sum(2), tol=1e-5)
