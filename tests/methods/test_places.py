"""Positions of units: class tokens in front, positions on the first axis, two streams."""

import pytest
import torch
from torch import nn

from tests.helpers import normal
from tests.methods.calling import family, found, of_tensor, same, scores
from tests.methods.cases import FEWER_PASSES
from tests.methods.test_transformer_attribution import Seeing
from tests.modules import CLASSES, D, Plain
from tests.oracles import maps as oracle
from tests.oracles.attended import Seen
from wherefrom.core.explanation import Unit
from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.core.target import Case, Target
from wherefrom.methods import METHODS, method

READING = [
    "attention_last", "attention_rollout", "attention_flow", "gradient_x_attention",
    "gradient_rollout", "gae", "transformer_attribution", "dix",
]  # fmt: skip


@pytest.mark.parametrize("name", READING)
def test_a_class_token_in_front_moves_no_score(name, rng):
    model, x = family("vit", "see"), normal(rng, 2, 6, 32)
    token = model.vit.embeddings.cls_token.detach().expand(2, -1, -1)
    given = of_tensor(torch.cat([token, x], 1))
    expected = scores(Seeing(model, whole=True), given, name, 1)[:, 1:]
    same(scores(Seeing(model, whole=False), of_tensor(x), name, 1), expected, 1e-7)


class Encoder(Plain):
    """torch's encoder, with positions on the first or second axis."""

    def __init__(self, batch_first):
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, 2, 8, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(D, CLASSES)
        self.batch_first = batch_first
        self.shaken()

    def forward(self, x):
        if self.batch_first:
            return self.head(self.encoder(x).mean(1))
        return self.head(self.encoder(x.transpose(0, 1)).mean(0))


@pytest.mark.parametrize(
    ("name", "size"),  # as many samples as positions
    [*((name, 5) for name in METHODS if name != "random"), ("lrp", 1), ("gae", 1), ("lrp", 3)],
)
@pytest.mark.filterwarnings("ignore::wherefrom.errors.SamplesRunAlone")  # positions come first
def test_the_axis_of_places_is_no_matter(name, size, rng):
    plain, turned = Encoder(batch_first=True), Encoder(batch_first=False)
    turned.load_state_dict(plain.state_dict())
    inputs = of_tensor(normal(rng, size, 5, D))
    settings = FEWER_PASSES.get(name, {})
    expected = found(plain, inputs, name, 1, **settings)
    actual = found(turned, inputs, name, 1, **settings)
    if not expected.parts or name.endswith("gradients"):
        same(actual.values, expected.values, 1e-7)
    else:  # gradient × input may all but vanish behind a norm: its parts do not
        same(torch.stack(list(actual.parts.values())).sum(0), expected.values, 1e-7)


class TwoStreams(nn.Module):
    """Two texts that attend to each other; read at the first word of the first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.ModuleList(nn.Embedding(20, D) for _ in range(2))
        self.qkv = nn.ModuleList(nn.ModuleList(nn.Linear(D, D) for _ in range(3)) for _ in range(4))
        self.head = nn.Linear(D, CLASSES)
        self.double()

    def run(self, a, b):
        """The logits, and the maps in the order of the pass: a to b, b to a, a to b, a to a."""
        state, maps = [self.words[0](a), self.words[1](b)], []
        for (query, key), parts in zip(self.ways, self.qkv, strict=True):
            q, k, v = (part(state[i]) for part, i in zip(parts, (query, key, key), strict=True))
            maps.append((q @ k.mT).softmax(-1))
            state[query] = state[query] + maps[-1] @ v
        return self.head(state[0][:, 0]), maps

    ways = ((0, 1), (1, 0), (0, 1), (0, 0))

    def forward(self, a, b):
        return self.run(a, b)[0]


@pytest.fixture(scope="module")
def two():
    """The module, its inputs for wherefrom, and what the oracle sees."""
    model = TwoStreams()
    a, b = torch.tensor([[3, 7, 9, 11]]), torch.tensor([[4, 2, 15]])
    units = (tuple(Unit(str(i)) for i in range(7)),)
    inputs = Batch({"a": a, "b": b}, ("a", "b"), units, torch.ones(1, 7).bool(), (None,))
    logits, maps = model.run(a, b)
    gradients = torch.autograd.grad(logits[0, 1], maps)
    seen = Seen(
        [each.detach() for each in maps],
        list(gradients),
        list(model.ways),
        [4, 3],
        torch.eye(4).double()[0],
    )
    return model, inputs, seen


@pytest.mark.parametrize(
    "name", ["attention_last", "attention_rollout", "attention_flow", "gradient_rollout", "gae"]
)
def test_two_streams_that_look_into_each_other(name, two):
    model, inputs, seen = two
    forward = ModelRunner(model, lambda model, given: model(given["a"], given["b"]))
    actual = method(name)(Case(forward, inputs, Target(torch.tensor([1]))))
    same(actual.values[0], getattr(oracle, name)(seen), 1e-7)


class TwoTensors(nn.Module):
    """Two float tensors, the second added up with another weight."""

    def forward(self, a, b):
        return (a.sum((1, 2)) + 2 * b.sum((1, 2))).unsqueeze(-1)


def test_two_float_tensors_have_units_of_their_own(rng):
    a, b = normal(rng, 1, 2, 3), normal(rng, 1, 4, 3)
    units = (tuple(Unit(str(i)) for i in range(6)),)
    inputs = Batch({"a": a, "b": b}, ("a", "b"), units, torch.ones(1, 6).bool(), (None,))
    forward = ModelRunner(TwoTensors(), lambda model, given: model(given["a"], given["b"]))
    actual = method("gradient_x_input")(Case(forward, inputs, Target(torch.tensor([0]))))
    same(actual.values[0], torch.cat([a.sum(-1), 2 * b.sum(-1)], 1)[0])
