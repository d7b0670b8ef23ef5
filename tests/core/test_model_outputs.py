"""What a module may return: its outputs are found, or an error says what is unclear."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.helpers import exactly
from wherefrom import Explainer
from wherefrom.errors import ModelError, TooLong


class Words(nn.Module):
    """Three classes from the mean of the states of the tokens."""

    def __init__(self, classes=3):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, classes)
        self.double()

    def forward(self, input_ids):
        states = self.table(input_ids).tanh()
        return self.out(states, self.head(states.mean(1)))

    def out(self, states, logits):
        return logits


def words(out, classes=3):
    return type("Words", (Words,), {"out": lambda self, *parts: out(*parts)})(classes)


PLAIN = {
    "squeezed": lambda states, logits: logits.squeeze(),
    "loss and logits": lambda states, logits: (logits.sum(), logits),
    "no loss": lambda states, logits: (None, logits),
    "logits and states": lambda states, logits: (logits, states),
    "logits and a loss": lambda states, logits: [logits, logits.sum()],
}


@pytest.mark.parametrize("inputs", [[3, 4, 5], [[3, 4, 5], [6, 7, 8]]], ids=["one", "two"])
@pytest.mark.parametrize("method", ["lrp", "integrated_gradients", "occlusion"])
@pytest.mark.parametrize("out", list(PLAIN.values()), ids=list(PLAIN))
def test_the_logits_are_found(out, method, inputs):
    expected = Explainer(Words())(inputs, method, target=2)
    explained = Explainer(words(out))(inputs, method, target=2)
    if isinstance(explained, list):
        (expected, _), (explained, _) = expected, explained
    exactly(explained.scores, expected.scores)
    exactly(explained.output, expected.output)
    assert explained.probability == expected.probability


def test_a_single_output_may_lose_both_axes():
    model = words(lambda states, logits: logits.squeeze(), classes=1)
    expected = Explainer(Words(1))([3, 4, 5])
    exactly(Explainer(model)([3, 4, 5]).scores, expected.scores)


def test_outputs_of_each_token_may_lose_the_axis_of_samples():
    forward = {"forward": lambda self, input_ids: self.head(self.table(input_ids))}
    full = type("Tokens", (Words,), forward)()
    squeezed = type("Tokens", (Words,), {"forward": lambda self, ids: full(ids).squeeze(0)})()
    expected = full(torch.tensor([[3, 4, 5]]))[0, 1, 2].detach()
    exactly(Explainer(squeezed)([3, 4, 5], position=1, target=2).output, float(expected))


REFUSED = {
    "states and logits": (
        lambda states, logits: (states, logits),
        r"returns 2 tensors, of the shapes \(1, 3, 8\) and \(1, 3\): it is unclear .*forward=",
    ),
    "two heads": (lambda states, logits: (logits, logits[:, :2]), r"2 tensors, .*\(1, 2\)"),
    "logits in a tuple": (
        lambda states, logits: ((logits,), states),
        r"no logits \(it has: tuple\)",
    ),
    "four axes": (lambda states, logits: states[:, None], r"a tensor of shape \(1, 1, 3, 8\)"),
    "complex": (lambda states, logits: logits.to(torch.complex64), "complex numbers"),
    "nothing": (lambda states, logits: logits[:, :0], r"a tensor of shape \(1, 0\)"),
    "text": (lambda states, logits: "positive", r"no logits \(it has: str\)"),
    "key": (lambda states, logits: {}["pooled"], r"input_ids \(1, 3\) \(KeyError: 'pooled'\)"),
    "division": (lambda states, logits: 1 / 0, "ZeroDivisionError: division by zero"),
    "iterator": (lambda states, logits: next(iter(())), "StopIteration"),
}


@pytest.mark.parametrize("case", list(REFUSED.values()), ids=list(REFUSED))
def test_other_outputs_are_refused_by_what_they_are(case):
    out, says = case
    for method in ("lrp", "occlusion"):
        with pytest.raises(ModelError, match=says):
            Explainer(words(out))([3, 4, 5], method)


def test_a_model_with_a_config_may_give_states_first_too():
    model = words(lambda states, logits: (states, logits))
    model.config = SimpleNamespace(hidden_size=8)
    with pytest.raises(ModelError, match="returns 2 tensors"):
        Explainer(model)([3, 4, 5])


def test_an_output_for_another_number_of_inputs_is_refused():
    model = words(lambda states, logits: logits.repeat(2, 1))
    with pytest.raises(ModelError, match=r"outputs of shape \(4, 3\) for 2 inputs"):
        Explainer(model)([[3, 4, 5], [6, 7, 8]])


def test_an_error_of_the_users_forward_function_passes_through():
    explainer = Explainer(Words(), forward=lambda model, inputs: {}["pooled"])
    with pytest.raises(KeyError):
        explainer([3, 4, 5])


def test_topk_of_a_short_text_does_not_blame_its_length():
    model = words(lambda states, logits: states.topk(5, 1).values.mean(1))
    exactly(len(Explainer(model)([3, 4, 5, 6, 7]).scores), 5)
    with pytest.raises(ModelError, match="selected index k out of range") as failure:
        Explainer(model)([3, 4, 5])
    assert not isinstance(failure.value, TooLong)
    with pytest.raises(TooLong):
        Explainer(model)([3, 4, 5, 6, 7, 50])
