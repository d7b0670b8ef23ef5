"""The reports of a corpus: whole, escaped, with nothing from elsewhere."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from tests.corpus import planted
from wherefrom.corpus import Lexicon, bias, explain_corpus, overview
from wherefrom.corpus.statistics import GroupComparison
from wherefrom.errors import InputError
from wherefrom.inputs.table import Rows
from wherefrom.show.corpus import is_function_word, render_bias, render_overview

EVIL = "Anna </script><script>alert(1)</script> <!-- good Boba"


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.data, self.inside = [], "", False

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = ("id", "data") in attrs

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        self.data += data if self.inside else ""


@pytest.fixture(scope="module")
def corpus():
    texts = [EVIL, *planted.texts(0)[:30]]
    return explain_corpus(planted.explainer(0, 0.0), Rows(texts, [1] * len(texts)))


@pytest.fixture(scope="module")
def study(corpus):
    pairs = [("Anna", "<i>f</i>")] + [(name, "<i>f</i>") for name in planted.WOMEN]
    return bias(corpus, Lexicon.of(pairs + [(name, "m") for name in planted.MEN]))


def read(page):
    reader = Reader()
    reader.feed(page)
    return reader.tags, json.loads(reader.data)


def test_pages_are_whole_and_ask_for_nothing_from_elsewhere(study, corpus):
    for page in (render_bias(study), render_overview(overview(corpus, 1))):
        tags, _ = read(page)
        names = [tag for tag, _ in tags]
        assert names.count("script") == 2  # the data and the program
        assert not any("src" in held or "href" in held for _, held in tags)
        assert not re.search(r"https?://", page)
        assert "prefers-color-scheme:dark" in page
        assert "<i>f</i>" not in page


def test_every_name_opens_its_texts_with_its_place(study, corpus):
    _, data = read(render_bias(study))
    (table,) = data["tables"]
    assert len(table["rows"]) == len(study.entities)
    for row, entity in zip(table["rows"], study.entities, strict=True):
        assert row["cells"][:2] == [entity.name, entity.group]
        assert len(row["texts"]) + row["hidden"] == entity.occurrences
        for number, start, end, _ in row["texts"]:
            text = data["texts"][str(number)]
            assert text["text"] == corpus.texts[number]
            assert text["text"][start:end].lower() == entity.name
            strengths = [abs(word[3]) for word in text["words"]]
            assert max(strengths) == 100
    assert any(text["text"] == EVIL for text in data["texts"].values())


def test_the_verdict_and_its_limits_are_on_the_page(study):
    page = render_bias(study)
    assert "No significant difference" in page or "The groups differ" in page
    assert "and its limits" in page


@pytest.mark.parametrize(
    ("difference", "p", "names", "says"),
    [
        (0.5, 0.01, (9, 9), "The groups differ:</b> a names score higher than b names"),
        (-0.5, 0.01, (9, 9), "The groups differ:</b> a names score lower than b names"),
        (0.5, 0.2, (9, 9), "No significant difference</b> between a and b names"),
        (0.5, 0.01, (2, 2), "Too few names</b> to compare a and b names"),
    ],
)
def test_the_verdict_follows_from_the_comparison(study, difference, p, names, says):
    low, high = sorted((difference / 2, 2 * difference))
    pair = GroupComparison("a", "b", difference, low, high, p, p, 0.5, names)
    page = render_bias(replace(study, comparisons=(pair,)))
    (verdict,) = re.findall("<h1>(<b>.*?)</h1>", page)
    assert says in verdict


def test_an_overview_has_a_table_for_each_view(corpus):
    _, data = read(render_overview(overview(corpus, 1)))
    titles = [table["title"] for table in data["tables"]]
    assert titles[0] == "Words with the most impact"
    assert {"For POSITIVE", "For NEGATIVE"} <= set(titles)
    assert any("Misleading" in title for title in titles)
    for table in data["tables"]:
        for row in table["rows"][:20]:
            for number, start, end, _ in row["texts"]:
                assert data["texts"][str(number)]["text"][start:end].casefold() == row["cells"][0]


def test_names_have_a_least_count_and_words_a_mark_of_function_words(study, corpus):
    (names,) = read(render_bias(study))[1]["tables"]
    most = max(len(entity.texts) for entity in study.entities)
    assert names["least"] == [4, min(5, most)]
    assert names["columns"][4]["label"] == "texts"
    assert names["chart"] == [4, 2]
    assert not any(row["function"] for row in names["rows"])
    notebook = render_bias(study, whole_page=False)
    for entity in study.entities:
        assert (f"<td>{entity.name}</td>" in notebook) <= (len(entity.texts) >= min(5, most))
    tables = read(render_overview(overview(corpus, 1)))[1]["tables"]
    marks = {row["cells"][0]: row["function"] for row in tables[0]["rows"]}
    assert marks["the"]
    assert not marks["good"]
    assert tables[0]["least"] == [6, 1]


def test_figures_of_words_and_names_say_what_they_leave_out(study, corpus):
    def named(axes):
        return [label.get_text() for label in axes.get_yticklabels()]

    view = overview(corpus, 1)
    (axes,) = view.plot("words", most=3).axes
    words = sorted(view.words, key=lambda word: -word.mean)
    words = [word for word in words if not is_function_word(word.word)]
    assert named(axes) == [word.word for word in [*words[:3], *words[-3:]]]
    values = [bar.get_width() for bar in axes.patches]
    np.testing.assert_allclose(values, [word.mean for word in [*words[:3], *words[-3:]]])
    assert axes.get_title("left").endswith(f"1 text or more: 6 of {len(words)}")
    (axes,) = view.plot("words", function_words=True, most=500).axes
    assert set(named(axes)) == {word.word for word in view.words}
    (axes,) = study.plot("names", min_texts=2, most=500).axes
    assert named(axes) == [e.name for e in study.entities if len(e.texts) >= 2]
    with pytest.raises(InputError, match="1000 texts or more"):
        study.plot("names", min_texts=1000)
    (axes,) = study.plot().axes
    assert next(t.get_text() for t in axes.get_legend().get_texts()).endswith("occurrences")
