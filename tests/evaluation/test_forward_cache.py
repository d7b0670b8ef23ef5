"""Each distinct input runs once, and none is padded that cannot be."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.modules import Pooled
from wherefrom import Explainer, evaluate
from wherefrom.evaluation.forward_cache import ForwardCache


class Recorded:
    """Rows of numbers as forms; records the lengths of every batch."""

    def __init__(self, pads=True, alone=False):
        self.pads, self.alone, self.runner = pads, alone, self
        self.batches = []

    device = torch.device("cpu")
    key = staticmethod(bytes)
    length = staticmethod(len)

    def batch_shape(self, form):
        return None if self.pads else len(form)

    def collate(self, forms):
        self.batches.append([len(form) for form in forms])
        return forms

    def evaluating(self, *, inference):
        return torch.inference_mode(inference)

    def run(self, forms):
        return torch.tensor([[float(sum(form)), 0.0] for form in forms], dtype=torch.float64)


@pytest.fixture
def forms():
    chance = np.random.default_rng(0)
    return [chance.integers(0, 200, size=n).tolist() for n in (5, 2, 3, 2, 5, 3, 3, 2, 7, 1) * 3]


@pytest.mark.parametrize("positions", [1, 10, 2048])
@pytest.mark.parametrize(("pads", "alone"), [(True, False), (False, False), (True, True)])
def test_batches_hold_only_what_may_share_one(forms, positions, pads, alone):
    reader = Recorded(pads, alone)
    cache = ForwardCache(reader, positions)
    shares = []
    first, second = cache.request(forms[:20]), cache.request(forms[10:])
    cache.run(shares.append)
    assert cache.logits(first)[:, 0].tolist() == [sum(form) for form in forms[:20]]
    assert cache.logits(second)[:, 0].tolist() == [sum(form) for form in forms[10:]]
    lengths = [batch for batch in reader.batches if len(set(batch)) > 1]
    if not pads or alone or positions == 1:
        assert not lengths
    elif positions == 2048:
        assert len(reader.batches) == 1
    for batch in reader.batches:
        assert len(batch) == 1 or (not alone and max(batch) * len(batch) <= positions)
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_long_forms_do_not_shrink_the_batches_of_short_ones():
    reader = Recorded()
    cache = ForwardCache(reader, positions=20)
    cache.request([[n, 0] for n in range(20)] + [[n] * 10 for n in range(4)])
    cache.run()
    assert reader.batches == [[2] * 10, [2] * 10, [10] * 2, [10] * 2]


def test_the_same_input_runs_once_until_the_cache_is_cleared():
    reader = Recorded()
    cache = ForwardCache(reader)
    first = cache.request([[2, 7, 3], [2, 8, 3], [2, 7, 3]])
    again = cache.request([[2, 8, 3]])
    cache.run()
    later = cache.request([[2, 7, 3], [9]])
    cache.run()
    assert first[0] == first[2] == later[0]
    assert again == [first[1]]
    assert reader.batches == [[3, 3], [1]]
    assert (cache.requested, cache.computed) == (6, 3)
    cache.clear()
    assert cache.request([[9]]) == [0]
    cache.run()
    assert reader.batches[2:] == [[1]]


class Averaged(nn.Module):
    """Patches of any image, averaged: sizes may differ, but not within a batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cut, self.head = nn.Conv2d(3, 6, 8, 8), nn.Linear(6, 3)
        self.double()

    def forward(self, pixel_values):
        patches = self.cut(pixel_values).flatten(2).transpose(1, 2)
        return self.head(torch.tanh(patches).mean(1))


def test_images_of_several_shapes_are_evaluated_as_if_alone():
    chance = torch.Generator().manual_seed(0)
    sizes = [(16, 32), (32, 16), (16, 16), (32, 16)]  # two have as many patches, in other places
    images = [torch.randn(3, *size, generator=chance, dtype=torch.float64) for size in sizes]
    together, alone = (
        evaluate(Explainer(Averaged()), images, ["lrp"], ["insertion"], window=window)
        for window in (4, 1)
    )
    assert together.values["lrp"]["insertion"] == pytest.approx(
        alone.values["lrp"]["insertion"], rel=1e-12
    )


def test_rows_of_several_lengths_are_evaluated_as_if_alone():
    chance = torch.Generator().manual_seed(0)
    rows = [torch.randn(n, 6, generator=chance, dtype=torch.float64) for n in (3, 5, 4, 5)]
    explainer = Explainer(Pooled())
    together, alone = (
        evaluate(explainer, rows, ["gradient"], ["activation"], window=window) for window in (4, 1)
    )
    assert together.values["gradient"]["activation"] == pytest.approx(
        alone.values["gradient"]["activation"], rel=1e-12
    )
