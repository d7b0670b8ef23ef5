"""The reports of a corpus: whole, escaped, with nothing from elsewhere."""

import json
import re
from html.parser import HTMLParser

import pytest

from tests.corpus import planted
from wherefrom.corpus import Lexicon, bias, explain_corpus, overview
from wherefrom.inputs.table import Rows
from wherefrom.show.corpus import render_bias, render_overview

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
