"""Which rows of the last map the head reads."""

import torch
from torch import nn

from tests.helpers import exactly, normal
from tests.methods.calling import of_tensor
from tests.modules import CLASSES, D, Plain
from wherefrom.core.runner import ModelRunner
from wherefrom.core.target import Case, Target
from wherefrom.methods.attention_maps import capture, without_readout_row


class ReadBy(Plain):
    """One attention layer, of which the head reads the rows with these weights."""

    def __init__(self, rows):
        super().__init__()
        self.qkv, self.head = nn.Linear(D, 3 * D), nn.Linear(D, CLASSES, bias=False)
        self.shaken()
        self.rows = torch.tensor(rows).double()

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        state = (q @ k.mT).softmax(-1) @ v
        return self.head((state * self.rows[:, None]).sum(1))


def captured(rows, rng, **options):
    model, inputs = ReadBy(rows), of_tensor(normal(rng, 2, 4, D))
    runner = ModelRunner(model, lambda model, tensors: model(tensors["x"]))
    target = Target(torch.tensor([1, 0]))
    return capture(Case(runner, inputs, target), gradients=False, **options)


def test_a_head_that_reads_nothing_reads_all_rows_alike(rng):
    exactly(captured([0.0, 0.0, 0.0, 0.0], rng).readout, torch.full((2, 4), 0.25))


def test_the_row_that_alone_is_read_is_left_out(rng):
    attention = captured([0.0, 1.0, 0.0, 0.0], rng)
    exactly(attention.readout, torch.eye(4)[1].expand(2, 4))
    ones = {0: torch.ones(2, 4).double()}
    exactly(without_readout_row(attention, ones, "auto"), [[1, 0, 1, 1]] * 2)


def test_the_row_that_alone_is_read_may_get_the_least_score(rng):
    attention = captured([0.0, 1.0, 0.0, 0.0], rng)
    state = {0: torch.tensor([[3.0, 9.0, 2.0, 5.0], [-1.0, 4.0, 0.0, 7.0]]).double()}
    exactly(
        without_readout_row(attention, state, "auto", "minimum"), [[3, 2, 2, 5], [-1, -1, 0, 7]]
    )


def test_the_least_score_is_that_of_a_unit_not_of_padding(rng):
    attention = captured([0.0, 1.0, 0.0, 0.0], rng)
    attention.valid[0, 3] = 0
    state = {0: torch.tensor([[3.0, 9.0, 2.0, 0.0], [3.0, 9.0, 2.0, 0.0]]).double()}
    filled = without_readout_row(attention, state, "auto", "minimum")
    exactly(filled[:, 1], [2, 0])


def test_a_row_that_is_read_among_others_stays(rng):
    attention = captured([0.05, 1.0, 0.0, 0.0], rng)
    assert 0.5 < float(attention.readout[0, 1]) < 0.999
    ones = {0: torch.ones(2, 4).double()}
    exactly(without_readout_row(attention, ones, "auto"), torch.ones(2, 4))
