"""Gradient, SmoothGrad, softplus and erasure against loops; chunks to a memory budget."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.tiny import model as tiny
from tests.helpers import normal
from tests.methods.calling import (
    ROWS,
    asked,
    different,
    found,
    in_parts,
    of_ids,
    of_tensor,
    of_texts,
    rows_run,
    same,
    scores,
)
from tests.modules import CLASSES, Block, D, Plain
from tests.oracles import gradients as oracle
from wherefrom.core.runner import ModelRunner
from wherefrom.core.target import Case
from wherefrom.errors import NotEnoughMemory, RoundingOnly
from wherefrom.methods import method

IDS = [2, 17, 9, 33, 8, 41, 3]
REDUCE = ["norm", "sum", "x_input"]
CHUNKED = {  # methods that run many passes, with few of them
    "smoothgrad": {"samples": 5},
    "integrated_gradients": {"steps": 5},
    "path_gradients": {"steps": 5},
    "dix": {"steps": 3, "variant": "definition"},
    "occlusion": {},
}


def words(model, ids):
    return model.bert.embeddings.word_embeddings(torch.tensor([ids]))[0].detach()


def logit(model, target=1):
    return lambda x: model(inputs_embeds=x).logits[:, target]


def class_of(module, target=1):
    return lambda x: module(x)[:, target]


@pytest.fixture
def block():
    """A module without centring norms: behind one, the sum over features is zero for all."""
    return Block()


def test_gradient_is_autograd_in_every_sample_of_a_batch(bert):
    actual = scores(bert, of_ids(bert, ROWS), "gradient", 1, at="embeddings")
    for row, ids in zip(actual, ROWS, strict=True):
        same(row[: len(ids)], oracle.gradient(logit(bert), words(bert, ids)).norm(dim=-1))


@pytest.mark.parametrize("reduce", ["norm", "sum"])
def test_gradient_is_reduced_over_the_features(block, reduce, rng):
    x = normal(rng, 2, 5, D)
    actual = scores(block, of_tensor(x), "gradient", 1, reduce=reduce)
    for row, each in zip(actual, x, strict=True):
        g = oracle.gradient(class_of(block), each)
        same(row, oracle.reduced(g, each, reduce))


def test_behind_a_centring_norm_the_signed_sum_says_nothing(bert):
    inputs = of_ids(bert, ROWS)
    length = scores(bert, inputs, "gradient", 1, at="embeddings")
    with pytest.warns(RoundingOnly, match="the scores are rounding errors"):
        total = scores(bert, inputs, "gradient", 1, reduce="sum", at="embeddings")
    assert total.abs().max() < 1e-12 * length.max()
    read = scores(bert, inputs, "gradient", 1, reduce="sum")  # where the first block begins
    assert read.abs().max() > 1e-6 * length.max()


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("reduce", ["norm", "x_input"])
def test_smoothgrad_of_ids_is_the_mean_over_the_same_noise(bert, reduce, share):
    inputs = of_ids(bert, ROWS)
    settings = {"samples": 6, "noise": share, "reduce": reduce, "seed": 4, "at": "embeddings"}
    actual = scores(bert, inputs, "smoothgrad", 1, **settings)
    for row, ids, units in zip(actual, ROWS, inputs.units, strict=True):
        x = words(bert, ids)
        added = oracle.noise([unit.text for unit in units], x, 6, share, 4)
        same(row[: len(ids)], oracle.smoothgrad(logit(bert), x, added, reduce))


@pytest.mark.parametrize("reduce", REDUCE)
def test_smoothgrad_of_a_tensor_is_the_mean_over_the_same_noise(block, reduce, rng):
    x = normal(rng, 2, 5, D)
    inputs = of_tensor(x)
    actual = scores(block, inputs, "smoothgrad", 1, samples=6, noise=0.2, reduce=reduce, seed=4)
    for row, each, units in zip(actual, x, inputs.units, strict=True):
        added = oracle.noise([unit.text for unit in units], each, 6, 0.2, 4)
        same(row, oracle.smoothgrad(class_of(block), each, added, reduce))


@pytest.mark.parametrize("reduce", ["norm", "sum"])
def test_smoothgrad_without_noise_is_the_gradient(block, reduce, rng):
    inputs = of_tensor(normal(rng, 2, 5, D))
    expected = scores(block, inputs, "gradient", 1, reduce=reduce)
    same(scores(block, inputs, "smoothgrad", 1, reduce=reduce, noise=0.0, samples=3), expected)


def test_smoothgrad_hangs_on_its_seed_alone(bert):
    inputs = of_ids(bert, [IDS])
    torch.manual_seed(1)
    once = scores(bert, inputs, "smoothgrad", 1, seed=3)
    torch.manual_seed(2)
    assert torch.equal(scores(bert, inputs, "smoothgrad", 1, seed=3), once)
    different(scores(bert, inputs, "smoothgrad", 1, seed=5), once)


class Bends(Plain):
    """A network with a ReLU in it, spelled in one way or another."""

    def __init__(self, activation):
        super().__init__()
        self.inner, self.head = nn.Linear(D, 8), nn.Linear(8, CLASSES)
        self.activation = activation
        self.shaken()

    def forward(self, x):
        return self.head(self.activation(self.inner(x)).mean(1))


def in_place(x):
    x.relu_()
    return x


RELUS = {
    "F.relu": F.relu,
    "torch.relu": torch.relu,
    "method": lambda x: x.relu(),
    "nn.ReLU": nn.ReLU(),
    "nn.ReLU in place": nn.ReLU(inplace=True),
    "a statement": in_place,
}


@pytest.mark.parametrize(
    ("name", "settings", "beta", "spelled"),
    [
        *(("gradient", {}, 5.0, spelled) for spelled in RELUS),
        ("gradient", {}, 1.0, "F.relu"),
        ("smoothgrad", {"samples": 3}, 1.0, "a statement"),
        ("integrated_gradients", {"steps": 6}, 5.0, "nn.ReLU in place"),
        ("path_gradients", {"steps": 6}, 1.0, "nn.ReLU"),
    ],
)
def test_softplus_is_the_network_with_softplus_in_it(name, settings, beta, spelled, rng):
    bends = Bends(RELUS[spelled])
    smooth = Bends(lambda x: F.softplus(x, beta=beta))
    smooth.load_state_dict(bends.state_dict(), strict=False)
    inputs = of_tensor(normal(rng, 2, 4, D))
    expected = scores(smooth, inputs, name, 1, **settings)
    same(scores(bends, inputs, name, 1, softplus=beta, **settings), expected)
    different(scores(bends, inputs, name, 1, **settings), expected)


def test_the_outputs_told_with_softplus_are_the_models_own(rng):
    bends, inputs = Bends(F.relu), of_tensor(normal(rng, 2, 4, D))
    expected = bends(inputs.tensors["x"]).detach()
    for name in ("smoothgrad", "integrated_gradients"):
        same(found(bends, inputs, name, 1, softplus=2.0).logits, expected)


def test_ig_by_softplus_meets_a_tolerance(rng):
    module, x = Bends(F.relu), normal(rng, 4, D)
    settings = {"softplus": 2.0, "steps": 4, "tolerance": 1e-4, "rule": "middle"}
    smooth = Bends(lambda x: F.softplus(x, beta=2.0))
    smooth.load_state_dict(module.state_dict())
    rise = (smooth(x[None]) - smooth(torch.zeros_like(x[None])))[0, 1].detach()
    result = scores(module, of_tensor(x[None]), "integrated_gradients", 1, **settings)
    assert abs(float(result.sum() - rise)) <= 1e-4


def test_occlusion_is_the_output_lost_unit_by_unit(bert):
    actual = scores(bert, of_ids(bert, ROWS), "occlusion", 1)
    for row, ids in zip(actual, ROWS, strict=True):
        x = words(bert, ids)
        same(row[: len(ids)], oracle.occlusion(logit(bert), x, torch.zeros_like(x)))


@pytest.mark.parametrize("baseline", ["unk", "mask", "pad"])
def test_occlusion_by_a_token_is_the_output_with_that_token(bert, wordpiece, baseline):
    ids = wordpiece("the film is good")["input_ids"]
    number = getattr(wordpiece, f"{baseline}_token_id")
    inputs = of_texts(bert, wordpiece, ["the film is good"])
    actual = scores(bert, inputs, "occlusion", 1, baseline=baseline)[0]
    whole = bert(torch.tensor([ids])).logits[0, 1].detach()
    for i in range(1, len(ids) - 1):
        without = [*ids[:i], number, *ids[i + 1 :]]
        same(actual[i], whole - bert(torch.tensor([without])).logits[0, 1].detach(), 1e-7)
    assert actual[[0, -1]].abs().max() < 1e-15  # special tokens stay


def test_occlusion_of_patches_by_their_mean_colour(rng):
    module, x = Block(), normal(rng, 4, D)
    blank = x.mean(0)
    expected = oracle.occlusion(lambda b: module(b)[:, 1].detach(), x, blank.expand(4, D))
    same(scores(module, of_tensor(x[None]), "occlusion", 1, baseline=blank)[0], expected)


@pytest.mark.parametrize("name", list(CHUNKED))
def test_little_memory_changes_the_chunks_and_not_the_scores(name):
    model = tiny("bert", "classify")
    inputs, settings = of_ids(model, ROWS), CHUNKED[name]
    chunked, target = method(name, **settings), asked(inputs, 1)
    with rows_run(model) as wide:
        expected = chunked(Case(ModelRunner(model), inputs, target)).values
    if name == "occlusion":  # keeps nothing for a backward pass, so there is nothing to save
        memory = 1.0
    else:
        with pytest.raises(NotEnoughMemory, match=f"{name}.* on one input") as caught:
            in_parts(chunked, Case(ModelRunner(model, memory=1.0), inputs, target))
        memory = 1.2 * caught.value.needed
    with rows_run(model) as narrow:
        actual = in_parts(chunked, Case(ModelRunner(model, memory=memory), inputs, target)).values
    same(actual, expected, 1e-10)
    if name != "occlusion":
        assert narrow[-1] == 1
        assert len(narrow) > len(wide)
