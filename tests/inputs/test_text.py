"""Texts as units with exact spans, and words made of them."""

import warnings
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from benchmarks.tiny import model as tiny
from tests.helpers import exactly
from wherefrom import Explainer
from wherefrom.core.explanation import Unit
from wherefrom.errors import OutputDiffers, TextCut, TooLong
from wherefrom.inputs.text import Encoded, encode, fitted

ODD = [
    "The film is GREAT, and not dull.",
    "un-like-able!!",
    "naïve café … “love”",
    "line\none\r\n\n  two\tthree ",
    "电影 is 好",
    "good 👍🏽 film",
    "unlikeable unlikely films",
    "...",
]


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("kind", ["wordpiece", "bytepairs"])
def test_a_unit_is_exactly_the_text_of_its_span(text, kind, request):
    encoded = encode(request.getfixturevalue(kind), text)
    assert encoded.text == text
    spans = [(u.start, u.end, u.text) for u in encoded.units if u.start is not None]
    assert all(text[start:end] == piece for start, end, piece in spans)
    assert not any(unit.special for unit in encoded.units if unit.start is not None)
    # what has no span is special, or a blank that the tokenizer itself trims
    assert {u.text for u in encoded.units if u.start is None} <= {"[CLS]", "[SEP]", "Ġ"}


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("kind", ["wordpiece", "bytepairs"])
def test_words_are_exact_spans_in_order_and_keep_the_sum(text, kind, request, bert, gpt2):
    model = bert if kind == "wordpiece" else gpt2
    tokens = Explainer(model, request.getfixturevalue(kind))(text)
    words = tokens.words()
    placed = [unit for unit in words.units if unit.start is not None]
    spans = [(unit.start, unit.end) for unit in placed]
    assert [text[a:b] for a, b in spans] == [unit.text for unit in placed]
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    exactly(float(words.scores.sum()), float(tokens.scores.sum()), tol=1e-5)
    for kind, part in words.parts.items():
        exactly(float(part.sum()), float(tokens.parts[kind].sum()), tol=1e-5)
    assert words.ledger == tokens.ledger
    assert "".join(unit.text for unit in placed if unit.text.strip()) == "".join(text.split())


@settings(max_examples=30)
@given(text=st.text(min_size=1, max_size=30).filter(str.strip))
def test_any_text_has_exact_spans(text, wordpiece, bytepairs):
    for tokenizer in (wordpiece, bytepairs):
        for unit in encode(tokenizer, text).units:
            assert unit.start is None or text[unit.start : unit.end] == unit.text


def test_the_tokens_of_a_word_are_joined_with_their_scores(bert, wordpiece):
    tokens = Explainer(bert, wordpiece)("Unable films")
    assert [unit.text for unit in tokens.units[1:-1]] == ["Un", "able", "film", "s"]
    words = tokens.words()
    assert [unit.text for unit in words.units] == ["[CLS]", "Unable", "films", "[SEP]"]
    inner = [i for i, unit in enumerate(tokens.units) if unit.word == 0]
    exactly(float(words.scores[1]), float(tokens.scores[inner].sum()), tol=1e-6)


def test_a_long_text_is_refused_with_both_lengths(wordpiece):
    explainer = Explainer(tiny("bert", "classify", max_position_embeddings=6), wordpiece)
    with pytest.raises(TooLong, match=r"has 8 tokens.*takes 6.*truncate=True"):
        explainer("good good good good good good")


def test_a_long_text_is_cut_when_asked_with_its_closing_token_kept(wordpiece):
    explainer = Explainer(tiny("bert", "classify", max_position_embeddings=6), wordpiece)
    with pytest.warns(TextCut, match="cut from 8 to 6 tokens: 2 are not part"):
        explanation = explainer("the film was good and great", truncate=True)
    assert [unit.text for unit in explanation.units] == [
        "[CLS]",
        "the",
        "film",
        "was",
        "good",
        "[SEP]",
    ]
    assert "cut from" in explanation.warnings[0]
    assert explanation.warnings[0] in explanation.to_json()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exactly(explanation.scores, explainer("the film was good", truncate=True).scores, tol=1e-6)


def test_both_of_two_closing_tokens_are_kept():
    closing = (Unit("</s>", special=True), Unit("<end>", special=True))
    units = (*(Unit(word) for word in "abcd"), *closing)
    encoded = Encoded([5, 6, 7, 8, 1, 2], units, "a b c d", types=[0, 0, 0, 0, 1, 1])
    with pytest.warns(UserWarning, match="cut from 6 to 4 tokens"):
        cut = fitted(encoded, 4, truncate=True)
    assert cut.ids == [5, 6, 1, 2]
    assert [unit.text for unit in cut.units] == ["a", "b", "</s>", "<end>"]
    assert cut.types == [0, 0, 1, 1]


@pytest.mark.parametrize("special", ["", "a", "abcd"])
def test_only_closing_tokens_are_kept_of_the_end(special):
    units = tuple(Unit(letter, special=letter in special) for letter in "abcdef")
    with pytest.warns(UserWarning, match="cut from 6 to 4"):
        cut = fitted(Encoded([1, 2, 3, 4, 5, 6], units, "abcdef"), 4, truncate=True)
    assert (cut.ids, cut.cut_from) == ([1, 2, 3, 4], 6)


class Unmasked(nn.Module):
    """The mean of all embeddings: it takes a mask and does not look at it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(60, 4), nn.Linear(4, 2)
        self.double()

    def forward(self, input_ids, attention_mask):
        return self.head(self.table(input_ids).mean(1))


def test_a_model_that_looks_at_padding_is_run_on_one_length_at_a_time(wordpiece):
    explainer = Explainer(Unmasked(), wordpiece)
    texts = ["good", "the film was good and great", "bad film", "dull"]
    reader = explainer._reader("")
    assert reader.pads  # not tried yet
    for text, together in zip(texts, explainer(texts, target=0), strict=True):
        alone = explainer(text, target=0)
        exactly(together.output, alone.output)
        exactly(together.scores, alone.scores, tol=1e-7)
    assert not reader.pads


class MaxPooled(Unmasked):
    """The maximum of all embeddings: whether padding changes the output depends on the text."""

    def forward(self, input_ids, attention_mask):
        return self.head(self.table(input_ids).amax(1))


def test_padding_that_one_text_does_not_show_is_found_all_the_same(wordpiece):
    model = MaxPooled()
    explainer = Explainer(model, wordpiece)
    with torch.no_grad():  # the padding, token 0, changes texts without "good" and "great"
        _, good, great, _ = wordpiece.encode("good great")
        for row, value in {0: 5, good: 10, great: 20}.items():
            model.table.weight[row] = value
    texts = ["good", "the film was great", "bad film", "dull", "the dull film was great fun"]
    reader = explainer._reader("")
    items = reader.read_all(texts)
    lengths = [{len(items[i].ids) for i in chunk} for chunk in reader.chunks(items, 16)]
    assert [len(some) for some in lengths] == [1] * len(lengths)
    for text, together in zip(texts, explainer(texts, target=0), strict=True):
        exactly(together.output, explainer(text, target=0).output)
    assert not reader.pads


class LastToken(Unmasked):
    """Finds the last token by its id, as some decoders do, and ignores what follows it."""

    def forward(self, input_ids, attention_mask):
        assert (input_ids != 0).any(1).all()
        last = (input_ids != 0).int().cumsum(1).argmax(1)
        return self.head(self.table(input_ids)[torch.arange(len(last)), last])


class Placed(Unmasked):
    """Adds the embedding of each place, counted from the left with the padding."""

    def forward(self, input_ids, attention_mask):
        states = self.table(input_ids) + self.table(torch.arange(input_ids.shape[1]))
        mask = attention_mask.unsqueeze(-1)
        return self.head((states.tanh() * mask).sum(1) / mask.sum(1))


@pytest.mark.parametrize("method", ["lrp", "occlusion"])
def test_padding_that_was_passed_and_matters_is_named(method):
    model, ids, mask = Placed(), [[0, 0, 5, 6], [7, 8, 9, 10]], [[0, 0, 1, 1], [1, 1, 1, 1]]
    tensors = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
    explainer = Explainer(model)
    for _ in range(2):
        with pytest.warns(OutputDiffers, match="other outputs with the padding that was passed"):
            left, full = explainer(tensors, method, target=0)
        assert "explained without it" in left.warnings[0]
        assert not full.warnings
        exactly(left.output, explainer([5, 6], method, target=0).output)
    right = {name: rows.flip(1) for name, rows in tensors.items()}
    assert not any(each.warnings for each in explainer(right, method, target=0))


def test_padding_that_was_passed_and_does_not_matter_is_no_caveat(bert, gpt2):
    tensors = {
        "input_ids": torch.tensor([[5, 6, 0, 0], [7, 8, 9, 10]]),
        "attention_mask": torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]),
    }
    for model in (bert, gpt2):
        assert not any(each.warnings for each in Explainer(model)(tensors, target=0))
    left = {name: rows.flip(1) for name, rows in tensors.items()}
    with pytest.warns(OutputDiffers):  # its places are counted from the left
        Explainer(gpt2)(left, target=0)


def test_padding_that_is_found_by_its_id_may_be_used(wordpiece):
    explainer = Explainer(LastToken(), wordpiece)
    reader = explainer._reader("")
    items = reader.read_all(["good", "the film was good and great", "bad film"])
    assert reader.chunks(items, 16) == [[0, 2, 1]]
    assert not reader.pads  # each batch is checked


def test_a_model_that_ignores_padding_is_run_on_several_lengths(bert, wordpiece):
    reader = Explainer(bert, wordpiece)._reader("")
    items = reader.read_all(["good", "the film was good and great"])
    assert reader.chunks(items, 16) == [[0, 1]]
    assert reader.pads


def test_ids_beyond_the_tables_of_a_model_are_refused_by_name(bert):
    explainer = Explainer(bert)
    for ids in ([2, 500, 3], [2, -1, 3]):
        with pytest.raises(ValueError, match="0 to 119"):
            explainer(ids)


def test_a_table_of_positions_that_begins_late_refuses_in_time():
    explainer = Explainer(tiny("roberta", "classify", max_position_embeddings=8))
    assert len(explainer([5] * 7).scores) == 7  # its padding id is 0: places begin at 1
    with pytest.raises(TooLong):
        explainer([5] * 8)


def test_padding_has_no_say(bert, wordpiece):
    explainer = Explainer(bert, wordpiece)
    short, _ = explainer(["good", "the film was good and great"])
    exactly(short.scores, explainer("good").scores, tol=1e-6)
    assert short.ledger.of("padding") == 0.0
    assert len(short.units) == 3


def test_a_single_token_is_explained(gpt2):
    explanation = Explainer(gpt2)([5])
    assert explanation.scores.shape == (1,)
    logits = gpt2(torch.tensor([[5]])).logits.detach()
    exactly(explanation.output, float(logits.max()))
    assert explanation.ledger.relative < 1e-9
