"""Relevance after each block and at each norm equals gradients × states and proposition 2."""

import pytest
import torch
from torch import nn
from transformers import ViTConfig, ViTForImageClassification
from transformers.modeling_outputs import BaseModelOutput

from benchmarks.tiny import model, prepared
from tests.helpers import exactly, normal
from tests.methods.calling import of_tensor, runner_of
from tests.studies.conftest import TEXTS
from wherefrom import Explainer, load
from wherefrom.audits.propositions import propositions
from wherefrom.core.target import Case, Target
from wherefrom.inputs.image import ImageReader
from wherefrom.inputs.text import batch, from_ids
from wherefrom.methods.propagation import CONSERVATIVE, PLAIN
from wherefrom.studies import StudySamples
from wherefrom.studies.layer_profile import (
    METHODS,
    LayerProfile,
    block_shares,
    norm_shares,
    relevance_sums,
)
from wherefrom.testing import untouched


def inputs_of(runner, ids=(5, 17, 33, 8, 2)):
    return batch(runner, None, [from_ids(None, ids)], None)


def test_relevance_at_each_block_is_gradient_times_state(bert):
    runner = Explainer(bert).runner
    inputs, target = inputs_of(runner), Target(torch.tensor([1]))
    with untouched(bert):
        sums = relevance_sums(runner, inputs, target, PLAIN)
    out = bert(input_ids=inputs.tensors["input_ids"], output_hidden_states=True)
    slopes = torch.autograd.grad(out.logits[0, 1], out.hidden_states[1:])
    expected = [
        float((g * h).detach().sum()) for g, h in zip(slopes, out.hidden_states[1:], strict=True)
    ]
    assert list(sums.blocks) == ["input", "bert.encoder.layer.0", "bert.encoder.layer.1"]
    exactly(list(sums.blocks.values())[1:], expected)
    exactly(sums.output, float(out.logits[0, 1].detach()))


def test_under_the_rules_what_a_block_loses_is_in_the_ledger(bert, wordpiece):
    """Σ at the last block and the constants behind it are the output; likewise at the input."""
    explainer = Explainer(bert, wordpiece)
    explanation = explainer(TEXTS[0], "lrp", root=None)
    inputs = batch(explainer.runner, wordpiece, explainer.encode(TEXTS[:1]), None)
    target = Target(torch.tensor([explanation.target.index]))
    sums = relevance_sums(explainer.runner, inputs, target, CONSERVATIVE)
    biases = {
        line.label: line.value for line in explanation.ledger.lines if line.kind not in ("word",)
    }
    words = next(line.value for line in explanation.ledger.lines if line.kind == "word")
    exactly(sums.blocks["input"], words, 1e-6)
    behind = sum(v for k, v in biases.items() if k in ("bert.pooler", "classifier"))
    exactly(sums.blocks["bert.encoder.layer.1"] + behind, explanation.output, 1e-6)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_norms_are_those_of_proposition_two(family):
    runner = Explainer(model(family, "classify")).runner
    inputs, target = inputs_of(runner), Target(torch.tensor([1]))
    expected = propositions(Case(runner, inputs, target)).collapse
    norms = relevance_sums(runner, inputs, target, PLAIN).norms
    exactly([n[1] for n in norms], [norm.before for norm in expected], 1e-8)
    exactly([n[2] for n in norms], [norm.after for norm in expected], 1e-8)


def test_each_norm_of_the_embedded_model_counts_once():
    """Four blocks with two norms each, and one after the embeddings."""
    explainer = load("sentiment")
    inputs, target = explainer._prepared("a dull movie")
    assert sum(isinstance(m, nn.LayerNorm) for m in explainer.runner.model.modules()) == 9
    norms = relevance_sums(explainer.runner, inputs, target, PLAIN).norms
    assert len({name for name, *_ in norms}) == len(norms) == 9
    assert all(name.endswith("LayerNorm") for name, *_ in norms)


class Rescaled(nn.Module):
    """A norm in primitive calls, under a name that does not say so, with a residual around it."""

    def __init__(self, root):
        super().__init__()
        self.root = root
        self.bias = nn.Parameter(torch.tensor([0.5, -1.0, 2.0, 0.0]).double())

    def forward(self, x):
        square = (x * x).mean(-1, keepdim=True)
        scale = {"rsqrt": torch.rsqrt, "sqrt": lambda v: 1 / v.sqrt(), "power": lambda v: v**-0.5}
        return x * scale[self.root](square) + self.bias


class NormThenHead(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.normalising_wrapper_norm = nn.Sequential(norm)  # a name alone makes no norm
        self.head = nn.Linear(4, 2).double()

    def forward(self, x):
        return self.head((x + self.normalising_wrapper_norm(x)).mean(1))


@pytest.mark.parametrize(
    "norm",
    [
        Rescaled("rsqrt"), Rescaled("sqrt"), Rescaled("power"), nn.RMSNorm(4).double(),
        nn.LayerNorm(4).double(),
    ],
)  # fmt: skip
def test_a_norm_is_found_by_what_it_computes(norm, rng):
    """Without ε, a function that is unchanged by scale passes no gradient × input."""
    torch.manual_seed(0)
    module, x = NormThenHead(norm).eval(), normal(rng, 1, 3, 4)
    inputs, target = of_tensor(x), Target(torch.tensor([1]))
    ((name, before, after),) = relevance_sums(
        runner_of(module, inputs), inputs, target, PLAIN
    ).norms
    assert name == "normalising_wrapper_norm.0"
    bias = getattr(norm, "bias", None)
    y = norm(x).detach() - (0 if bias is None else bias.detach())
    exactly(after, float((y * module.head.weight[1].detach() / 3).sum()), 1e-12)
    assert abs(before) < 1e-4 * abs(after)


@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
def test_the_rules_lose_nothing_at_any_norm_and_gradients_nearly_all(family):
    runner = Explainer(model(family, "classify")).runner
    inputs, target = inputs_of(runner), Target(torch.tensor([1]))
    for method in METHODS:
        norms = relevance_sums(runner, inputs, target, method.resolved(inputs).table()).norms
        assert len(norms) >= 4
        for _, before, after in norms:
            if method.name == "gradient_x_input":
                assert abs(before) < 0.1 * abs(after) + 1e-12
            else:
                assert before == pytest.approx(after, rel=1e-5, abs=1e-9)


def test_lrp_has_the_rules_that_the_method_has_for_the_kind_of_input(rng):
    """On images a part of the relevance goes through attention weights and their softmax."""
    config = ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=24,
    )  # fmt: skip
    explainer = Explainer(prepared(ViTForImageClassification, settings=config))
    image = normal(rng, 1, 8, 8)
    explanation = explainer(image)
    reader = ImageReader(explainer.runner)
    inputs = reader.batch([reader.read(image)])
    samples = StudySamples(reader.runner, lambda _: inputs, {"lrp": [explanation]})
    (record,) = LayerProfile().records(samples, lambda: None)
    exactly(record["blocks"]["lrp"]["input"], explanation.ledger.lines[0].value, 1e-9)


def test_shares_are_medians_over_samples_without_outputs_of_zero():
    records = [
        {
            "output": output,
            "blocks": {"lrp": {"input": share * output, "layer.0": 2 * share * output}},
            "norms": {"lrp": [["norm", share * output, 3 * share * output]]},
        }
        for output, share in ((2.0, 0.5), (-1.0, 0.75), (4.0, 1.0), (0.0, 9.0))
    ]
    blocks = block_shares(records)["lrp"]
    exactly([blocks["input"][key] for key in ("low", "share", "high")], [0.625, 0.75, 0.875])
    exactly(blocks["layer.0"]["share"], 1.5)
    assert norm_shares(records)["lrp"] == [{"norm": "norm", "before": 0.75, "after": 2.25}]


def test_norms_are_those_that_all_samples_have_named_as_in_the_first():
    names = (["first", "second"], ["first", "other", "third"])
    records = [
        {"output": 1.0, "norms": {"lrp": [[name, 0.5, 0.25] for name in sample]}}
        for sample in names
    ]
    assert [norm["norm"] for norm in norm_shares(records)["lrp"]] == ["first", "second"]


class Wrapping(nn.Module):
    """A block that gives its states in an output with fields, as transformers' models do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4).double()

    def forward(self, x):
        return BaseModelOutput(last_hidden_state=self.inner(x))


class Wrapped(nn.Module):
    """Two such blocks and a head that reads their mean."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Wrapping(), Wrapping()])
        self.head = nn.Linear(4, 2).double()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).last_hidden_state
        return self.head(x.mean(1))


def test_states_are_read_from_the_output_of_a_block_that_has_fields(rng):
    torch.manual_seed(0)
    module, x = Wrapped().eval(), normal(rng, 1, 3, 4)
    inputs, target = of_tensor(x), Target(torch.tensor([1]))
    sums = relevance_sums(runner_of(module, inputs), inputs, target, PLAIN)
    inner = [layer.inner for layer in module.layers]
    states = [x, inner[0](x), inner[1](inner[0](x))]
    gradients = [module.head.weight[1] / 3]  # of each row of the last state
    for layer in inner[::-1]:
        gradients.insert(0, gradients[0] @ layer.weight)
    assert list(sums.blocks) == ["input", "layers.0", "layers.1"]
    for value, state, gradient in zip(sums.blocks.values(), states, gradients, strict=True):
        exactly(value, float((state * gradient).detach().sum()))
