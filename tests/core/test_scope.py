"""A scope leaves torch and the model as they were, whatever ran inside it."""

import pytest
import torch
from torch import nn

from wherefrom.core.scope import Scope, restores_state


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_gradients_are_then_as_the_caller_had_them(outside, inside):
    with torch.set_grad_enabled(outside):
        with Scope(gradients=inside):
            assert torch.is_grad_enabled() is inside
        assert torch.is_grad_enabled() is outside


@pytest.mark.parametrize("outside", [True, False])
def test_a_function_that_fails_leaves_gradients_as_the_caller_had_them(outside):
    @restores_state
    def fails():
        torch._C._set_grad_enabled(not outside)
        raise ValueError("the model failed")

    with torch.set_grad_enabled(outside):
        with pytest.raises(ValueError, match="the model failed"):
            fails()
        assert torch.is_grad_enabled() is outside


class Notes(nn.Module):
    """Sets attributes, and adds and removes hooks, while it runs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.runs, self.last = 0, "before"
        self.removed = self.linear.register_forward_hook(lambda *_: None)

    def forward(self, x):
        self.runs, self.last, self.new = self.runs + 1, x, x
        self.linear.register_forward_hook(lambda *_: None)
        self.removed.remove()
        return self.linear(x)


@pytest.mark.parametrize("restores", [True, False])
def test_attributes_and_hooks_that_a_model_sets_are_restored_on_request(restores):
    model = Notes()
    hooks = dict(model.linear._forward_hooks)
    with Scope(model, restores=restores):
        model(torch.zeros(1, 2))
    assert (model.runs == 0) is restores
    assert isinstance(model.last, str) is restores
    assert hasattr(model, "new") is not restores
    assert (dict(model.linear._forward_hooks) == hooks) is restores
