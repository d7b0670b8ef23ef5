"""A planted bias is found, its unbiased twin is not accused, and bad input is told plainly."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from tests.corpus import planted
from tests.oracles import corpus as oracle
from wherefrom.corpus import Lexicon, bias, explain_corpus
from wherefrom.corpus.statistics import compare
from wherefrom.errors import InputError
from wherefrom.testing import untouched

SEEDS = range(20)


def study(seed, shift):
    found = explain_corpus(planted.explainer(seed, shift), planted.texts(seed))
    return bias(found, planted.LEXICON)


@pytest.fixture(scope="module")
def made():
    return study(0, 1.0)


def test_a_planted_bias_is_found_with_its_sign():
    found = [study(seed, 1.0).comparisons[0] for seed in SEEDS]
    assert sum(each.differs and each.difference > 0 for each in found) >= 18


def test_an_unbiased_twin_is_not_accused_though_its_occurrences_seem_to_differ():
    studies = [study(seed, 0.0) for seed in SEEDS]
    alarms = sum(each.comparisons[0].differs for each in studies)
    excluded = sum(not e.comparisons[0].low <= 0 <= e.comparisons[0].high for e in studies)
    fooled = sum(
        mannwhitneyu(values["female"], values["male"]).pvalue < 0.05
        for values in (each.distribution() for each in studies)
    )
    # at the level of 5 %, more than three of 20 come up once in sixty
    assert alarms <= 3
    assert excluded <= 3
    assert fooled >= 6  # a test over occurrences is: this data could fool one


def test_relevance_of_a_name_is_that_of_its_tokens_alone(made):
    explainer = planted.explainer(0, 1.0)
    for each, value in list(zip(made.occurrences, made.relevance, strict=True))[:40]:
        text = made.corpus.texts[each.text]
        assert text[each.start : each.end].lower() == each.name
        found = explainer(text, target="POSITIVE", against="NEGATIVE")
        expected = oracle.relevance_of(found, each.start, each.end)
        assert value == pytest.approx(expected, abs=1e-5)


def test_a_name_has_the_median_over_texts_of_the_mean_in_each(made):
    texts = ["Anna good Anna", "Anna bad", "the Boba"]
    found = bias(explain_corpus(planted.explainer(0, 0.0), texts), planted.LEXICON)
    r = found.relevance
    anna = next(each for each in found.entities if each.name == "anna")
    assert anna.value == pytest.approx(((r[0] + r[1]) / 2 + r[2]) / 2)
    assert (anna.occurrences, anna.texts) == (3, (0, 1))


def test_groups_count_names_occurrences_and_texts(made):
    for group in made.groups:
        own = [each for each in made.occurrences if each.group == group.name]
        assert group.occurrences == len(own)
        assert group.names == len({each.name for each in own}) == 20
        assert group.texts == len({each.text for each in own})
        assert group.median == pytest.approx(np.median(made.distribution()[group.name]))


def test_the_naive_view_is_a_correlation_over_all_texts(made):
    for each in made.entities[:5]:
        inside = [i in each.texts for i in range(len(made.corpus))]
        expected = oracle.pearson(inside, made.corpus.outputs)
        assert each.naive.correlation == pytest.approx(expected, abs=1e-9)
        lift = made.corpus.outputs[list(each.texts)].mean() - made.corpus.outputs.mean()
        assert each.naive.lift == pytest.approx(lift)


def test_naive_and_relevance_come_apart_where_a_name_only_keeps_company():
    """A name without weight, always beside the word that decides."""
    texts = [f"great film about {name.title()}" for name in planted.WOMEN]
    texts += [f"dull film about {name.title()}" for name in planted.MEN]
    explainer = planted.explainer(3, 0.0)
    table = explainer.subject.model.get_input_embeddings().weight
    names = explainer.tokenizer.convert_tokens_to_ids([*planted.WOMEN, *planted.MEN])
    table.data[names] = table.data[names[0]].clone()  # the model cannot tell one from another
    found = bias(explain_corpus(explainer, texts), planted.LEXICON)
    naive = {group.name: group.naive.correlation for group in found.groups}
    assert abs(naive["female"]) == pytest.approx(1, abs=1e-3)
    # each group is one sentence over and over: the difference is all of context
    female, male = (found.distribution()[name] for name in ("female", "male"))
    assert np.ptp(female) < 1e-4
    assert np.ptp(male) < 1e-4


def test_the_test_equals_counting_all_divisions():
    a, b = [0.1, 0.5, 0.9, 1.4], [0.2, 0.3, -0.4, 0.0, 0.45]
    (found,) = compare({"a": a, "b": b})
    assert found.p == pytest.approx(oracle.mann_whitney_exact(a, b), abs=1e-12)
    assert found.above == sum(x > y for x in a for y in b) / 20
    assert found.difference == pytest.approx(np.median(a) - np.median(b))
    assert found.low <= found.difference <= found.high


def test_many_groups_are_corrected():
    chance = np.random.default_rng(0)
    values = {name: chance.normal(size=30).tolist() for name in "abcd"}
    values["e"] = (chance.normal(size=30) + 3).tolist()
    found = compare(values)
    assert len(found) == 10
    assert all(each.adjusted >= each.p for each in found)
    assert {(e.first, e.second) for e in found if e.differs} == {(n, "e") for n in "abcd"}


def test_the_bootstrap_interval_covers_as_often_as_it_says():
    chance = np.random.default_rng(1)
    covered = 0
    for seed in range(200):
        a, b = chance.normal(0.5, 1, 40), chance.normal(0, 1, 40)
        (found,) = compare({"a": a, "b": b}, draws=400, seed=seed)
        covered += found.low <= 0.5 <= found.high
    assert 180 <= covered <= 200


def test_values_that_are_all_alike_do_not_differ():
    (found,) = compare({"a": [1.0, 1.0], "b": [1.0, 1.0, 1.0]})
    assert (found.p, found.above, found.differs) == (1.0, 0.5, False)


def test_a_study_leaves_the_model_alone():
    explainer = planted.explainer(0, 0.0)
    with untouched(explainer.subject.model):
        explain_corpus(explainer, planted.texts(0)[:20])


def test_tables_hold_what_was_found(made, tmp_path):
    import pyarrow.parquet

    made.write(tmp_path)
    for stem, count in (("occurrences", 240), ("entities", 40), ("groups", 2), ("comparisons", 1)):
        with (tmp_path / f"{stem}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        table = pyarrow.parquet.read_table(tmp_path / f"{stem}.parquet")
        assert len(rows) == table.num_rows == count
        assert table.column_names == list(rows[0])
    data = json.loads((tmp_path / "bias.json").read_text("utf-8"))
    assert data["comparisons"][0]["differs"] is made.comparisons[0].differs


# Bad input.


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("Zoe", "female"), ("Max", "male")], "none of the 2 names occurs"),
        ([("Anna", "female"), ("Max", "male")], "no name of the group male occurs"),
        ([("Anna", "female")], "all of one group"),
    ],
)
def test_names_that_leave_nothing_to_compare_are_told(made, pairs, message):
    with pytest.raises(InputError, match=message):
        bias(made.corpus, Lexicon.of(pairs))


def test_a_study_without_two_outputs_is_refused(made):
    with pytest.raises(InputError, match="difference of two outputs"):
        bias(replace(made.corpus, target=None), planted.LEXICON)


def test_few_names_are_noted(made):
    found = bias(made.corpus, Lexicon.of([("Anna", "female"), ("Boba", "male"), ("Bobb", "male")]))
    assert any("few names: female (1), male (2)" in note for note in found.notes)
    assert not found.comparisons[0].differs
