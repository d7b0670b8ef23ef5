"""Recurrent layers step by step: the same values, gates as factors, relevance conserved."""

import pytest
import torch
from torch import nn

from tests.helpers import exactly, normal, through
from tests.modules import CLASSES, D, Plain
from wherefrom import Explainer
from wherefrom.errors import NotConserved
from wherefrom.methods.propagation import CONSERVATIVE, CONSERVATIVE_SHARED

LAYERS = {
    "gru": lambda: nn.GRU(D, D, batch_first=True),
    "gru both ways": lambda: nn.GRU(D, 3, 2, bidirectional=True, batch_first=True),
    "lstm": lambda: nn.LSTM(D, D),
    "lstm both ways": lambda: nn.LSTM(D, 3, 2, bidirectional=True, batch_first=True),
    "lstm projected": lambda: nn.LSTM(D, 9, proj_size=D, batch_first=True),
    "lstm without bias": lambda: nn.LSTM(D, D, bias=False, batch_first=True),
    "tanh": lambda: nn.RNN(D, D, 2, batch_first=True),
    "relu": lambda: nn.RNN(D, D, nonlinearity="relu", batch_first=True),
}


class Recurrent(Plain):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(D, CLASSES)
        self.shaken()

    def forward(self, x):
        if self.layer.batch_first:
            return self.head(self.layer(x)[0].mean(1))
        return self.head(self.layer(x.transpose(0, 1))[0].mean(0))


@pytest.mark.filterwarnings("ignore::wherefrom.errors.SamplesRunAlone")  # positions come first
@pytest.mark.parametrize("gate", ["frozen", "shared"])
@pytest.mark.parametrize("name", list(LAYERS))
def test_a_recurrent_layer_is_as_it_was_and_its_ledger_closes(name, gate, rng):
    module, x = Recurrent(LAYERS[name]()), normal(rng, 3, 4, D)
    plain = module(x).detach()
    explanations = Explainer(module)(x, "lrp", target=1, gate=gate)
    exactly([explanation.output for explanation in explanations], plain[:, 1])
    for row, explanation in zip(x, explanations, strict=True):
        assert explanation.ledger.relative < 1e-9
        exactly(explanation.scores, Explainer(module)(row, "lrp", target=1, gate=gate).scores, 1e-6)


@pytest.mark.parametrize("number", [0, 1])
def test_last_states_are_those_of_the_layer(number, rng):
    layer, x = LAYERS["lstm both ways"]().double(), normal(rng, 2, 4, D)
    expected = layer(x)[1][number].detach()
    exactly(through(CONSERVATIVE, lambda t: layer(t)[1][number], x).out, expected)


def secants(z, f):
    return f(z) / z


def test_relevance_through_an_lstm_cell_is_that_of_the_formula(rng):
    """One step from c₀: c = f·c₀ + i·g, h = o·tanh c; gates constant, tanh by its secant."""
    cell, x = nn.LSTMCell(D, 1).double(), normal(rng, 1, D)
    h0, c0 = (torch.full((1, 1), value, dtype=torch.float64) for value in (0.0, 0.7))
    run = through(CONSERVATIVE, lambda t: cell(t, (h0, c0))[0], x)
    z = (x @ cell.weight_ih.T + cell.bias_ih + cell.bias_hh).detach()[0]  # i, f, g, o
    i, f, o = z[0].sigmoid(), z[1].sigmoid(), z[3].sigmoid()
    c = f * 0.7 + i * z[2].tanh()
    slope = o * secants(c, torch.tanh) * i * secants(z[2], torch.tanh)
    exactly(run.relevance[0][0], (slope * cell.weight_ih[2] * x[0]).detach())
    exactly(run.out, [[float(o * c.tanh())]])
    exactly(float(run.relevance[0].sum()) + run.recorded, float(run.out))


def test_relevance_through_a_gru_cell_is_that_of_the_formula(rng):
    """H = (1 − z)·n + z·h₀ with n = tanh(W x + b + r·(U h₀ + c)), the gates constant."""
    cell, x = nn.GRUCell(D, 1).double(), normal(rng, 1, D)
    h0 = torch.full((1, 1), 0.4, dtype=torch.float64)
    run = through(CONSERVATIVE, lambda t: cell(t, h0), x)
    a = (x @ cell.weight_ih.T + cell.bias_ih).detach()[0]
    b = (h0 @ cell.weight_hh.T + cell.bias_hh).detach()[0]
    r, z = (a[0] + b[0]).sigmoid(), (a[1] + b[1]).sigmoid()
    n = a[2] + r * b[2]
    slope = (1 - z) * secants(n, torch.tanh)
    exactly(run.relevance[0][0], (slope * cell.weight_ih[2] * x[0]).detach())
    exactly(run.out, [[float((1 - z) * n.tanh() + z * 0.4)]])
    exactly(float(run.relevance[0].sum()) + run.recorded, float(run.out))


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
@pytest.mark.parametrize("table", [CONSERVATIVE, CONSERVATIVE_SHARED])
def test_cells_in_a_loop_conserve(kind, table, rng):
    cell, x = kind(D, D).double(), normal(rng, 1, 4, D)

    def run(t):
        state = None
        for step in t.unbind(1):
            state = cell(step, state)
        return state[0] if isinstance(state, tuple) else state

    found = through(table, run, x)
    exactly(found.out, run(x).detach())
    exactly(float(found.relevance[0].sum()) + found.recorded, float(found.out.sum()))


def test_packed_sequences_are_not_written_out_and_that_is_said(rng):
    class Packing(Recurrent):
        def forward(self, x):
            packed = nn.utils.rnn.pack_padded_sequence(x, [x.shape[1]] * len(x), batch_first=True)
            out, _ = nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)
            return self.head(out.mean(1))

    with pytest.warns(NotConserved, match=r"Relevance is lost in layer \(gru\)"):
        Explainer(Packing(LAYERS["gru"]()))(normal(rng, 4, D))
