"""The embedded input: which of its rows hold a unit."""

import pytest
import torch
from torch import nn

from benchmarks.tiny import model as tiny
from tests.helpers import normal
from tests.methods.calling import family, of_ids, of_tensor, same, scores
from wherefrom import Explainer, method
from wherefrom.core.runner import ModelRunner
from wherefrom.core.target import Case, Target
from wherefrom.errors import MethodError
from wherefrom.methods.embedded_inputs import EmbeddedInputs, baseline_values


def embedded(family, task, rows):
    explainer = Explainer(tiny(family, task))
    reader = explainer._reader(rows)
    inputs = reader.batch(reader.read_all(rows))
    return EmbeddedInputs.capture(Case(explainer.runner, inputs))


def test_padding_is_no_valid_place():
    places = embedded("bert", "classify", [[5, 9, 8, 17], [7, 6]])
    expected = [[True, True, True, True], [True, True, False, False]]
    assert places.valid_mask(0).tolist() == expected


def test_padding_of_the_encoder_is_no_valid_place_and_the_decoder_has_its_own(t5):
    places = embedded("t5", "translate", [[5, 9, 8], [7]])
    assert [span.field for span in places.spans] == [0, 1]
    assert places.valid_mask(0).tolist() == [[True, True, True], [True, False, False]]
    assert places.valid_mask(1).tolist() == [[True], [True]]


def test_a_baseline_leaves_padding_as_it_is():
    places = embedded("bert", "classify", [[5, 9, 8, 17], [7, 6]])
    (blank,) = baseline_values(places, torch.ones(1))
    assert bool((blank[0] == 1).all())
    assert bool((blank[1, :2] == 1).all())
    assert torch.equal(blank[1, 2:], places.values[0][1, 2:])
    assert not bool((blank[1, 2:] == 1).any())


def test_a_token_stands_in_for_the_tokens_of_a_decoder_too():
    model, source, written, target = family("t5", "translate"), [5, 17, 33, 8], [1, 44, 21], 9

    def output(ids, prefix):
        given = {"input_ids": torch.tensor([ids]), "decoder_input_ids": torch.tensor([prefix])}
        return float(model(**given).logits[0, -1, target].detach())

    def without(ids):
        return [[3 if at == place else number for at, number in enumerate(ids)]
                for place in range(len(ids))]  # fmt: skip

    outputs = [output(ids, written) for ids in without(source)]
    outputs += [output(source, prefix) for prefix in without(written)]
    expected = [output(source, written) - each for each in outputs]
    actual = scores(model, of_ids(model, [source], written), "occlusion", target, baseline=3)
    same(actual[0], expected)


def test_occlusion_by_removal_takes_a_token_out_of_the_mask(bert):
    ids, others = [5, 17, 33, 8], [7, 6]
    inputs = of_ids(bert, [ids, others])
    expected = []
    for place in range(len(ids)):
        mask = torch.ones(1, len(ids), dtype=torch.long)
        whole = bert(torch.tensor([ids]), attention_mask=mask).logits[0, 1]
        mask[0, place] = 0
        less = bert(torch.tensor([ids]), attention_mask=mask).logits[0, 1]
        expected.append(float((whole - less).detach()))
    target = Target(torch.tensor([1, 1]))
    actual = method("occlusion", baseline="remove")(Case(ModelRunner(bert), inputs, target))
    same(actual.values[0], expected)
    assert actual.values[1, 2:].tolist() == [0, 0]


def test_occlusion_by_removal_needs_a_mask(rng):
    with pytest.raises(MethodError, match="which units exist"):
        scores(nn.Flatten(), of_tensor(normal(rng, 1, 3, 2)), "occlusion", 0, baseline="remove")
