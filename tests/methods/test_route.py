"""The route of the input: choices, such as those of experts, that are held at the reference."""

import pytest
import torch
from torch import nn

from tests.helpers import exactly, normal
from tests.methods.calling import asked, family, of_ids, of_tensor, runner_of
from tests.modules import Plain
from wherefrom import Explainer
from wherefrom.core.target import Case
from wherefrom.methods import method

D = 4
ROUTE = ("the input's route at the reference", "route")


def result_of(model, inputs, **settings):
    return method("secant", **settings)(Case(runner_of(model, inputs), inputs, asked(inputs, 0)))


class Experts(Plain):
    """Sends each row to the expert with the larger score; both experts are linear."""

    def __init__(self, choose):
        super().__init__()
        self.router, self.head = nn.Linear(D, 2), nn.Linear(D, 2)
        self.experts = nn.ModuleList([nn.Linear(D, D), nn.Linear(D, D)])
        self.choose = choose
        self.shaken()

    def forward(self, x):
        scores = self.router(x)
        chosen = self.choose(scores)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = chosen == number
            out[rows] = expert(x[rows])
        return self.head(out.mean(1))

    def on_route(self, x, scores):
        """The model at x on the route of these scores, in one formula."""
        first, second = (expert(x) for expert in self.experts)
        is_first = (scores[..., :1] >= scores[..., 1:]).to(x)
        return self.head((is_first * first + (1 - is_first) * second).mean(1))[:, 0]


@torch.no_grad()
def untracked(scores):
    return scores.topk(1, sorted=False)[1].squeeze(-1)


CHOICES = {
    "argmax": lambda scores: scores.argmax(-1),
    "topk": lambda scores: scores.topk(1, -1)[1].squeeze(-1),
    "topk of a detached score": lambda scores: scores.detach().topk(1, -1).indices.squeeze(-1),
    "topk without gradients": untracked,
    "max": lambda scores: scores.max(-1).indices,
    "sort": lambda scores: scores.argsort(-1, descending=True)[..., 0],
    "comparison": lambda scores: (scores[..., 0] < scores[..., 1]).long(),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_words_reference_and_route_are_the_output(choice, rng):
    model = Experts(CHOICES[choice])
    x, root = 3 * normal(rng, 2, 5, D), 3 * normal(rng, 2, 5, D)
    result = result_of(model, of_tensor(x), root=root)
    with torch.no_grad():
        scores = model.router(x)
        assert bool((scores.argmax(-1) != model.router(root).argmax(-1)).any())
        held = model.on_route(root, scores)
        exactly(result.lines["reference", "reference"], model(root)[:, 0])
        exactly(result.lines[ROUTE], held - model(root)[:, 0])
        # on one route the model is linear, so that each unit adds what it does alone
        for unit in range(5):
            changed = root.clone()
            changed[:, unit] = x[:, unit]
            exactly(result.values[:, unit], model.on_route(changed, scores) - held)


def test_on_the_same_route_there_is_no_line_of_it(rng):
    model = Experts(CHOICES["topk"])
    x = normal(rng, 2, 5, D)
    root = x + 1e-6 * normal(rng, 2, 5, D)
    result = result_of(model, of_tensor(x), root=root)
    assert {kind for _, kind in result.lines} == {"word", "reference"}


class Gated(Plain):
    """Values of the largest scores, as gates."""

    def __init__(self):
        super().__init__()
        self.router, self.value, self.head = nn.Linear(D, 6), nn.Linear(D, 6), nn.Linear(6, 2)
        self.shaken()

    def forward(self, x):
        gates, places = self.router(x).softmax(-1).topk(2, -1)
        gates = gates / gates.sum(-1, keepdim=True)
        zeros = torch.zeros(*x.shape[:2], 6, dtype=x.dtype)
        return self.head((zeros.scatter(-1, places, gates) * self.value(x)).mean(1))


@pytest.mark.parametrize("splits", [0, 1])
def test_gates_of_chosen_experts_add_up(splits, rng):
    model = Gated()
    x, root = 3 * normal(rng, 2, 6, D), 3 * normal(rng, 2, 6, D)
    result = result_of(model, of_tensor(x), root=root, splits=splits)
    exactly(sum(result.lines.values()), model(x)[:, 0].detach())
    assert bool(result.lines[ROUTE].any())


class Calls(Plain):
    """Choices of other calls, and values that they select."""

    def __init__(self, call):
        super().__init__()
        self.call, self.head = call, nn.Linear(D, 2)
        self.shaken()

    def forward(self, x):
        return self.head(self.call(x).reshape(len(x), -1, D).mean(1))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sort(1)[0] * torch.arange(5.0).double()[:, None],
        lambda x: x.median(1)[0],
        lambda x: x.kthvalue(2, 1, keepdim=True).values,
        lambda x: x.cummax(1)[0],
        lambda x: x.cummin(dim=1).values,
        lambda x: torch.where(x > 0, x, x.exp() - 1),
        lambda x: x.masked_fill(x < 0, 0.1),
        lambda x: x.gather(1, x.argmax(1, keepdim=True)),
        lambda x: torch.fft.fft(x, dim=1).real,
    ],
)
def test_values_that_are_selected_add_up(call, rng):
    model = Calls(call)
    x, root = normal(rng, 2, 5, D), normal(rng, 2, 5, D)
    result = result_of(model, of_tensor(x), root=root)
    exactly(sum(result.lines.values()), model(x)[:, 0].detach())


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3", "switch_transformers", "gpt_oss"])
def test_families_with_experts_add_up(name):
    task = "translate" if name == "switch_transformers" else "classify"
    model = family(name, task)
    prefix = [1] if task == "translate" else None
    inputs = of_ids(model, [[5, 17, 33, 8, 60, 71, 2], [9, 4, 11, 23, 2]], prefix)
    result = result_of(model, inputs, root=1)
    with torch.no_grad():
        logits = asked(inputs, 0)(runner_of(model, inputs).run(inputs.model_tensors()))
    exactly(sum(result.lines.values()), logits, 1e-5)  # norms and routers in float32


def test_an_explanation_names_the_route():
    explanation = Explainer(family("mixtral", "classify"))(
        [[5, 17, 33, 8, 60, 71, 2]], method=method("secant", root=1), target=0
    )[0]
    (line,) = [line for line in explanation.ledger.lines if line.kind == "route"]
    assert line.label == ROUTE[0]
    assert explanation.ledger.relative < 1e-5
