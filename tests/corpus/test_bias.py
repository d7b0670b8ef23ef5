"""A planted bias is found, its unbiased twin is not accused, and bad input is an error."""

import csv
import json
import math
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

import wherefrom
from tests.corpus import planted
from tests.oracles import corpus as oracle
from wherefrom.corpus import Lexicon, bias, explain_corpus
from wherefrom.corpus.statistics import compare, naive_view
from wherefrom.errors import InputError
from wherefrom.testing import untouched


def study(seed, shift, **settings):
    method = wherefrom.method("lrp", **settings)
    corpus = explain_corpus(planted.explainer(seed, shift), planted.texts(seed), method)
    return bias(corpus, planted.LEXICON)


@pytest.fixture(scope="module")
def planted_study():
    return study(0, 1.0)


def seeds(few, many):
    """A few seeds always, and as many as the documentation reports with the slow tests."""
    return pytest.mark.parametrize(
        "count", [few, pytest.param(many, marks=pytest.mark.slow)], ids=str
    )


@pytest.mark.parametrize(("settings", "share"), [({}, 0.8), ({"root": None}, 0.9)])
@seeds(6, 20)
def test_a_planted_bias_is_found_with_its_sign(count, settings, share):
    pairs = [study(seed, 1.0, **settings).comparisons[0] for seed in range(count)]
    assert sum(pair.differs and pair.difference > 0 for pair in pairs) >= share * count - 1


@seeds(6, 20)
def test_an_unbiased_twin_is_not_accused_though_its_occurrences_seem_to_differ(count):
    studies = [study(seed, 0.0) for seed in range(count)]
    pairs = [study.comparisons[0] for study in studies]
    fooled = sum(
        mannwhitneyu(values["female"], values["male"]).pvalue < 0.05
        for values in (study.distribution() for study in studies)
    )
    # at the 5 % level, more than 3 of 20 (or 1 of 6) come up once in 60 (or 30)
    limit = 3 if count == 20 else 1
    assert sum(pair.differs for pair in pairs) <= limit
    assert sum(not pair.low <= 0 <= pair.high for pair in pairs) <= limit
    assert fooled >= 0.3 * count  # this data does fool a test over occurrences


def test_relevance_of_a_name_is_that_of_its_tokens_alone(planted_study):
    explainer = planted.explainer(0, 1.0)
    pairs = list(zip(planted_study.occurrences, planted_study.relevance, strict=True))
    for occurrence, value in pairs[::24]:
        text = planted_study.corpus.texts[occurrence.text]
        assert text[occurrence.start : occurrence.end].lower() == occurrence.name
        method = planted_study.corpus.method
        explanation = explainer(text, method, target="POSITIVE", against="NEGATIVE")
        expected = oracle.relevance_of(explanation, occurrence.start, occurrence.end)
        assert value == pytest.approx(expected, abs=1e-5)


def test_a_name_has_the_median_over_texts_of_the_mean_in_each():
    """Three and four occurrences in a text, and three texts, tell a mean from a median."""
    texts = ["Anna good Anna was bad Anna", "Anna bad Anna of Anna with great Anna", "Anna is dull",
             "the Boba"]  # fmt: skip
    small = bias(explain_corpus(planted.explainer(0, 0.0), texts), planted.LEXICON)
    pairs = [
        (occurrence.text, value)
        for occurrence, value in zip(small.occurrences, small.relevance, strict=True)
        if occurrence.name == "anna"
    ]
    anna = next(entity for entity in small.entities if entity.name == "anna")
    assert (anna.occurrences, anna.texts) == (8, (0, 1, 2))
    assert anna.value == pytest.approx(oracle.value_of_name(pairs), rel=1e-12)
    medians = [median(value for text, value in pairs if text == i) for i in range(3)]
    assert anna.value != pytest.approx(median(medians), rel=1e-3)  # these texts can tell
    assert anna.value != pytest.approx(math.fsum(value for _, value in pairs) / 8, rel=1e-3)


def test_groups_count_names_occurrences_and_texts(planted_study):
    for group in planted_study.groups:
        members = [each for each in planted_study.occurrences if each.group == group.name]
        assert group.occurrences == len(members)
        assert group.names == len({each.name for each in members}) == 20
        assert group.texts == len({each.text for each in members})
        values = sorted(planted_study.distribution()[group.name])
        assert group.median == pytest.approx(median(values), rel=1e-12)
        names = [e.value for e in planted_study.entities if e.group == group.name]
        assert group.median_of_names == pytest.approx(median(names), rel=1e-12)


def test_the_naive_view_is_a_correlation_over_all_texts(planted_study):
    outputs = planted_study.corpus.outputs
    for entity in planted_study.entities[:5]:
        inside = [i in entity.texts for i in range(len(outputs))]
        expected = oracle.pearson(inside, outputs)
        assert entity.naive.correlation == pytest.approx(expected, rel=1e-9)
        lift = math.fsum(outputs[list(entity.texts)]) / len(entity.texts) - outputs.mean()
        assert entity.naive.lift == pytest.approx(lift, rel=1e-9)


@pytest.mark.parametrize(
    ("outputs", "texts", "lift"),
    [([0.1] * 9, [1, 2], 0.0), ([1.0, 2.0, 4.5], [0, 1, 2], 0.0), ([1.0, 2.0], [], 0.0)],
)
def test_the_naive_correlation_of_a_constant_is_zero(outputs, texts, lift):
    view = naive_view(np.array(outputs), texts)
    assert (view.texts, view.correlation) == (len(texts), 0.0)
    assert view.lift == pytest.approx(lift, abs=1e-15)


def test_naive_view_and_relevance_disagree_where_only_the_context_decides():
    """The model cannot tell one name from another, but each group stands by one other word."""
    texts = [f"great film about {name.title()}" for name in planted.WOMEN]
    texts += [f"dull film about {name.title()}" for name in planted.MEN]
    explainer = planted.explainer(3, 0.0)
    table = explainer.runner.model.get_input_embeddings().weight
    names = explainer.tokenizer.convert_tokens_to_ids([*planted.WOMEN, *planted.MEN])
    table.data[names] = table.data[names[0]].clone()
    same = bias(explain_corpus(explainer, texts), planted.LEXICON)
    correlation = {group.name: group.naive.correlation for group in same.groups}
    assert abs(correlation["female"]) == pytest.approx(1, abs=1e-3)
    # each group is one sentence over and over: all of the difference is context
    for values in same.distribution().values():
        assert np.ptp(values) < 1e-4


def test_comparison_equals_counting_all_divisions_and_drawing_names():
    a, b = [0.1, 0.5, 0.9, 1.4], [0.2, 0.3, -0.4, 0.0, 0.45]
    (pair,) = compare({"a": a, "b": b}, draws=300, seed=5)
    assert pair.p == pytest.approx(oracle.mann_whitney_exact(a, b), abs=1e-12)
    assert pair.above == sum(x > y for x in a for y in b) / 20
    assert pair.difference == pytest.approx(median(a) - median(b), rel=1e-12)
    expected = oracle.interval_of_medians(a, b, draws=300, seed=5)
    assert (pair.low, pair.high) == pytest.approx(expected, rel=1e-12)
    assert pair.names == (4, 5)


def test_the_interval_of_single_names_is_their_difference():
    (pair,) = compare({"a": [2.0], "b": [0.5]})
    assert (pair.low, pair.difference, pair.high) == (1.5, 1.5, 1.5)


@pytest.mark.parametrize(
    ("few", "enough"), [((3, 4), (3, 5)), ((2, 7), (2, 8)), ((1, 60), (4, 4)), ((1, 1), (9, 4))]
)
def test_a_test_needs_names(few, enough):
    for sizes, testable in ((few, False), (enough, True)):
        low = list(np.linspace(0, 1, sizes[0]))
        high = list(np.linspace(2, 3, sizes[1]))  # all names apart: the smallest p there is
        (pair,) = compare({"a": low, "b": high}, draws=50)
        assert (pair.testable, pair.differs) == (testable, testable)


def test_many_groups_are_corrected():
    chance = np.random.default_rng(0)
    values = {name: chance.normal(size=30).tolist() for name in "abcd"}
    values["e"] = (chance.normal(size=30) + 3).tolist()
    pairs = compare(values, draws=50)
    assert len(pairs) == 10
    assert all(pair.adjusted >= pair.p for pair in pairs)
    assert {(p.first, p.second) for p in pairs if p.differs} == {(name, "e") for name in "abcd"}


def test_the_bootstrap_interval_covers_as_often_as_it_says():
    chance = np.random.default_rng(1)
    covered = 0
    for seed in range(200):
        a, b = chance.normal(0.5, 1, 40), chance.normal(0, 1, 40)
        (pair,) = compare({"a": a, "b": b}, draws=200, seed=seed)
        covered += pair.low <= 0.5 <= pair.high
    assert 180 <= covered <= 200


def test_values_that_are_all_equal_do_not_differ():
    (pair,) = compare({"a": [1.0, 1.0], "b": [1.0, 1.0, 1.0]})
    assert (pair.p, pair.above, pair.differs) == (1.0, 0.5, False)


def test_a_study_leaves_the_model_alone():
    explainer = planted.explainer(0, 0.0)
    with untouched(explainer.runner.model):
        explain_corpus(explainer, planted.texts(0)[:20])


def test_tables_hold_the_whole_study(planted_study, tmp_path):
    import pyarrow.parquet

    planted_study.write(tmp_path)
    for stem, count in (("occurrences", 240), ("entities", 40), ("groups", 2), ("comparisons", 1)):
        with (tmp_path / f"{stem}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        table = pyarrow.parquet.read_table(tmp_path / f"{stem}.parquet")
        assert len(rows) == table.num_rows == count
        assert table.column_names == list(rows[0])
        assert not any("{" in column or "(" in cell for row in rows for column, cell in row.items())
    data = json.loads((tmp_path / "bias.json").read_text("utf-8"))
    assert data["comparisons"][0]["differs"] is planted_study.comparisons[0].differs


# Bad input.


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("Zoe", "female"), ("Max", "male")], "none of the 2 names occurs"),
        ([("Anna", "female"), ("Max", "male")], "no name of the group male occurs"),
        ([("Anna", "female")], "all names are in one group"),
    ],
)
def test_names_that_leave_nothing_to_compare_are_an_error(planted_study, pairs, message):
    with pytest.raises(InputError, match=message):
        bias(planted_study.corpus, Lexicon.of(pairs))


def test_a_study_without_two_outputs_is_an_error(planted_study):
    with pytest.raises(InputError, match="difference of two outputs"):
        bias(replace(planted_study.corpus, target=None), planted.LEXICON)


def test_a_study_tells_its_settings(planted_study):
    study = bias(
        planted_study.corpus,
        planted.LEXICON,
        stop=("zoe", "max"),
        draws=50,
        seed=3,
        ordinary="keep",
    )
    assert study.settings == {
        **planted_study.settings,
        "stop": ["max", "zoe"],
        "draws": 50,
        "seed": 3,
        "ordinary": "keep",
    }


def test_few_names_are_noted(planted_study):
    pairs = [("Anna", "female"), ("Boba", "male"), ("Bobb", "male")]
    small = bias(planted_study.corpus, Lexicon.of(pairs))
    assert any("few names: female (1), male (2)" in note for note in small.notes)
    (pair,) = small.comparisons
    assert not pair.differs
    assert pair.low <= pair.difference <= pair.high


@pytest.mark.parametrize(("ordinary", "note"), [("drop", "were excluded"), ("keep", "were kept")])
def test_lower_case_texts_are_noted(ordinary, note):
    texts = ["anna good", "boba bad"]
    lexicon = Lexicon.of([("Anna", "female"), ("Boba", "male")])
    study = bias(explain_corpus(planted.explainer(0, 0.0), texts), lexicon, ordinary=ordinary)
    assert any("lower case" in line and note in line for line in study.notes)
