"""Relevance patching: real patches equal module hooks; estimates sum to the outputs' difference."""

import numpy as np
import pytest
import torch

from wherefrom.errors import InputError

CLEAN, CORRUPTED = "a good and charming film", "a bad and charming film"


@pytest.fixture(scope="module")
def patching(sentiment):
    return sentiment.patching(CLEAN, CORRUPTED, "POSITIVE")


def outputs(sentiment):
    return [sentiment(t, "occlusion", target="POSITIVE").output for t in (CLEAN, CORRUPTED)]


def test_real_patches_are_those_of_module_hooks(sentiment, patching):
    model = sentiment.runner.model
    layers = model.bert.encoder.layer
    places = {
        "layer.2@0": (layers[2], (0,)),
        "layer.1.attention@2": (layers[1].attention.output.dense, (2,)),
        "layer.1.head.2": (layers[1].attention.output.dense, (slice(None), slice(64, 96))),
        "layer.0.mlp@2": (layers[0].output.dense, (2,)),
    }
    ids = [torch.tensor([sentiment.tokenizer(text)["input_ids"]]) for text in (CLEAN, CORRUPTED)]

    def logit(ids):
        with torch.no_grad():
            return float(model(ids)[0][0, 1])

    clean = logit(ids[0])
    for name, (module, at) in places.items():
        kept = []
        handle = module.register_forward_pre_hook(lambda _, a, kept=kept: kept.append(a[0].clone()))
        logit(ids[1])
        handle.remove()

        def patch(_, args, kept=kept, at=at):
            x = args[0].clone()
            x[0][at] = kept[0][0][at]
            return (x, *args[1:])

        handle = module.register_forward_pre_hook(patch)
        expected = logit(ids[0]) - clean
        handle.remove()
        (found,) = patching.verify([name])
        assert found.effect == pytest.approx(expected, abs=1e-5)
        assert found.estimate == pytest.approx(patching.estimate(name))


def test_estimates_of_each_layer_sum_to_the_difference_of_the_outputs(sentiment, patching):
    clean, corrupted = outputs(sentiment)
    for layer in patching.estimates["stream"]:
        assert layer.sum() == pytest.approx(corrupted - clean, abs=1e-4)
    assert np.allclose(patching.estimates["head"].sum(1), patching.estimates["attention"])


def test_patching_the_whole_first_stream_gives_the_corrupted_output(sentiment, patching):
    clean, corrupted = outputs(sentiment)
    (whole,) = patching.verify(["layer.0"])
    assert whole.effect == pytest.approx(corrupted - clean, abs=1e-5)
    assert whole.estimate == pytest.approx(corrupted - clean, abs=1e-4)


def test_agreement_is_over_each_kind(patching):
    top = patching.top(30)
    sizes = [abs(item.estimate) for item in top]
    assert sizes == sorted(sizes, reverse=True)
    agreement = patching.agreement(top)
    assert sum(item.count for item in agreement.values()) == 30
    stream = [(item.estimate, item.effect) for item in top if item.component.kind == "stream"]
    expected = np.corrcoef(np.array(stream).T)[0, 1]
    assert agreement["stream"].correlation == pytest.approx(expected)


def test_inputs_of_two_lengths_are_refused(sentiment):
    with pytest.raises(InputError, match="same length"):
        sentiment.patching(CLEAN, "a film")
