"""GRU, LSTM and plain recurrent layers, computed step by step in calls that have rules.

Gates are factors; the signal carries the relevance (Arras et al. 2017).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from wherefrom.tracing.catalogue import TorchCall

Gated = Callable[[Tensor, Tensor], Tensor]
"""The product of a gate and a signal."""
States = tuple[Tensor, ...]  # the hidden state, and the cell of an LSTM


def is_padded(call: TorchCall) -> bool:
    """Whether a layer gets a tensor, not packed sequences."""
    return isinstance(call.args[2], (list, tuple))


def layer(call: TorchCall, gated: Gated) -> tuple[Tensor, ...]:
    """`torch.gru`, `lstm`, `rnn_tanh` or `rnn_relu`: outputs, last states (and cells)."""
    x, start, weights, has_bias, layers, _, _, both_ways, batch_first = call.args
    starts: Sequence[Tensor] = start if isinstance(start, (list, tuple)) else (start,)
    time = 1 if batch_first else 0  # the axis of time: x is (B, T, D) or (T, B, D)
    directions = 2 if both_ways else 1
    size = len(weights) // (layers * directions)
    lasts: list[States] = []
    for number in range(layers):
        outputs = []
        for direction in range(directions):
            at = number * directions + direction
            w = _Weights(weights[at * size : (at + 1) * size], has_bias)
            states: States = tuple(state[at] for state in starts)
            inputs = F.linear(x, w.input, w.input_bias).unbind(time)  # each (B, gates · H)
            steps = range(len(inputs))
            hidden: dict[int, Tensor] = {}
            for t in reversed(steps) if direction else steps:
                states = _step(call.name, inputs[t], states, w, gated)
                hidden[t] = states[0]
            outputs.append(torch.stack([hidden[t] for t in steps], time))
            lasts.append(states)
        x = torch.cat(outputs, -1) if both_ways else outputs[0]
    return x, *(torch.stack(list(states)) for states in zip(*lasts, strict=True))


def cell(call: TorchCall, gated: Gated) -> Any:
    """`torch.gru_cell`, `lstm_cell`, `rnn_tanh_cell` or `rnn_relu_cell`: the next state."""
    x, start, *weights = call.args
    states: States = tuple(start) if isinstance(start, (list, tuple)) else (start,)
    w = _Weights(weights, len(weights) > 2 and weights[2] is not None)
    after = _step(
        call.name.removesuffix("_cell"), F.linear(x, w.input, w.input_bias), states, w, gated
    )
    return after if len(after) > 1 else after[0]


class _Weights:
    """The parameters of one direction of one layer."""

    def __init__(self, flat: Sequence[Tensor], has_bias: bool) -> None:
        self.input, self.hidden = flat[0], flat[1]
        self.input_bias = flat[2] if has_bias else None
        self.hidden_bias = flat[3] if has_bias else None
        self.projection = flat[-1] if len(flat) == (5 if has_bias else 3) else None


def _step(kind: str, from_input: Tensor, states: States, w: _Weights, gated: Gated) -> States:
    hidden = states[0]
    from_hidden = F.linear(hidden, w.hidden, w.hidden_bias)
    if kind == "gru":
        reset_x, update_x, new_x = from_input.chunk(3, -1)
        reset_h, update_h, new_h = from_hidden.chunk(3, -1)
        reset, update = (reset_x + reset_h).sigmoid(), (update_x + update_h).sigmoid()
        new = (new_x + gated(reset, new_h)).tanh()
        return (gated(1 - update, new) + gated(update, hidden),)
    if kind == "lstm":
        enter, forget, new, leave = (from_input + from_hidden).chunk(4, -1)
        memory = gated(forget.sigmoid(), states[1]) + gated(enter.sigmoid(), new.tanh())
        hidden = gated(leave.sigmoid(), memory.tanh())
        return (hidden if w.projection is None else F.linear(hidden, w.projection), memory)
    total = from_input + from_hidden
    return (total.tanh() if kind == "rnn_tanh" else total.relu(),)
