"""Cases to measure axioms on: plain functions, modules on float tensors, token ids, inputs."""

import torch
from torch import nn

from wherefrom import Explainer
from wherefrom.audits.altered_models import in_float64, on_copy
from wherefrom.core.explanation import Unit
from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.core.target import Case, Target
from wherefrom.inputs.text import batch, from_ids

ROWS = [[5, 17, 33, 8, 2], [9, 4, 11, 23, 40, 71, 2]]


class Function(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x).unsqueeze(-1)


def case_of(module, x):
    """A float tensor (units, features) as one case of a module or plain function."""
    module = module if isinstance(module, nn.Module) else Function(module)
    x = torch.as_tensor(x, dtype=torch.float64)
    x = x.unsqueeze(0) if x.ndim == 2 else x.reshape(1, -1, 1)
    units = (tuple(Unit(str(i)) for i in range(x.shape[1])),)
    inputs = Batch({"x": x}, ("x",), units, torch.ones(x.shape[:2], dtype=torch.bool), (None,))
    return Case(ModelRunner(module, lambda m, t: m(t["x"])), inputs, Target(torch.tensor([0])))


def case_of_ids(module, ids=ROWS[0], index=1):
    runner = Explainer(module).runner
    return Case(
        runner,
        batch(runner, None, [from_ids(None, ids)], None),
        Target(torch.tensor([index])),
    )


def random_case(module, places=4):
    torch.manual_seed(3)
    return case_of(module, torch.randn(places, 6, dtype=torch.float64))


def float64_case(explainer, item):
    case = Case(explainer._reader(item).runner, *explainer._prepared(item))
    return on_copy(case, in_float64(case.runner))
