"""Scores do not depend on the batch or the precision: alone = together = float64."""

import copy
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import wherefrom
from benchmarks.tiny import model as tiny
from tests.methods.cases import FEWER_PASSES
from wherefrom import METHODS, Explainer

EXAMPLES = Path(__file__).parents[2] / "examples"
WORDS = (
    "the a film movie is was good bad great dull and not of i love hate it never quite drags "
    "charming affecting journey bleak desperate virtues best worst plot acting script funny boring "
    ", . ! but with for very too often visually stunning lifeless characters story an hour"
).split()
BOUND = 5e-5  # of the largest score
FAMILIES = {"roberta": "classify", "gpt2": "write", "llama": "classify"}


def sentences(count, seed):
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(3, 22))) for _ in range(count)]


def id_lists(count, seed):
    chance = random.Random(seed)
    return [[chance.randrange(4, 100) for _ in range(chance.randint(2, 12))] for _ in range(count)]


EMBEDDED = [
    ("sentiment", sentences(3, seed=1)),
    ("digits", [EXAMPLES / f"{name}.png" for name in ("three", "seven", "eight")]),
    ("bace", ["CC(=O)Nc1ccc(O)cc1", "CCOC(=O)c1ccc(N)cc1", "CN1CCC(CC1)c1ccccc1O"]),
]


@pytest.fixture(scope="module")
def embedded():
    """The embedded models in float32 and float64."""
    names = {name for name, _ in EMBEDDED}
    return {name: (wherefrom.load(name), wherefrom.load(name, dtype="float64")) for name in names}


@pytest.fixture(scope="module")
def families():
    """Explainers of tiny models in float32 and float64, with the same weights."""
    pairs = {}
    for family, task in FAMILIES.items():
        narrow = tiny(family, task).float()
        pairs[family] = (Explainer(narrow), Explainer(copy.deepcopy(narrow).double()))
    return pairs


def check(narrow, wide, inputs, method):
    settings = FEWER_PASSES.get(method, {})
    together = narrow(inputs, method, target=1, **settings)
    exact = wide(inputs, method, target=1, **settings)
    for item, in_batch, in_float64 in zip(inputs, together, exact, strict=True):
        alone = narrow(item, method, target=1, **settings).scores
        largest = np.abs(in_float64.scores).max()
        assert largest > 0
        # a difference of two outputs is no more exact than the outputs are
        rounding = 2 * np.finfo(np.float32).eps * abs(in_float64.output)
        assert np.abs(alone - in_batch.scores).max() <= BOUND * largest + rounding
        assert np.abs(alone - in_float64.scores).max() <= BOUND * largest + rounding


@pytest.mark.parametrize(("name", "inputs"), EMBEDDED, ids=["sentiment", "digits", "bace"])
@pytest.mark.parametrize("method", list(METHODS))
def test_embedded_models_give_the_same_alone_in_a_batch_and_in_float64(
    embedded, name, inputs, method
):
    check(*embedded[name], inputs, method)


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("family", FAMILIES)
def test_random_models_give_the_same_alone_in_a_batch_and_in_float64(families, family, method):
    check(*families[family], id_lists(3, seed=2), method)


@pytest.mark.parametrize("method", ["attention_rollout", "gae", "transformer_attribution", "dix"])
def test_a_bfloat16_model_has_the_scores_of_its_weights_in_float64(method):
    narrow = tiny("bert", "classify").bfloat16()
    ids, settings = [5, 9, 8, 17, 30, 7], FEWER_PASSES.get(method, {})
    wide = Explainer(copy.deepcopy(narrow).double())(ids, method, target=1, **settings).scores
    scores = Explainer(narrow)(ids, method, target=1, **settings).scores
    assert np.abs(scores - wide).max() <= 0.05 * np.abs(wide).max()


class Doubled(torch.autograd.Function):
    """Takes float32 only, as a custom kernel may."""

    @staticmethod
    def forward(ctx, x, weight):
        if x.dtype != torch.float32:
            raise RuntimeError(f"expected scalar type Float but found {x.dtype}")
        ctx.save_for_backward(weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.saved_tensors[0].T, None


class WithKernel(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 8)
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids):
        x = Doubled.apply(self.embed(input_ids) + 1, self.weight)
        return self.head((x + self.attention(x, x, x)[0]).mean(1))


def test_a_kernel_that_takes_no_float64_is_run_as_it_is_with_a_warning():
    with pytest.warns(UserWarning, match="WithKernel cannot be run in float64"):
        explanation = Explainer(WithKernel())([3, 4, 5], "transformer_attribution", target=1)
    assert np.isfinite(explanation.scores).all()


def test_the_weights_are_not_cast_for_good():
    model = tiny("llama", "write").float()
    Explainer(model)([5, 9, 8], "transformer_attribution", target=1)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
