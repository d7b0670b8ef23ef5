"""What is explained is what the model gives: the same output as a plain pass of one input."""

import math
import warnings

import pytest
import torch
from torch import nn

from benchmarks.tiny import model as tiny
from tests.helpers import exactly
from wherefrom import Explainer
from wherefrom.errors import OutputDiffers, SamplesRunAlone
from wherefrom.methods import forward_pass

ONE, TWO = [3, 4, 5], [[3, 4, 5], [6, 7, 8]]


class Words(nn.Module):
    """Three classes from the mean of the states of the tokens."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 3)
        self.register_buffer("runs", torch.zeros(()))
        self.double()
        self.passes = 0

    def forward(self, input_ids):
        self.passes += 1
        return self.head(self.states(self.table(input_ids).tanh()).mean(1))

    def states(self, states):
        return states


class Noise(Words):
    def states(self, states):
        return states + torch.randn_like(states)


class Dropout(Words):
    def states(self, states):
        return nn.functional.dropout(states, 0.5)


class Counting(Words):
    def states(self, states):
        self.runs += 1
        return states * self.runs


class Replacing(Words):
    def states(self, states):
        self.runs = self.runs + 1
        return states * self.runs


class Alternating(Words):
    """Keeps its state in an attribute that is no buffer."""

    def states(self, states):
        return states * self.passes


CHANGING = {Noise: "is random", Dropout: "is random", Counting: "changes runs",
            Replacing: "changes runs", Alternating: "is random or keeps a state"}  # fmt: skip


@pytest.mark.parametrize("method", ["lrp", "gradient", "occlusion", "shapley", "random"])
@pytest.mark.parametrize("inputs", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("kind", list(CHANGING))
def test_outputs_that_change_from_pass_to_pass(kind, inputs, method):
    explainer = Explainer(kind())
    for _ in range(2):  # of each call, not the first alone
        with pytest.warns(OutputDiffers, match=CHANGING[kind]):
            explained = explainer(inputs, method, target=0)
        for explanation in explained if inputs is TWO else [explained]:
            assert "gives different outputs for one input" in explanation.warnings[-1]


def test_a_model_is_compared_once_for_each_shape():
    model = Words()
    explainer = Explainer(model)

    def passes(inputs, method="lrp"):
        before = model.passes
        explainer(inputs, method)
        return model.passes - before

    assert passes(ONE) == 2
    assert passes([5, 6, 7]) == 1
    assert passes(TWO) == 2
    assert passes([*TWO, ONE]) == 1
    assert passes([1, 2, 3, 4]) == 2
    assert passes(ONE, "gradient") == passes(ONE, "gradient") + 1


class Centred(Words):
    """Subtracts the mean over the batch: an output depends on the other inputs."""

    def forward(self, input_ids):
        states = self.table(input_ids).tanh().mean(1)
        return self.head(states - states.mean(0) / 2)


@pytest.mark.parametrize("method", ["occlusion", "shapley", "random", "gradient"])
def test_inputs_whose_output_depends_on_the_batch_run_alone(method):
    explainer = Explainer(Centred())
    with pytest.warns(SamplesRunAlone):
        together = explainer(TWO, method, target=1)
    for ids, explanation in zip(TWO, together, strict=True):
        alone = explainer(ids, method, target=1)
        exactly(explanation.output, alone.output)
        exactly(explanation.scores, alone.scores)
        assert not explanation.warnings


class Watching(Words):
    """Runs differently where a gradient is wanted."""

    def states(self, states):
        return states * 2 if torch.is_grad_enabled() else states


def test_a_model_that_runs_differently_under_the_tracer():
    with pytest.warns(OutputDiffers, match="differently while its calls are intercepted"):
        explanation = Explainer(Watching())(ONE, target=0)
    assert "is not that of a plain pass" in explanation.warnings[0]
    assert not Explainer(Watching())(ONE, "occlusion", target=0).warnings


def test_a_smooth_version_of_the_model_gives_scores_and_no_output():
    class Relu(Words):
        def states(self, states):
            return states.relu()

    model = Relu()
    explanation = Explainer(model)(ONE, "gradient", softplus=1.0)
    exactly(explanation.output, model(torch.tensor([ONE])).max().detach())


def test_half_precision_differs_by_its_rounding_alone():
    model = tiny("bert", "classify").to(torch.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutputDiffers)
        Explainer(model)([[2, 5, 6, 3], [2, 7, 3]], target=0)


@pytest.mark.parametrize(("share", "agrees"), [(0.5e-3, True), (2e-3, False)])
def test_a_thousandth_of_the_largest_logit_is_allowed(share, agrees):
    expected = torch.tensor([[8.0, -4.0]])
    assert forward_pass._agree(expected, expected + 8 * share) == agrees
    narrow = expected.bfloat16()
    assert forward_pass._agree(narrow, narrow * (1 + share))
    assert not forward_pass._agree(expected, torch.tensor([[math.inf, -4.0]]))
    assert not forward_pass._agree(expected, expected[:, :1])


class TestAnswers:
    @pytest.fixture
    def model(self):
        return tiny("gpt2", "write")

    def test_answers_of_a_random_model(self, model):
        model.transformer.h[0].register_forward_hook(
            lambda module, args, out: (
                (out[0] + torch.randn_like(out[0]) / 10, *out[1:])
                if isinstance(out, tuple)
                else out + torch.randn_like(out) / 10
            )
        )
        explainer = Explainer(model)
        for method in ("lrp", "occlusion"):
            with pytest.warns(OutputDiffers, match="is random"):
                answer = explainer.answer([5, 6, 7], [8, 9], method=method)
            assert "different outputs" in answer.of().warnings[0]
        with pytest.warns(OutputDiffers, match="is random"):
            answers = explainer.answer([[5, 6, 7], [5, 6, 8]], [[8, 9], [8, 9]])
        assert all("different outputs" in each.of().warnings[0] for each in answers)

    def test_answers_of_a_plain_model(self, model):
        answer = Explainer(model).answer([5, 6, 7], [8, 9])
        assert not answer.of().warnings
