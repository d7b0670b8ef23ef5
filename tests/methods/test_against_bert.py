"""Methods against an explicit BERT."""

import pytest
import torch
from torch import nn

from benchmarks.tiny import model as tiny
from tests.helpers import exactly, normal
from tests.methods.calling import of_tensor, scores
from tests.oracles.bert import Bert, frozen, kept
from wherefrom import Explainer
from wherefrom.core.target import Case

IDS = [2, 17, 9, 33, 8, 41, 3]
TABLES = {
    "gradient_x_input": (kept, kept, kept),
    "lrp_ah": (frozen, kept, kept),
    "lrp_ah_ln": (frozen, frozen, kept),
    "lrp": (frozen, frozen, frozen),
}


def values(ledger, kind):
    return sum(line.value for line in ledger.lines if line.kind == kind)


def test_the_oracle_is_the_model(bert):
    expected = bert(torch.tensor([IDS])).logits[0].detach()
    oracle = Bert(bert)
    exactly(oracle(sum(oracle.embedded(IDS))).detach(), expected)


@pytest.mark.parametrize("target", [0, 2])
@pytest.mark.parametrize("method", list(TABLES))
def test_method_is_autograd_on_the_detached_bert(method, target, bert):
    found = Explainer(bert)(IDS, method, target=target, at="embeddings")
    out, parts = Bert(bert, *TABLES[method]).parts(IDS, target)
    exactly(found.output, float(out))
    sizes = [float(part.sum()) for part in parts]
    exactly([values(found.ledger, kind) for kind in ("word", "position", "type")], sizes)
    for kind, part in zip(("word", "position", "type"), parts, strict=True):
        exactly(found.parts[kind], part.float(), tol=1e-6)  # kept as float32
    exactly(found.scores, sum(parts).float(), tol=1e-6)


@pytest.mark.parametrize("method", list(TABLES))
def test_scores_before_rounding_equal_the_oracle_to_ten_digits(method, bert):
    from wherefrom.core.runner import Batch, ModelRunner
    from wherefrom.core.target import Target
    from wherefrom.methods import METHODS

    inputs = Batch(
        {"input_ids": torch.tensor([IDS])}, ("input_ids",), ((),), torch.ones(1, 7).bool(), (None,)
    )
    scores = METHODS[method](at="embeddings").scores(
        Case(ModelRunner(bert), inputs, Target(torch.tensor([1])))
    )
    _, parts = Bert(bert, *TABLES[method]).parts(IDS, 1)
    exactly(scores.values[0], sum(parts))
    for kind, part in zip(("word", "position", "type"), parts, strict=True):
        exactly(scores.parts[kind][0], part)


@pytest.mark.parametrize("method", list(TABLES))
def test_biases_by_layer_are_gradient_times_bias(method, bert):
    found = Explainer(bert)(IDS, method, target=1, at="embeddings")
    expected = Bert(bert, *TABLES[method]).biases(IDS, 1)
    lines = {line.label: line.value for line in found.ledger.lines if line.kind == "bias"}
    assert set(lines) == set(expected)
    for layer, amount in expected.items():
        exactly(lines[layer], amount)


def test_contrast_is_the_difference_of_two_explanations(bert):
    explainer = Explainer(bert)
    both = explainer(IDS, target=1, against=2)
    one, two = explainer(IDS, target=1), explainer(IDS, target=2)
    exactly(both.output, one.output - two.output)
    exactly(both.scores, one.scores - two.scores, tol=1e-6)
    exactly(both.ledger.of("bias"), one.ledger.of("bias") - two.ledger.of("bias"))
    assert both.ledger.relative < 1e-9


@pytest.mark.filterwarnings("ignore::wherefrom.errors.RoundingOnly")  # of the sum
@pytest.mark.parametrize("reduce", ["norm", "sum"])
def test_gradient_is_autograd_at_the_word_embeddings(reduce, bert):
    words = bert.bert.embeddings.word_embeddings(torch.tensor([IDS])).detach().requires_grad_()
    out = bert(inputs_embeds=words).logits[0, 1]
    (gradient,) = torch.autograd.grad(out, words)
    expected = gradient[0].norm(dim=-1) if reduce == "norm" else gradient[0].sum(-1)
    found = Explainer(bert)(IDS, "gradient", target=1, reduce=reduce, at="embeddings")
    exactly(found.scores, expected.float(), tol=1e-6)
    assert found.ledger is None


def test_gradient_x_input_is_autograd_times_what_was_embedded(gpt2):
    ids = torch.tensor([[5, 17, 33, 8]])
    words = gpt2.transformer.wte(ids).detach().requires_grad_()
    out = gpt2(inputs_embeds=words).logits[0, -1, 9]
    (gradient,) = torch.autograd.grad(out, words)
    positions = gpt2.transformer.wpe.weight[:4].detach()
    found = Explainer(gpt2)(ids[0], "gradient_x_input", target=9, at="embeddings")
    exactly(found.parts["word"], (gradient * words)[0].sum(-1).detach().float(), tol=1e-6)
    exactly(found.parts["position"], (gradient[0] * positions).sum(-1).float(), tol=1e-6)


def test_a_bias_is_no_position_however_the_layer_is_written(gpt2):
    ids = torch.tensor([[5, 17, 33, 8]])
    positions = gpt2.transformer.wpe.weight[:4].detach()
    found = Explainer(gpt2)(ids[0], target=9, root=None)
    silent = tiny("gpt2", "write", vocab_size=280)
    with torch.no_grad():
        silent.transformer.wpe.weight.zero_()
    assert positions.abs().min() > 0
    alone = Explainer(silent)(ids[0], target=9, root=None)
    assert not alone.parts.get("position", torch.zeros(1)).any()
    assert abs(found.parts["position"]).min() > 0
    assert alone.ledger.relative < 1e-9


def test_random_scores_hang_on_the_units_and_the_seed_alone(bert):
    explainer = Explainer(bert)
    once, again = explainer([IDS, IDS[:4]], "random"), explainer([IDS[:4], IDS], "random")
    assert once[0].scores.tolist() == again[1].scores.tolist()
    assert once[0].scores.tolist() != explainer(IDS, "random", seed=1).scores.tolist()
    assert once[0].scores.std() > 0.3


def test_random_scores_are_drawn_anew_for_numbers_whose_units_are_named_alike(rng):
    one, other = of_tensor(normal(rng, 1, 4, 3)), of_tensor(normal(rng, 1, 4, 3))
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).double()
    first, second = (scores(module, inputs, "random", 1) for inputs in (one, other))
    both = of_tensor(torch.cat([one.tensors["x"], other.tensors["x"]]))
    assert first.tolist() != second.tolist()
    assert scores(module, both, "random", 1).tolist() == [*first.tolist(), *second.tolist()]
