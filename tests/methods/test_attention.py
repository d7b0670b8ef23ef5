"""Attention methods against explicit matrices of the maps that transformers returns."""

from itertools import product

import pytest
import torch

from benchmarks.tiny import model as tiny
from tests.helpers import normal
from tests.methods.calling import (
    ROWS,
    different,
    family,
    of_ids,
    of_tensor,
    same,
    scores,
)
from tests.methods.cases import CASES, IDS, case, mean_pooled_block
from tests.modules import Block, D
from tests.oracles import attended
from tests.oracles import maps as oracle
from wherefrom.core.runner import ModelRunner
from wherefrom.core.target import Case, Target
from wherefrom.errors import MethodError, ModelError
from wherefrom.methods import method as find_method
from wherefrom.methods.attention_maps import capture

EAGER = [
    "bert",
    "llama",
    "bart",
    "bart that classifies",
    "bart of equal lengths",
    "t5 of equal lengths",
]
READ = ["auto", "all"]
OPTIONS = [dict(zip(("positive", "normalise", "skip"), c, strict=True)) for c in
           product((False, True), repeat=3)]  # fmt: skip
READING = [  # attention only, attention and gradients
    "attention_last", "attention_rollout", "attention_flow", "gradient_rollout", "gae",
    "transformer_attribution", "dix",
]  # fmt: skip


def compare(name, how, method, expected, **settings):
    here = case(name)
    actual = scores(here.models[how], here.inputs(how), method, here.target, **settings)
    same(actual[0], here.units(expected), here.tolerance(how))


@pytest.mark.parametrize(
    ("name", "how"), [*((name, "sdpa") for name in CASES), *((name, "eager") for name in EAGER)]
)
class TestEveryArchitectureAndImplementation:
    @pytest.mark.parametrize("readout", READ)
    def test_attention_last_is_the_readout_row_of_the_last_map(self, name, how, readout):
        expected = oracle.attention_last(case(name).seen, readout == "all")
        compare(name, how, "attention_last", expected, readout=readout)

    @pytest.mark.parametrize("readout", READ)
    def test_attention_rollout_is_the_product_of_normalised_maps(self, name, how, readout):
        expected = oracle.attention_rollout(case(name).seen, readout == "all")
        compare(name, how, "attention_rollout", expected, readout=readout)

    @pytest.mark.parametrize("layer", [-1, 0])
    def test_gradient_x_attention_is_the_column_sum_of_one_map(self, name, how, layer):
        expected = oracle.gradient_x_attention(case(name).seen, layer)
        compare(name, how, "gradient_x_attention", expected, layer=layer)

    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    def test_gradient_rollout_is_the_product_of_weighted_maps(self, name, how, options):
        expected = oracle.gradient_rollout(case(name).seen, **options)
        compare(name, how, "gradient_rollout", expected, **options)

    @pytest.mark.parametrize("skip", [False, True])
    def test_gae_is_its_update_rule_written_out(self, name, how, skip):
        compare(name, how, "gae", oracle.gae(case(name).seen, skip=skip), skip=skip)


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart"])
def test_gradient_methods_add_up_all_rows_when_asked(name):
    seen = case(name).seen
    for options in OPTIONS:
        expected = oracle.gradient_rollout(seen, every=True, **options)
        compare(name, "sdpa", "gradient_rollout", expected, readout="all", **options)
    for skip in (False, True):
        expected = oracle.gae(seen, every=True, skip=skip)
        compare(name, "sdpa", "gae", expected, readout="all", skip=skip)


@pytest.mark.parametrize(("name", "place"), [("bert", 0), ("gpt2", -1)])
def test_the_head_reads_one_place(name, place):
    here = case(name)
    target = Target(torch.tensor([here.target]), position=torch.tensor([len(IDS) - 1]))
    found = capture(Case(ModelRunner(here.models["sdpa"]), here.inputs(), target), gradients=False)
    same(found.readout[0], torch.eye(len(IDS))[place])


def test_all_maps_are_captured_in_the_order_of_the_pass():
    here = case("bart")
    target = Target(torch.tensor([here.target]))
    found = capture(Case(ModelRunner(here.models["sdpa"]), here.inputs(), target), gradients=True)
    assert found.streams == here.seen.ways
    for actual, expected in zip(found.maps, here.seen.maps, strict=True):
        same(actual[0], expected)
    for actual, expected in zip(found.gradients, here.seen.gradients, strict=True):
        same(actual[0], expected)


def test_mean_pooling_reads_every_place_by_its_share(rng):
    module, x = Block(), normal(rng, 5, D)
    seen = mean_pooled_block(module, x)
    assert float(seen.readout.max()) < 0.9
    inputs = of_tensor(x[None])
    for method in ("attention_last", "attention_rollout", "gradient_rollout", "gae"):
        same(scores(module, inputs, method, 1)[0], getattr(oracle, method)(seen))
    flow = scores(module, inputs, "attention_flow", 1)[0]
    same(flow, oracle.attention_flow(seen), 1e-7)


def test_attention_alone_says_nothing_of_the_class_and_gradients_do():
    model = family("bert", "classify")
    inputs = of_ids(model, [IDS])
    for method in ("attention_last", "attention_rollout", "attention_flow"):
        assert torch.equal(scores(model, inputs, method, 0), scores(model, inputs, method, 2))
    for method in ("gradient_x_attention", "gradient_rollout", "gae"):
        different(scores(model, inputs, method, 0), scores(model, inputs, method, 2))


@pytest.mark.parametrize("layer", [2, -3])
def test_a_layer_that_is_not_there_is_named(layer):
    model = family("bert", "classify")
    with pytest.raises(MethodError, match=f"no layer {layer}: .* layers 0 to 1"):
        scores(model, of_ids(model, [IDS]), "gradient_x_attention", 1, layer=layer)


@pytest.mark.parametrize("readout", READ)
@pytest.mark.parametrize("method", READING)
def test_padding_rows_read_nothing(method, readout):
    model = family("bert", "classify")
    together = scores(model, of_ids(model, ROWS), method, 1, readout=readout)
    for row, ids in zip(together, ROWS, strict=True):
        alone = scores(model, of_ids(model, [ids]), method, 1, readout=readout)[0]
        same(row[: len(ids)], alone, 1e-7)
        assert not row[len(ids) :].any()


def test_rows_that_sum_below_zero_are_still_divided_by_their_sum():
    model = tiny("bert", "classify")
    with torch.no_grad():
        model.classifier.weight.mul_(1e5)
    seen = attended.bert(model, IDS, 1)
    sums = torch.stack([oracle.weighted(seen, i, False).sum(-1) + 1 for i in (0, 1)])
    assert float(sums.min()) < 0  # otherwise the test proves nothing
    actual = scores(model, of_ids(model, [IDS]), "gradient_rollout", 1, normalise=True)
    same(actual[0], oracle.gradient_rollout(seen, normalise=True))


def test_windowed_attention_is_refused_with_its_shape():
    model = family("longformer", "classify")
    for method in (*READING, "gradient_x_attention"):
        with pytest.raises(ModelError, match=r"attention map has shape \(\d+, \d+, \d+, \d+\)"):
            scores(model, of_ids(model, [IDS]), method, 1)
    assert scores(model, of_ids(model, [IDS]), "lrp", 1).abs().max() > 0


@pytest.mark.parametrize("start", [0, 1, -1])
@pytest.mark.parametrize("name", ["bert", "bart"])
def test_gae_may_begin_at_a_later_layer(name, start):
    this = case(name)
    count = len(this.seen.maps)
    expected = this.units(oracle.gae(this.seen, start=range(count)[start]))
    actual = scores(this.models["sdpa"], this.inputs(), "gae", this.target, start_layer=start)[0]
    same(actual, expected)


@pytest.mark.parametrize("name", ["gae", "transformer_attribution"])
def test_a_start_layer_that_is_not_there_is_named(name):
    this = case("bert")
    with pytest.raises(MethodError, match="no layer 9: the model has attention layers 0 to 1"):
        scores(this.models["sdpa"], this.inputs(), name, this.target, start_layer=9)


def test_gae_refuses_decoder_ids_hidden_in_forward():
    model = case("bart").models["sdpa"]
    decoder = torch.tensor([[2, 11, 19]])
    runner = ModelRunner(
        model,
        lambda model, tensors: model(tensors["input_ids"], decoder_input_ids=decoder).logits,
    )
    inputs = of_ids(model, [[2, 17, 9, 33, 3]])
    with pytest.raises(ModelError, match=r"such as latents or a decoder's"):
        find_method("gae")(
            Case(runner, inputs, Target(torch.tensor([4]), position=torch.tensor([2])))
        )
