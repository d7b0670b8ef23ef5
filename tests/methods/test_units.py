"""Scores belong to the right units, however the model arranges its positions."""

import pytest
import torch
import transformers
from torch import nn

from benchmarks.tiny import model as tiny
from tests.helpers import exactly, normal
from tests.methods.calling import of_ids
from tests.modules import CLASSES, D, Plain
from wherefrom import METHODS, Explainer
from wherefrom.core.explanation import Unit
from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.core.target import Case, Target
from wherefrom.errors import ModelError
from wherefrom.methods import method as find_method
from wherefrom.methods.attention_maps import capture

SOURCE = [[2, 17, 9, 33, 3], [2, 8, 41, 5, 3]]
WRITTEN = [2, 11, 19, 7, 30, 4]


def decoded(model, count, ids, name, **settings):
    """The scores of a model whose decoder gets this many ids in its forward, at the third."""

    def forward(model, tensors):
        decoder = torch.tensor([WRITTEN[:count]] * len(tensors["input_ids"]))
        return model(
            tensors["input_ids"], tensors["attention_mask"], decoder_input_ids=decoder
        ).logits

    inputs = of_ids(model, ids)
    at = Target(torch.full((len(ids),), 4), position=torch.full((len(ids),), 2))
    return find_method(name, **settings)(Case(ModelRunner(model, forward), inputs, at))


@pytest.mark.parametrize("family", ["bart", "t5", "marian"])
@pytest.mark.parametrize("name", ["lrp", "attn_lrp", "gradient_x_input"])
def test_a_decoder_as_long_as_its_source_does_not_give_its_places_to_it(family, name):
    """A decoder is causal: later positions than the explained one change nothing."""
    model = tiny(family, "translate")
    shorter, equal, longer = (decoded(model, n, SOURCE, name, at="embeddings") for n in (4, 5, 6))
    assert set(equal.parts) == set(shorter.parts)
    for other in (shorter, longer):
        exactly(equal.values, other.values)
        for label, part in equal.parts.items():
            exactly(part, other.parts[label])
    for i, ids in enumerate(SOURCE):
        alone = decoded(model, 5, [ids], name, at="embeddings")
        exactly(alone.values[0], equal.values[i], 1e-9)
        assert alone.lines.keys() == equal.lines.keys()


@pytest.mark.parametrize("count", [3, 5, 6])
def test_rollout_from_a_hidden_decoder_is_the_product_of_its_maps(count):
    model = tiny("bart", "translate", attn_implementation="eager")
    found = decoded(model, count, SOURCE, "attention_rollout")
    decoder = torch.tensor([WRITTEN[:count]] * 2)
    seen = model(torch.tensor(SOURCE), decoder_input_ids=decoder, output_attentions=True)
    mean = [
        [maps.detach().mean(1) for maps in group]
        for group in (seen.encoder_attentions, seen.decoder_attentions, seen.cross_attentions)
    ]
    rows = torch.zeros(2, 1, count).double()
    rows[:, :, 2] = 1
    source = torch.zeros(2, 1, 5).double()
    for own, across in zip(reversed(mean[1]), reversed(mean[2]), strict=True):
        source = source + rows / 2 @ across
        rows = rows / 2
        rows = rows / 2 + rows / 2 @ own
    for own in reversed(mean[0]):
        source = source / 2 + source / 2 @ own
    exactly(found.values[:, :5], source[:, 0])


class Heads(Plain):
    """Two layers of attention with the same weights: heads together, or one after the other."""

    def __init__(self, way):
        super().__init__()
        torch.manual_seed(2)
        self.qkv = nn.ModuleList(nn.Linear(D, 3 * D) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(D, D) for _ in range(2))
        self.head = nn.Linear(D, CLASSES)
        self.way = way
        self.shaken()

    def attend(self, q, k, v):  # (B, heads, T, d) each
        if self.way == "loop":
            heads = zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True)
            return torch.cat([(a @ b.mT).softmax(-1) @ c for a, b, c in heads], -1)
        weights = (q @ k.mT).softmax(-1)
        if self.way == "sliced":
            return torch.cat([weights[:, i] @ v[:, i] for i in range(q.shape[1])], -1)
        if self.way == "looped fused":
            fused = nn.functional.scaled_dot_product_attention
            pairs = zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True)
            return torch.cat([fused(a, b, c, scale=1.0) for a, b, c in pairs], -1)
        return (weights @ v).transpose(1, 2).flatten(2)

    def forward(self, x):
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in qkv(x).chunk(3, -1))
            x = x + out(self.attend(q, k, v))
        return self.head(x[:, 0])


@pytest.mark.parametrize("way", ["loop", "sliced", "looped fused"])
@pytest.mark.parametrize("name", [name for name in METHODS if name != "random"])
def test_heads_one_after_the_other_are_one_layer(name, way, rng):
    x = normal(rng, 2, 5, D)
    settings = {"steps": 2} if name == "dix" else {}
    together = Explainer(Heads("together"))(x, name, **settings)
    for batched, other, row in zip(
        together, Explainer(Heads(way))(x, name, **settings), x, strict=True
    ):
        exactly(other.scores, batched.scores, 1e-6)
        exactly(Explainer(Heads(way))(row, name, **settings).scores, batched.scores, 1e-6)


def test_maps_of_heads_in_a_loop_are_joined_in_order(rng):
    x = normal(rng, 2, 5, D)
    inputs = Explainer(Heads("loop"))._reader(x).batch(list(x))
    found, expected = (
        capture(Case(ModelRunner(Heads(way)), inputs, Target()), gradients=True)
        for way in ("loop", "together")
    )
    assert [tuple(weights.shape) for weights in found.maps] == [(2, 2, 5, 5)] * 2
    for actual, wanted in zip(
        found.maps + found.gradients, expected.maps + expected.gradients, strict=True
    ):
        exactly(actual, wanted)


AUDIO = {
    "ast": lambda: transformers.ASTForAudioClassification(
        transformers.ASTConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            patch_size=8, frequency_stride=6, time_stride=6, max_length=40, num_mel_bins=20,
        )
    ),
    "wav2vec2": lambda: transformers.Wav2Vec2ForSequenceClassification(
        transformers.Wav2Vec2Config(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            conv_dim=(8, 8), conv_kernel=(4, 3), conv_stride=(2, 2), num_feat_extract_layers=2,
            num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, classifier_proj_size=8,
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("method", ["attention_rollout", "attention_last", "gae"])
@pytest.mark.parametrize("name", list(AUDIO))
def test_an_input_that_the_model_shortens_is_refused_by_attention(name, method, rng):
    torch.manual_seed(0)
    model, width = AUDIO[name]().double().eval(), 20 if name == "ast" else 1
    explainer, units = Explainer(model), 1 / 100 if width > 1 else 1 / 16_000  # a row each
    x = normal(rng, 40, width).squeeze(-1)
    with pytest.raises(ModelError, match="cannot score the stretches within a patch"):
        explainer(x, method, units=units)
    explanation = explainer(x, units=units)  # lrp reads the embeddings
    assert explanation.ledger.relative < 1e-9
    assert (abs(explanation.scores) > 1e-9).sum() > 30


def test_rollout_through_latents_is_the_product_of_its_maps():
    """A Perceiver's latents are constants, not units, even if their numbers are equal."""
    ids = [5, 17, 33, 8, 60, 71, 2]
    sizes = {"num_latents": len(ids), "num_self_attends_per_block": 2}
    model = tiny("perceiver", "classify", attn_implementation="eager", **sizes)
    seen = model(torch.tensor([ids]), torch.ones(1, len(ids)), output_attentions=True)
    read, written = (maps.detach().mean(1) for maps in seen.cross_attentions)
    latents = written / 2  # (1, 1, latents): the skip connection of the decoder's query is half
    for maps in reversed(seen.attentions):
        latents = latents / 2 + latents / 2 @ maps.detach().mean(1)
    expected = (latents / 2 @ read)[0, 0]
    explainer = Explainer(model)
    for ways in (ids, [ids, ids]):
        explanations = explainer(ways, "attention_rollout", target=0)
        explanation = explanations[1] if isinstance(explanations, list) else explanations
        exactly(explanation.scores, expected, 1e-6)
    for name in ("attention_last", "gae"):
        with pytest.raises(ModelError, match="latents"):
            explainer(ids, name)


class TwoTables(Plain):
    """Sums of embeddings, weighted by position: the score of a unit is what it adds."""

    def __init__(self, look_up):
        super().__init__()
        self.first, self.second = nn.Embedding(50, D), nn.Embedding(2500, D)
        self.head = nn.Linear(D, CLASSES, bias=False)
        self.look_up = look_up
        self.shaken()

    def forward(self, tensors):
        total = 0
        for rows in self.look_up(self, *tensors.values()):  # (B, T, D)
            total = total + (rows * torch.arange(1, rows.shape[1] + 1)[:, None]).sum(1)
        return self.head(total)


def scored(look_up, *fields, **settings):
    """The model, and the scores by `lrp` of the units of some fields of ids, (B, units)."""
    model = TwoTables(look_up)
    width = sum(ids.shape[1] for ids in fields)
    inputs = Batch(
        {f"ids_{number}": ids for number, ids in enumerate(fields)},
        tuple(f"ids_{number}" for number in range(len(fields))),
        (tuple(Unit(str(i)) for i in range(width)),) * len(fields[0]),
        torch.ones(len(fields[0]), width, dtype=torch.bool),
        (None,) * len(fields[0]),
    )
    runner = ModelRunner(model, lambda model, tensors: model(tensors))
    target = Target(torch.zeros(len(inputs), dtype=torch.long))
    scores = find_method("lrp", root="zero", **settings)(Case(runner, inputs, target))
    return model, scores.values


def added(model, rows):
    """What rows (B, T, D) add to the first class, (B, T)."""
    places = torch.arange(1, rows.shape[1] + 1)
    return (rows @ model.head.weight[0] * places).detach()


SECOND = [[5, 6, 7], [9, 4, 8]]


@pytest.mark.parametrize("more", [[], [[3, 1], [5, 2]]])
def test_a_second_field_that_begins_with_the_first_has_units_of_its_own(more):
    first = torch.tensor(SECOND)
    second = torch.cat([first, torch.tensor(more)], 1) if more else first.clone()

    def look_up(model, a, b):
        return model.second(b), model.first(a)

    model, scores = scored(look_up, first, second)
    exactly(scores[:, :3], added(model, model.first(first)))
    exactly(scores[:, 3:], added(model, model.second(second)))


def test_a_lookup_on_pairs_of_ids_belongs_to_the_units_of_the_later_ones():
    ids = torch.tensor(SECOND)

    def pairs(ids):
        return ids * 50 + nn.functional.pad(ids[:, :-1], (1, 0))

    model, scores = scored(lambda model, ids: (model.first(ids), model.second(pairs(ids))), ids)
    exactly(scores, added(model, model.first(ids)) + added(model, model.second(pairs(ids))))


@pytest.mark.parametrize("part", [slice(0, 3), slice(1, 4), slice(1, 3)])
def test_a_slice_of_ids_that_repeat_holds_the_units_it_was_cut_from(part):
    ids = torch.tensor([[7, 7, 7, 7], [7, 7, 7, 7]])
    model, scores = scored(lambda model, ids: (model.first(ids[:, part]),), ids)
    expected = torch.zeros(2, 4).double()
    expected[:, part] = added(model, model.first(ids[:, part]))
    exactly(scores, expected)
