"""The embedded input: which of its places hold a unit."""

import torch

from benchmarks.tiny import model as tiny
from tests.methods.calling import family, of_ids, same, scores
from wherefrom import Explainer
from wherefrom.methods.embedded_inputs import EmbeddedInputs, baseline_values


def embedded(family, task, rows):
    explainer = Explainer(tiny(family, task))
    reader = explainer.reader(rows)
    inputs = reader.batch(reader.read_all(rows))
    return explainer.subject, inputs, EmbeddedInputs.capture(explainer.subject, inputs)[0]


def test_padding_is_no_valid_place():
    _, _, places = embedded("bert", "classify", [[5, 9, 8, 17], [7, 6]])
    expected = [[True, True, True, True], [True, True, False, False]]
    assert places.valid_mask(0).tolist() == expected


def test_padding_of_the_encoder_is_no_valid_place_and_the_decoder_has_its_own(t5):
    _, _, places = embedded("t5", "translate", [[5, 9, 8], [7]])
    assert [span.field for span in places.spans] == [0, 1]
    assert places.valid_mask(0).tolist() == [[True, True, True], [True, False, False]]
    assert places.valid_mask(1).tolist() == [[True], [True]]


def test_a_baseline_leaves_padding_as_it_is():
    subject, inputs, places = embedded("bert", "classify", [[5, 9, 8, 17], [7, 6]])
    (blank,) = baseline_values(subject, inputs, places, torch.ones(1))
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
