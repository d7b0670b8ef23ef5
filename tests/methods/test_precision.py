"""Passes in float64 of a float32 model, and ledgers in half precision."""

import pytest
import torch
from torch.nn import functional as F

import wherefrom
from benchmarks.tiny import model as tiny
from tests.helpers import exactly, normal, through
from tests.methods.calling import found, of_ids, rows_run
from wherefrom.core.target import Case
from wherefrom.errors import NotConserved, SamplesRunAlone
from wherefrom.methods.forward_pass import intercepted_forward
from wherefrom.methods.propagation import CONSERVATIVE, PLAIN


@pytest.mark.parametrize(("float64", "dtype"), [(False, torch.float32), (True, torch.float64)])
def test_a_pass_in_float64_is_that_of_the_wide_model(float64, dtype):
    narrow, wide = wherefrom.load("sentiment"), wherefrom.load("sentiment", dtype="float64")
    inputs, target = narrow._prepared("it's a charming and often affecting journey")
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
