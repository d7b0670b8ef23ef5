"""A compiled model with a known circuit: two layers of attention that continue a repetition.

The residual stream has a slot for the token, the position, the token before, the prediction, and
noise. Head 0 of block 0 copies the token before; head 1 of block 1 looks for a position whose token
before is the current token, and copies its token to the prediction. The other heads write noise.
"""

import torch
from torch import nn
from torch.nn import functional as F

TOKENS, PLACES = 7, 8
_SLOTS = {"token": TOKENS, "place": PLACES, "before": TOKENS, "out": TOKENS, "noise": TOKENS}
WIDTH = sum(_SLOTS.values())
_SHARP = 30.0


def _slot(name):
    start = sum(
        width
        for other, width in _SLOTS.items()
        if list(_SLOTS).index(other) < list(_SLOTS).index(name)
    )
    return slice(start, start + _SLOTS[name])


def _copy(source, target):
    """A matrix that copies one slot to another."""
    matrix = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    matrix[_slot(target), _slot(source)] = torch.eye(_SLOTS[source], dtype=torch.float64)
    return matrix


class Heads(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.q, self.k, self.v, self.o = (
            nn.Parameter(torch.stack([head[i] for head in heads])) for i in range(4)
        )

    def forward(self, x):  # (B, T, D)
        q, k, v = (torch.einsum("hed,btd->bhte", w, x) for w in (self.q, self.k, self.v))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        return torch.matmul(heads, self.o.mT).sum(1)


class Block(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.attention = Heads(heads)

    def forward(self, x):
        return x + self.attention(x)


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        eye, nothing = (
            torch.eye(WIDTH, dtype=torch.float64),
            torch.zeros(WIDTH, WIDTH, dtype=torch.float64),
        )
        to_previous = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
        place = _slot("place").start
        for i in range(1, PLACES):
            to_previous[place + i - 1, place + i] = _SHARP
        noise = nothing, eye, eye, 0.1 * _copy("token", "noise")
        previous = to_previous, eye, eye, _copy("token", "before")
        induction = _SHARP * _copy("token", "before"), eye, eye, _copy("token", "out")
        self.token = nn.Embedding(TOKENS, WIDTH, dtype=torch.float64)
        self.place = nn.Embedding(PLACES, WIDTH, dtype=torch.float64)
        self.blocks = nn.ModuleList([Block([previous, noise]), Block([noise, induction])])
        with torch.no_grad():
            for table, name in ((self.token, "token"), (self.place, "place")):
                table.weight.zero_()
                table.weight[:, _slot(name)] = torch.eye(_SLOTS[name], dtype=torch.float64)

    def forward(self, input_ids):
        x = self.token(input_ids) + self.place(torch.arange(input_ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return x[:, -1, _slot("out")]
