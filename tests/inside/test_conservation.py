"""Every cut through a model sums to its output, on families that are built in different ways."""

import numpy as np
import pytest
import torch

from benchmarks.families import IDS, images
from benchmarks.family_rows import Casts
from tests.helpers import assert_unchanged, family_model
from wherefrom import Explainer
from wherefrom.errors import InputError, MethodError
from wherefrom.testing import snapshot

FAMILIES = {
    "bert": "classify",  # norms after each sum
    "gpt2": "write",  # linear layers as addmm
    "llama": "write",  # gated MLPs, fewer key heads
    "albert": "classify",  # one block several times
    "t5": "translate",  # an encoder, whose states enter every block of the decoder
    "mixtral": "write",
    "falcon": "write",  # attention and MLP side by side
    "xlnet": "classify",  # attention as einsum
    "bloom": "write",  # attention as baddbmm
    "mamba": "write",  # no attention
    "vit": "see",
    "swin": "see",  # windows, and fewer rows in later blocks
}


def inside_of(family, method="lrp"):
    task = FAMILIES[family]
    model = family_model(family, task)
    if family == "mixtral":
        model.set_experts_implementation("eager")
    inputs = images(model)[0] if task == "see" else IDS[0]
    explainer = Explainer(model)
    with torch.no_grad(), Casts() as casts:
        explainer(inputs, "random")
    before = snapshot(model)
    inside = explainer.inside(inputs, method)
    assert_unchanged(before, snapshot(model))
    return inside, 1e-5 if casts.narrower else 1e-9


@pytest.mark.parametrize("family", FAMILIES)
def test_every_cut_sums_to_the_output(family):
    inside, tolerance = inside_of(family)
    assert inside.depth >= 2
    size = max(abs(cut.relevance) for cut in inside.cuts)
    for cut in inside.cuts:
        assert cut.total == pytest.approx(inside.output, abs=tolerance * size), cut.moment
    assert np.abs(inside.attention).sum() + np.abs(inside.mlps).sum() > 0 or family == "swin"


@pytest.mark.parametrize("method", ["lrp", "gradient_x_input", "secant"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_each_block_has_its_heads_and_its_neurons_and_no_others(family, method):
    inside, _ = inside_of(family, method)
    places = [(site.place, site.layer) for site in inside.sites]
    assert places == [(place, layer) for layer in (0, 1) for place in ("heads", "neurons")]


@pytest.mark.parametrize("family", ["bert", "llama", "t5", "mixtral"])
def test_parts_sum_to_their_whole(family):
    inside, tolerance = inside_of(family)
    size = tolerance * max(abs(cut.relevance) for cut in inside.cuts)
    for cut in inside.cuts:
        site = cut.moment.site
        if site is None or site.place == "neurons":
            continue
        layer = site.layer
        heads = range(site.first_head, site.first_head + site.heads)
        edges = inside.edges(layer)[site.first_head :][: site.heads]
        for head, weights in zip(heads, edges, strict=True):
            name = f"layer.{layer}.head.{head}"
            assert inside.relevance(name) == pytest.approx(inside.heads[layer, head], abs=size)
            assert weights.sum() == pytest.approx(inside.heads[layer, head], abs=size)
    if family != "mixtral":
        assert inside.neurons(0).sum() == pytest.approx(inside.relevance("layer.0.mlp"), abs=size)
    else:
        met = np.flatnonzero(~np.isnan(inside.experts[0]))
        assert len(met) > 1
        for expert in met:
            relevance = inside.relevance(f"layer.0.expert.{expert}")
            assert relevance == pytest.approx(inside.experts[0, expert], abs=size)


@pytest.mark.parametrize("method", ["lrp", "attn_lrp", "secant"])
def test_the_part_through_components_is_explained_exactly(sentiment, method):
    inside = sentiment.inside("not a good film", method, target="POSITIVE")
    for names in (
        ["layer.0.head.3"],
        ["layer.2@2"],
        ["layer.1.attention@0"],
        ["layer.2.head.1", "layer.2.head.3", "layer.0.mlp"],
    ):
        explanation = inside.through(*names)
        assert explanation.ledger.residual == pytest.approx(0, abs=1e-6)
        if len(names) == 1:
            assert explanation.output == pytest.approx(inside.relevance(names[0]), abs=1e-6)
    parts = [inside.through(f"layer.1@{unit}") for unit in range(len(inside.units))]
    total = np.sum([part.scores for part in parts], 0)
    np.testing.assert_allclose(total, inside.explanation.scores, atol=1e-5)


def test_secants_divide_the_difference_to_another_input(sentiment):
    texts = ["a good and charming film", "a bad and charming film"]
    inside = sentiment.inside(texts[0], target="POSITIVE", reference=texts[1])
    outputs = [sentiment(text, "occlusion", target="POSITIVE").output for text in texts]
    for cut in inside.cuts:
        assert cut.total == pytest.approx(outputs[0] - outputs[1], abs=1e-4)
    changed = [i for i, score in enumerate(inside.explanation.scores) if abs(score) > 1e-6]
    assert [inside.units[i].text for i in changed] == ["good"]


def test_what_cannot_be_read_is_an_error_that_says_so(sentiment):
    inside = sentiment.inside("a good film")
    with pytest.raises(InputError, match=r"no layer\.7: the model has 4 blocks"):
        inside.through("layer.7")
    with pytest.raises(InputError, match="reads 512"):
        inside.relevance("layer.1.neuron.9999")
    with pytest.raises(InputError, match="not units"):
        inside.relevance("layer.1@99")
    with pytest.raises(InputError, match="single input"):
        sentiment.inside(["a", "b"])
    with pytest.raises(MethodError, match="one backward pass"):
        sentiment.inside("a good film", "integrated_gradients")
    with pytest.raises(MethodError, match="no edges"):
        sentiment.inside("a good film", "secant").edges(0)
