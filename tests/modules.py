"""Small plain torch modules on float tensors (batch, units, features), float64."""

import torch
from torch import nn
from torch.nn import functional as F

D, CLASSES = 6, 3


class Plain(nn.Module):
    """Makes all numbers float64 and no bias zero."""

    def shaken(self):
        torch.manual_seed(11)
        self.double().eval()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        return self


class Vision(Plain):
    """As a ViT: patches projected, a class token in front, a learned table of positions."""

    def __init__(self, places):
        super().__init__()
        self.patches = nn.Linear(D, D)
        self.cls = nn.Parameter(torch.zeros(1, 1, D))
        self.table = nn.Parameter(torch.zeros(1, places + 1, D))
        layer = nn.TransformerEncoderLayer(
            D, 2, 8, batch_first=True, norm_first=True, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(D, CLASSES)
        self.shaken()

    def forward(self, x):
        x = torch.cat([self.cls.expand(len(x), -1, -1), self.patches(x)], 1) + self.table
        return self.head(self.encoder(x)[:, 0])


class SequenceFirst(Plain):
    """torch's encoder with places on the first axis."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, 2, 8)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(D, CLASSES)
        self.shaken()

    def forward(self, x):
        return self.head(self.encoder(x.transpose(0, 1)).mean(0))


class Flat(Plain):
    """Rows of one long matrix, place by place: those of a sample lie far apart."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(D, D), nn.Linear(D, CLASSES)
        self.shaken()

    def forward(self, x):
        rows = x.transpose(0, 1).reshape(-1, D)
        return self.head(F.gelu(self.inner(rows)).reshape(-1, *x[:, 0].shape).mean(0))


class Block(Plain):
    """Attention, norm and gate, all by hand."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)
        self.up = nn.Linear(D, 16)
        self.down = nn.Linear(8, D)
        self.weight = nn.Parameter(torch.ones(D))
        self.head = nn.Linear(D, CLASSES)
        self.shaken()

    def norm(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + torch.einsum("bqk,bkd->bqd", (q @ k.mT * D**-0.5).softmax(-1), v)
        gate, value = self.up(self.norm(x)).chunk(2, -1)
        x = x + self.down(F.silu(gate) * value)
        return self.head(x.mean(1))


class Mixture(Plain):
    """Experts with biases, each run on just the tokens that are sent to it."""

    def __init__(self, experts=3):
        super().__init__()
        self.router = nn.Linear(D, experts)
        self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(experts))
        self.head = nn.Linear(D, CLASSES)
        self.shaken()

    def sent(self, x):
        """Which expert each token goes to."""
        return self.router(x.flatten(0, 1)).argmax(-1)

    def forward(self, x):
        flat, expert = x.flatten(0, 1), self.sent(x)
        weights = self.router(flat).softmax(-1)
        out = torch.zeros(flat.shape, dtype=flat.dtype)
        for number, run in enumerate(self.experts):
            (rows,) = torch.where(expert == number)
            out.index_add_(0, rows, run(flat[rows]) * weights[rows, number, None])
        return self.head(out.view_as(x).mean(1))


class Pooled(Plain):
    """No attention at all."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(D, 8), nn.Linear(8, CLASSES)
        self.shaken()

    def forward(self, x):
        return self.head(F.gelu(self.inner(x)).mean(1))
