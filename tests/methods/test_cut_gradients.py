"""Where a gradient ends, wholly or in part, is on record in the explanation."""

import warnings

import pytest
import torch
from torch import nn

from tests.helpers import exactly
from wherefrom import Explainer
from wherefrom.errors import ModelError, NotConserved


class Words(nn.Module):
    """A classifier with a step between the states of the words and their mean."""

    def __init__(self, step):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head, self.step = nn.Embedding(50, 8), nn.Linear(8, 3), step
        self.double()

    def forward(self, input_ids):
        return self.head(self.step(self.table(input_ids).tanh()).mean(1))


def explained(step, method="gradient_x_input"):
    return Explainer(Words(step))([3, 4, 5], method, target=0)


PARTS = {  # the call that cuts, and why
    "round": (lambda x: x + (x * 3).round(), "its derivative is zero"),
    "floor": (lambda x: x + (x * 3).floor_(), "its derivative is zero"),
    "sign": (lambda x: x + torch.sign(x), "its derivative is zero"),
    "item": (lambda x: x + x.mean().item(), "its result is no tensor"),
    "float": (lambda x: x + float(x.detach().mean()), "its result is no tensor"),
    "tolist": (lambda x: x + torch.tensor(x.tolist()), "its result is no tensor"),
    "numpy": (lambda x: x + torch.from_numpy(x.detach().numpy()), "its result is no tensor"),
    "array": (lambda x: x + torch.from_numpy(x.detach().__array__()), "its result is no tensor"),
    "detach": (lambda x: x + x.detach(), ".detach"),
    "long": (lambda x: x + (x * 3).long().double(), "it has no derivative"),
}


@pytest.mark.parametrize("method", ["gradient_x_input", "lrp"])
@pytest.mark.parametrize("name", list(PARTS))
def test_a_gradient_that_ends_in_part_is_on_record(name, method):
    step, reason = PARTS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConserved)
        explanation = explained(step, method)
    assert any(f"at {name} ({reason}" in each for each in explanation.warnings)


WHOLE = {
    "as they are": lambda x: x,
    "selected": lambda x: torch.where(x > 0, x, x * 2),
    "a mask": lambda x: x * (x > 0),
    "a number of the shape": lambda x: x / float(x.shape[1]),
    "a number of a weight": lambda x: x * torch.ones(()).item(),
    "control flow": lambda x: x if bool((x < 5).all()) else x * 2,
    "a cast": lambda x: x.float().double(),
    "in place": lambda x: x.clone().mul_(2),
}


@pytest.mark.parametrize("step", list(WHOLE.values()), ids=list(WHOLE))
def test_whole_gradients_have_no_caveat(step):
    assert explained(step).warnings == ()
    assert explained(step, "lrp").warnings == ()


@pytest.mark.parametrize("method", ["gradient_x_input", "gradient", "smoothgrad"])
def test_zeros_have_a_caveat(method):
    explanation = explained(lambda x: (x * 3).round(), method)
    exactly(explanation.scores, [0.0, 0.0, 0.0])
    assert "all scores are zero" in explanation.warnings[0]


@pytest.mark.parametrize(
    ("method", "settings"),
    [("gradient_x_input", {}), ("lrp", {}), ("secant", {}), ("secant", {"splits": 1})],
)
def test_an_input_that_is_the_root_has_zeros_without_a_caveat(method, settings):
    explanation = Explainer(Words(lambda x: x))([3], method, target=0, root=3, **settings)
    exactly(explanation.scores, [0.0])
    assert explanation.warnings == ()


def test_lrp_names_the_step_that_loses_relevance():
    with pytest.warns(NotConserved, match="Relevance is lost at round"):
        assert "all scores are zero" in explained(lambda x: (x * 3).round(), "lrp").warnings[0]


@pytest.mark.parametrize("method", ["lrp", "gradient", "integrated_gradients"])
def test_a_call_without_a_derivative_is_an_error_with_a_remedy(method):
    def step(x):
        return x + torch.heaviside(x, torch.zeros((), dtype=x.dtype))

    with pytest.raises(ModelError, match=r"heaviside is not implemented.*occlusion"):
        explained(step, method)
    assert len(explained(step, "occlusion")) == 3
