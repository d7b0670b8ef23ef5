"""Secants in float32, float16 and bfloat16: finite, and the sum right to a few roundings."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers import normal
from tests.methods.calling import asked, of_tensor, runner_of
from tests.modules import Plain
from tests.rules.test_secants import GatedBlock, Grouped
from wherefrom.core.target import Case
from wherefrom.methods import method

T, D = 6, 6
# epsilons of the type, relative to |f(x)| + |f(x′)| + Σ |scores|: twice the largest that was seen
ALLOWED = {torch.float32: 128, torch.float16: 10, torch.bfloat16: 10}
ROOTS = {
    "another": lambda x, other: other,
    "the same": lambda x, other: x.clone(),
    "a rounding away": lambda x, other: x + other * 4 * torch.finfo(x.dtype).eps,
    "the same in half of the units": lambda x, other: torch.where(
        torch.arange(T)[:, None] % 2 == 0, x, other
    ),
    "the mean, also of padding": lambda x, other: x.mean(1, keepdim=True).expand_as(x),
}


class Masked(GatedBlock):
    """The first query sees nothing, and no query sees the last key."""

    def attend(self, q, k, v):
        is_open = torch.ones(T, T, dtype=torch.bool)
        is_open[0] = is_open[:, -1] = False
        if self.spelling == "fused":
            return F.scaled_dot_product_attention(q, k, v, attn_mask=is_open)
        scores = (q @ k.mT / math.sqrt(D)).masked_fill(~is_open, torch.finfo(q.dtype).min)
        return scores.softmax(-1) @ v


class Extreme(Plain):
    """Softmaxes of logits that are far apart, far from zero, or both."""

    def __init__(self, spread, shift):
        super().__init__()
        self.spread, self.shift = spread, shift
        self.a, self.head = nn.Linear(D, D), nn.Linear(D, 2)
        self.shaken()

    def forward(self, x):
        z = self.a(x) * self.spread + self.shift
        y = z.softmax(-1) + z.log_softmax(-1) / self.spread
        return self.head((y + z.logsumexp(-1, keepdim=True) / 1000).mean(1))


MODELS = {
    **{name: (GatedBlock, name) for name in ("fused", "explicit", "exponentials", "einsum")},
    **{f"masked {name}": (Masked, name) for name in ("fused", "softmax")},
    **{name: (Grouped, name) for name in ("causal", "window", "live")},
    **{f"{a}, {b}": (Extreme, a, b) for a, b in ((1.0, 5.0), (30.0, 0.0), (300.0, -1000.0))},
}


@pytest.mark.parametrize("dtype", ALLOWED)
@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::wherefrom.errors.RoundingOnly")
def test_scores_are_finite_and_add_up_to_a_few_roundings(name, root, dtype, rng):
    kind, *settings = MODELS[name]
    model = kind(*settings).to(dtype)
    x, other = (normal(rng, 2, T, D).to(dtype) for _ in range(2))
    start = ROOTS[root](x, other).to(dtype)
    start[:, -1] = x[:, -1]  # padding
    inputs = of_tensor(x)
    result = method("secant", root=start)(Case(runner_of(model, inputs), inputs, asked(inputs, 0)))
    scores = result.values.double()
    assert torch.isfinite(scores).all()
    with torch.no_grad():
        value, at_root = model(x)[:, 0].double(), model(start)[:, 0].double()
    size = value.abs() + at_root.abs() + scores.abs().sum(1)
    residual = (scores.sum(1) - (value - at_root)).abs() / size
    assert float(residual.max()) <= ALLOWED[dtype] * torch.finfo(dtype).eps
    if root == "the same":
        assert not bool(scores.any())


@pytest.mark.parametrize("dtype", ALLOWED)
@pytest.mark.filterwarnings("ignore::wherefrom.errors.NotConserved")
@pytest.mark.filterwarnings("ignore::wherefrom.errors.RoundingOnly")
def test_a_norm_whose_reference_is_zero_is_finite(dtype, rng):
    """Its slope is 1 / √ε, in parts that nearly cancel: too large for a sum in half types."""
    model, x = GatedBlock("fused").to(dtype), normal(rng, 1, T, D).to(dtype)
    inputs = of_tensor(x)
    secant = method("secant", root=torch.zeros_like(x))
    result = secant(Case(runner_of(model, inputs), inputs, asked(inputs, 0)))
    assert torch.isfinite(result.values).all()
