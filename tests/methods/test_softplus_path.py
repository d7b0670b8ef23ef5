"""Integrated gradients with softplus instead of ReLU sum to that network's f(x) − f(x′)."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers import exactly, normal
from tests.methods.calling import of_tensor
from tests.modules import CLASSES, D, Plain
from wherefrom.core.runner import ModelRunner
from wherefrom.core.target import Case, Target
from wherefrom.methods import method


class Bent(Plain):
    """A ReLU between two layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.inner, self.head = nn.Linear(D, 8), nn.Linear(8, CLASSES)
        self.shaken()

    def forward(self, x):
        return self.head(F.relu(self.inner(x)).mean(1))


def test_the_tolerance_is_that_of_the_smooth_network(rng):
    model, x = Bent(), normal(rng, 1, 4, D)
    runner = ModelRunner(model, lambda model, tensors: model(tensors["x"]))

    def smooth(x):
        return model.head(F.softplus(model.inner(x), beta=3.0).mean(1))[0, 1]

    found = method("integrated_gradients", softplus=3.0, tolerance=1e-6, steps=4)(
        Case(runner, of_tensor(x), Target(torch.tensor([1])))
    )
    rise = float((smooth(x) - smooth(torch.zeros_like(x))).detach())
    assert abs(rise) > 1e-3
    exactly(found.values.sum(), rise, 1e-6)
