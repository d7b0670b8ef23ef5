"""Batches whose samples are not on the first axis run one by one, with a warning."""

import pytest
import torch
from torch import nn

from tests.helpers import exactly, normal
from tests.modules import CLASSES, Block, D, Flat, Mixture, Plain, SequenceFirst
from wherefrom import Explainer
from wherefrom.errors import SamplesRunAlone


class Counted(nn.Module):
    """Counts its passes."""

    def __init__(self, module):
        super().__init__()
        self.module, self.passes = module, 0

    def forward(self, x):
        self.passes += 1
        return self.module(x)


def passes_of(module, x, **options):
    counted = Counted(module)
    explanations = Explainer(counted)(x, batch_size=len(x), **options)
    return counted.passes, explanations


def test_samples_in_order_along_the_first_axis_are_one_pass(rng):
    module, x = Block(), normal(rng, 5, 5, D)
    passes, together = passes_of(module, x)
    assert passes == 1 + 1  # and a plain one of a sample alone
    for one, explanation in zip(x, together, strict=True):
        exactly(explanation.scores, Explainer(module)(one).scores, 1e-6)
        assert explanation.ledger.relative < 1e-9


@pytest.mark.parametrize("method", ["lrp", "gradient_x_input", "transformer_attribution"])
@pytest.mark.parametrize("samples", [2, 5])  # as many samples as positions
@pytest.mark.parametrize("kind", [SequenceFirst, Flat, Mixture])
def test_elsewhere_each_sample_is_run_alone(kind, samples, method, rng):
    if kind is not SequenceFirst and method == "transformer_attribution":
        return  # it has no attention
    module, x = kind(), normal(rng, samples, 5, D)
    with pytest.warns(SamplesRunAlone):
        together = Explainer(module)(x, method, batch_size=samples)
    for one, explanation in zip(x, together, strict=True):
        (alone,) = Explainer(module)(one[None], method)
        exactly(explanation.scores, alone.scores, 1e-6)
        if explanation.ledger is not None:
            expected = {(line.label, line.kind): line.value for line in alone.ledger.lines}
            actual = {(line.label, line.kind): line.value for line in explanation.ledger.lines}
            for line in expected.keys() | actual.keys():
                exactly(actual.get(line, 0.0), expected.get(line, 0.0), 1e-6)


class Shuffled(Plain):
    """Reorders the rows of all samples by a call that the catalogue does not list."""

    def __init__(self, times):
        super().__init__()
        self.inner, self.head, self.times = nn.Linear(D, D), nn.Linear(D, CLASSES), times
        self.shaken()

    def forward(self, x):
        flat = x.flatten(0, 1)
        order = flat[:, 0].argsort()
        sent = order.repeat(self.times)
        rows = self.inner(torch.ops.aten.index(flat, [sent]))
        back = torch.ops.aten.index(rows, [order.argsort()])
        return self.head(back.view_as(x).mean(1))


@pytest.mark.parametrize("times", [1, 2])
def test_rows_in_another_order_show_in_the_ledger(times, rng):
    module, x = Shuffled(times), normal(rng, 2, 5, D)
    counted = Counted(module)
    with pytest.warns(SamplesRunAlone, match="the ledger of a batch misses .* one by one"):
        together = Explainer(counted)(x)
    # one more to see that the ledger of one sample adds up, and a plain one
    assert counted.passes == 4 + 1
    for one, explanation in zip(x, together, strict=True):
        exactly(explanation.scores, Explainer(module)(one[None])[0].scores, 1e-6)
