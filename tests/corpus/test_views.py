"""The words that push, mislead and turn, from numbers put in by hand."""

import numpy as np
import pytest

from wherefrom.corpus import overview
from wherefrom.corpus.corpus import Corpus
from wherefrom.explanation import TargetInfo
from wherefrom.inputs.table import read_table

TEXTS = ("good film", "bad film", "not Good", "good bad", "film <b>")
SCORES = ((2, 0.5), (-3, -0.5), (1, -2), (1, -1.5), (0.25, 0.0))


@pytest.fixture
def corpus():
    spans = [[(0, t.index(" ")), (t.index(" ") + 1, len(t))] for t in TEXTS]
    return Corpus(
        texts=TEXTS,
        rows=np.arange(5),
        labels=np.array([1, 0, 1, 1, -1]),
        predicted=np.array([1, 0, 0, 0, 1]),
        outputs=np.array([2.5, -3.5, -1.0, -0.5, 0.25]),
        bounds=np.arange(0, 11, 2),
        starts=np.array([a for pair in spans for a, _ in pair]),
        ends=np.array([b for pair in spans for _, b in pair]),
        scores=np.array(SCORES, dtype=np.float32).ravel(),
        classes=("NEGATIVE", "POSITIVE"),
        target=TargetInfo(1, "POSITIVE", 0, "NEGATIVE"),
        method="lrp",
        model="made <by> hand",
    )


def test_words_are_counted_without_case_and_ranked_by_push(corpus):
    view = overview(corpus, min_count=1)
    good = next(each for each in view.words if each.word == "good")
    assert (good.occurrences, good.texts) == (3, 3)
    assert (good.total, good.push) == pytest.approx((1.0, 5.0))
    assert good.positive == pytest.approx(2 / 3)
    assert [each.word for each in view.words][:2] == ["good", "bad"]
    assert view.classes["POSITIVE"][0].word == "not"
    assert view.classes["NEGATIVE"][0].word == "bad"
    assert {each.word for each in overview(corpus, min_count=3).words} == {"good", "film"}


def test_wrong_predictions_name_the_words_that_misled(corpus):
    view = overview(corpus, min_count=1)
    assert view.wrong == (2, 3)
    assert view.labelled == 4
    found = {each.word: (each.texts, each.first, each.total) for each in view.misleading}
    assert found == {"good": (1, 1, 2.0), "bad": (1, 1, 1.5)}  # both spoke for NEGATIVE


def test_turning_words_weigh_on_both_sides(corpus):
    view = overview(corpus, min_count=1)
    first = view.turning[0]
    assert first.word == "good"
    assert (first.towards, first.away, first.balance) == pytest.approx((3.0, -2.0, 2 / 3))
    assert first.swing == pytest.approx(2 / 3)
    assert "bad" not in {each.word for each in view.turning}  # always against


def test_of_the_predicted_class_words_are_ranked_in_its_own_texts(corpus):
    from dataclasses import replace

    view = overview(replace(corpus, target=None), min_count=1)
    assert [(w.word, w.mean) for w in view.classes["POSITIVE"]][:1] == [("good", 2.0)]
    assert "bad" not in {w.word for w in view.classes["POSITIVE"]}


def test_tables_and_summary(corpus, tmp_path):
    view = overview(corpus, min_count=1)
    view.write(tmp_path)
    labelled = read_table(tmp_path / "texts.csv")
    assert (labelled.texts, labelled.skipped) == (list(TEXTS[:4]), {"no label": 1})
    assert read_table(tmp_path / "occurrences.parquet", "word").texts.count("good") == 3
    assert "wrong: 2 of 4" in str(view)
