"""Two texts as one input: every way to pass them, both halves named, their types kept."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from benchmarks.tiny import model as tiny
from tests.helpers import exactly
from wherefrom import Explainer, evaluate, load, read_table
from wherefrom.errors import InputError, OutputDiffers
from wherefrom.inputs.records import TextPair

PAIR = ("The film is great.", "I love the movie")
OTHER = ("it was dull", "the script is unlikeable and not good")


@pytest.fixture(scope="module")
def model():
    model = tiny("bert", "classify", id2label={0: "no", 1: "yes", 2: "maybe"})
    with torch.no_grad():  # types that cannot be overlooked
        model.bert.embeddings.token_type_embeddings.weight[1] *= 20
    return model


@pytest.fixture(scope="module")
def explainer(model, pair_wordpiece):
    return Explainer(model, pair_wordpiece)


def logits(model, tokenizer, first, second):
    with torch.no_grad():
        return model(**tokenizer(first, second, return_tensors="pt")).logits[0]


def ways(tokenizer):
    """Every way to pass one pair."""
    return {
        "tuple": (PAIR, {}),
        "TextPair": (TextPair(*PAIR), {}),
        "text_pair": (PAIR[0], {"text_pair": PAIR[1]}),
        "dict": ({"text": PAIR[0], "text_pair": PAIR[1]}, {}),
        "premise": ({"premise": PAIR[0], "hypothesis": PAIR[1]}, {}),
        "tokenizer": (tokenizer(*PAIR), {}),
        "list": ([PAIR], {}),
        "lists": ([PAIR[0]], {"text_pair": [PAIR[1]]}),
        "dicts": ([{"sentence1": PAIR[0], "sentence2": PAIR[1]}], {}),
        "batch": (tokenizer(*PAIR, return_tensors="pt"), {}),
        "list of what a tokenizer gives": ([tokenizer(*PAIR)], {}),
    }


@pytest.mark.parametrize("way", ways(lambda *args, **options: None))
def test_a_pair_is_one_input_with_its_types(way, explainer, model, pair_wordpiece):
    inputs, options = ways(pair_wordpiece)[way]
    explained = explainer(inputs, target="yes", **options)
    if way in ("list", "lists", "dicts", "batch", "list of what a tokenizer gives"):
        (explained,) = explained
    exactly(explained.output, float(logits(model, pair_wordpiece, *PAIR)[1]))
    halves = {name: [u for u in explained.units if u.field == name] for name in _fields(explained)}
    assert [len(units) for units in halves.values()] == [5, 4]
    assert explained.units[0].special
    assert not explained.units[0].field


def _fields(explanation):
    return list(dict.fromkeys(unit.field for unit in explanation.units if unit.field))


def test_the_types_matter_here(model, pair_wordpiece):
    ids = pair_wordpiece(*PAIR)["input_ids"]
    with torch.no_grad():
        without = model(torch.tensor([ids])).logits[0]
    assert not torch.allclose(without, logits(model, pair_wordpiece, *PAIR), rtol=0.1)


def test_both_halves_are_spans_of_one_text_and_words_do_not_cross(explainer):
    explained = explainer(PAIR)
    assert explained.text == "The film is great.\nI love the movie"
    for unit in explained.units:
        assert unit.special or explained.text[unit.start : unit.end] == unit.text
    assert [u.text for u in explained.units if u.field == "second"] == "I love the movie".split()
    words = explained.words()
    assert [u.text for u in words.units if u.field == "first"] == [
        "The",
        "film",
        "is",
        "great",
        ".",
    ]


def test_the_columns_name_the_halves(explainer):
    explained = explainer({"premise": PAIR[0], "hypothesis": PAIR[1]})
    assert _fields(explained) == ["premise", "hypothesis"]


def test_a_list_of_two_texts_is_two_inputs(explainer):
    assert [e.text for e in explainer(list(PAIR))] == list(PAIR)


def test_pairs_and_texts_share_a_list(explainer, model, pair_wordpiece):
    three = explainer([PAIR, "good", OTHER], target=0)
    exactly(three[0].output, float(logits(model, pair_wordpiece, *PAIR)[0]))
    exactly(three[2].output, float(logits(model, pair_wordpiece, *OTHER)[0]))
    exactly(three[1].scores, explainer("good", target=0).scores, tol=1e-6)


def test_what_has_types_never_shares_a_batch_with_what_has_none(explainer):
    reader = explainer._reader("")
    items = reader.read_all([PAIR, [2, 5, 3], OTHER])
    assert sorted(map(sorted, reader.chunks(items, 16))) == [[0, 2], [1]]


def test_padding_of_a_batch_on_either_side_is_left_out(explainer, pair_wordpiece):
    expected = [explainer(pair, target=1) for pair in (PAIR, OTHER)]
    for side in ("left", "right"):
        batch = pair_wordpiece(
            [PAIR[0], OTHER[0]], [PAIR[1], OTHER[1]], padding=True, padding_side=side
        )
        # BERT counts places from the left, padding included
        with pytest.warns(OutputDiffers) if side == "left" else nullcontext():
            results = explainer(batch, target=1)
        for explained, alone in zip(results, expected, strict=True):
            exactly(explained.output, alone.output)
            exactly(explained.scores, alone.scores, tol=1e-6)


def test_a_forward_of_the_users_gets_the_types(model, pair_wordpiece):
    seen = {}

    def forward(model, inputs):
        seen.update(inputs)
        return model(**inputs).logits

    explained = Explainer(model, pair_wordpiece, forward=forward)(PAIR, target=1)
    exactly(explained.output, float(logits(model, pair_wordpiece, *PAIR)[1]))
    assert seen["token_type_ids"].sum() == 5


def test_an_evaluation_keeps_the_types_of_what_it_erases(explainer, model, pair_wordpiece):
    reader = explainer._reader("")
    (item,) = reader.read_all([PAIR])
    present = np.ones((2, len(item.ids)), dtype=bool)
    present[1, 2] = False
    tensors = reader.collate(reader.erased(item, present, None))
    encoded = pair_wordpiece(*PAIR, return_tensors="pt")
    with torch.no_grad():
        outputs = model(**tensors).logits
        exactly(outputs[0], logits(model, pair_wordpiece, *PAIR))
        encoded["input_ids"][0, 2] = pair_wordpiece.unk_token_id
        exactly(outputs[1], model(**encoded).logits[0])
    first, second = (reader.erased(i, present[:1], None)[0] for i in (item, item))
    assert reader.key(first) == reader.key(second)
    untyped = (first[0], np.zeros_like(first[1]))
    assert reader.key(untyped) != reader.key(first)


def test_pairs_are_evaluated(explainer):
    rows = [(PAIR, "yes"), (OTHER, "no")]
    result = evaluate(explainer, rows, ["lrp", "random"], ["activation"])
    assert result.samples == 2
    by_column = [{"premise": a, "hypothesis": b, "label": label} for (a, b), label in rows]
    again = evaluate(explainer, by_column, ["lrp", "random"], ["activation"])
    assert again.values["lrp"] == result.values["lrp"]


def test_a_file_has_pairs(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("premise,hypothesis,label\na film,a movie,1\n,missing,0\n", encoding="utf-8")
    table = read_table(path)
    assert table.texts == [TextPair("a film", "a movie", ("premise", "hypothesis"))]
    assert table.skipped == {"empty text": 1}
    assert read_table(path, text_column="hypothesis").texts == ["a movie", "missing"]
    path.write_text("body,other,text\na film,a movie,x\n", encoding="utf-8")
    assert read_table(path, "body", pair_column="other").texts == [
        TextPair("a film", "a movie", ("body", "other"))
    ]


@pytest.mark.parametrize(
    ("inputs", "options", "says"),
    [
        (("good", " "), {}, "second text of the pair: the text is empty"),
        (("\ud800", "good"), {}, "first text of the pair: character 1"),
        ("good", {"text_pair": ["bad"]}, "text_pair must be a text if"),
        (["good", "bad"], {"text_pair": ["bad"]}, "2 texts, but 1 in text_pair"),
        ([["good", "film"]], {}, "A pair of texts is a tuple"),
        ({"input_ids": [2, 5, 3], "token_type_ids": [0]}, {}, "different numbers of tokens"),
        ({"input_ids": [2, 5, 3], "bbox": [0]}, {}, "cannot explain a dict of input_ids, bbox"),
        ({"premise": "good"}, {}, "no column looks like the text"),
    ],
)
def test_pairs_that_cannot_be_read(inputs, options, says, explainer):
    with pytest.raises(InputError, match=says):
        explainer(inputs, **options)


def test_the_embedded_model_reads_pairs():
    explained = load("sentiment")(("a fine film", "a dull one"))
    assert _fields(explained) == ["first", "second"]
    assert explained.ledger.relative < 1e-4
