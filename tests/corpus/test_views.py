"""Words with impact, misleading words and changes of sign, from scores written by hand or drawn."""

from dataclasses import replace

import numpy as np
import pytest

from tests.oracles import corpus as oracle
from wherefrom.core.explanation import TargetInfo
from wherefrom.corpus import Lexicon, bias, overview
from wherefrom.corpus.corpus import NO_LABEL, Corpus
from wherefrom.corpus.views import EVERY_CLASS, Totals
from wherefrom.inputs.table import read_table

CONTRAST = TargetInfo(1, "POSITIVE", 0, "NEGATIVE")


def corpus_of(texts, labels, predicted, classes=("NEGATIVE", "POSITIVE"), target=CONTRAST):
    """A corpus whose texts are lists of pairs (word, relevance)."""
    starts, ends = [], []
    for words in texts:
        position = 0
        for word, _ in words:
            starts.append(position)
            ends.append(position + len(word))
            position += len(word) + 1
    return Corpus(
        texts=tuple(" ".join(word for word, _ in words) for words in texts),
        rows=np.arange(len(texts)),
        labels=np.array([NO_LABEL if label is None else label for label in labels]),
        predicted=np.array(predicted),
        outputs=np.array([sum(score for _, score in words) for words in texts]),
        bounds=np.cumsum([0, *map(len, texts)]),
        starts=np.array(starts),
        ends=np.array(ends),
        scores=np.array([score for words in texts for _, score in words], dtype=np.float32),
        classes=classes,
        target=target,
        method="lrp",
        model="by <hand>",
    )


@pytest.fixture
def small():
    texts = [
        [("good", 2), ("film", 0.5)], [("bad", -3), ("film", -0.5)], [("not", 1), ("Good", -2)],
        [("good", 1), ("bad", -1.5)], [("film", 0.25), ("<b>", 0)],
    ]  # fmt: skip
    return corpus_of(texts, [1, 0, 1, 1, None], [1, 0, 0, 0, 1])


@pytest.fixture(params=range(3))
def drawn(request):
    """Random texts of three classes in which words are repeated, and their plain form."""
    chance = np.random.default_rng(request.param)
    texts = [
        [(str(word), float(np.float32(chance.normal()))) for word in chance.choice([*"abcdefg"], n)]
        for n in chance.integers(1, 6, 30)
    ]
    labels = [None if i % 5 == 0 else int(chance.integers(0, 3)) for i in range(30)]
    predicted = chance.integers(0, 3, 30).tolist()
    return texts, labels, predicted


def test_words_are_counted_without_case_and_ranked_by_impact(small):
    view = overview(small, min_count=1)
    assert [word.word for word in view.words][:2] == ["good", "bad"]
    good = view.words[0]
    assert (good.occurrences, good.texts) == (3, 3)
    assert (good.total, good.impact) == pytest.approx((1.0, 5.0))
    assert good.positive_share == pytest.approx(2 / 3)
    assert view.classes["POSITIVE"][0].word == "not"
    assert view.classes["NEGATIVE"][0].word == "bad"


@pytest.mark.parametrize("min_count", [1, 9, 14])
def test_word_statistics_equal_the_slow_version(drawn, min_count):
    texts, labels, predicted = drawn
    corpus = corpus_of(texts, labels, predicted, tuple("xyz"), None)

    def table(words):
        return {
            w.word: (w.occurrences, w.texts, w.mean, w.total, w.impact, w.positive_share)
            for w in words
        }

    view = overview(corpus, min_count)
    expected = oracle.word_statistics(texts, min_count)
    assert table(view.words).keys() == expected.keys()
    for word, numbers in table(view.words).items():
        assert numbers == pytest.approx(expected[word], rel=1e-12)
    impacts = [word.impact for word in view.words]
    assert impacts == sorted(impacts, reverse=True)
    for index, name in enumerate("xyz"):
        expected = oracle.word_statistics(texts, min_count, predicted, only=index)
        words = table(view.classes[name])
        assert words.keys() == expected.keys()
        assert all(words[word] == pytest.approx(expected[word], rel=1e-12) for word in words)


def test_min_count_is_of_texts_not_of_occurrences():
    texts = [[("again", 1.0)] * 5, [("twice", 1.0)], [("twice", 1.0)]]
    view = overview(corpus_of(texts, [None] * 3, [1] * 3), min_count=2)
    assert [word.word for word in view.words] == ["twice"]
    assert not view.contextual


def test_misleading_words_equal_the_slow_version(drawn):
    texts, labels, predicted = drawn
    view = overview(corpus_of(texts, labels, predicted, ("NEGATIVE", "POSITIVE", "OTHER")))
    expected = oracle.misleading_words(texts, labels, predicted, target=1, against=0)
    assert {word.word for word in view.misleading} == set(expected)
    for word in view.misleading:
        numbers = (word.total, word.texts, word.strongest)
        assert numbers == pytest.approx(expected[word.word], rel=1e-12)
    totals = [word.total for word in view.misleading]
    assert totals == sorted(totals, reverse=True)
    wrong = [i for i, label in enumerate(labels) if label not in (None, predicted[i])]
    assert (view.wrong, view.labelled) == (len(wrong), 24)


def test_a_third_class_is_misled_by_neither_side():
    texts = [[("good", 2.0), ("bad", -1.0)]]
    view = overview(corpus_of(texts, [1], [2], ("NEGATIVE", "POSITIVE", "OTHER")), min_count=1)
    assert view.wrong == 1
    assert not view.misleading


@pytest.mark.parametrize("min_count", [1, 14])
def test_words_of_both_signs_equal_the_slow_version(drawn, min_count):
    texts, labels, predicted = drawn
    view = overview(corpus_of(texts, labels, predicted), min_count)
    expected = oracle.contextual_words(texts, min_count)
    assert {word.word for word in view.contextual} == set(expected)
    for word in view.contextual:
        numbers = (word.positive_sum, word.negative_sum, word.balance, word.swing)
        assert numbers == pytest.approx(expected[word.word], rel=1e-12)
    swings = [word.swing for word in view.contextual]
    assert swings == sorted(swings, reverse=True)


def test_a_word_of_one_sign_does_not_depend_on_context(small):
    view = overview(small, min_count=1)
    assert {word.word for word in view.contextual} == {"good", "film"}


def test_examples_are_the_texts_with_the_highest_and_lowest_relevance():
    texts = [[("word", float(score))] for score in range(50)]
    (word,) = overview(corpus_of(texts, [None] * 50, [1] * 50)).words
    assert word.examples == (*range(49, 34, -1), *range(14, -1, -1))


def test_totals_of_parts_are_those_of_the_whole():
    chance = np.random.default_rng(0)
    texts = [[("word", float(score))] for score in chance.permutation(90)]
    whole = corpus_of(texts, [0] * 90, [1] * 90)
    together, added = Totals(), Totals()
    together.add(whole)
    for part in np.array_split(np.arange(90), 4)[::-1]:
        added.add(whole.chosen(part))
    assert added == together
    examples = together.words[EVERY_CLASS]["word"].examples()
    scores = [texts[row][0][1] for row in examples]
    assert scores == [*range(89, 74, -1), *range(14, -1, -1)]


def test_a_word_misleads_where_the_predicted_class_itself_is_explained():
    texts = [[("good", 2.0), ("bad", -1.0)], [("bad", 0.5), ("good", -3.0)]]
    view = overview(corpus_of(texts, [0, 0], [2, 1], tuple("xyz"), None), min_count=1)
    misleading = {word.word: (word.total, word.texts) for word in view.misleading}
    assert misleading == {"good": (2.0, 1), "bad": (0.5, 1)}


def test_tables_and_summary(small, tmp_path):
    view = overview(small, min_count=1)
    paths = view.write(tmp_path)
    assert {path.name for path in paths} >= {"contextual.csv", "misleading.parquet", "words.csv"}
    labelled = read_table(tmp_path / "texts.csv")
    assert (labelled.texts, labelled.skipped) == (list(small.texts[:4]), {"no label": 1})
    assert read_table(tmp_path / "occurrences.parquet", "word").texts.count("good") == 3
    assert "wrong: 2 of 4" in str(view)
    partly = replace(small, skipped={"empty text": 3})
    summary = str(overview(partly, min_count=99))
    assert "texts (skipped: empty text (3)), relevance" in summary
    assert "  no word occurs in 99 texts or more (min_count)\n" in summary
    assert "none" not in summary
    one = replace(bias(small, Lexicon.of([("not", "a"), ("bad", "b")])), corpus=partly)
    first, group, _, difference, *_ = str(one).splitlines()
    assert "5 texts (skipped: empty text (3)), relevance" in first
    assert group.startswith("  a: 1 name, 1 occurrence in 1 text; ")
    assert difference.endswith(", too few names for a test")


def test_without_labels_no_prediction_is_wrong(small):
    view = overview(replace(small, labels=np.full(5, NO_LABEL)), min_count=1)
    assert (view.wrong, view.labelled, view.misleading) == (0, 0, ())
    assert "wrong" not in str(view)
