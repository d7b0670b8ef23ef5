"""Every page has the same shell: a policy that fetches nothing, and all content escaped."""

import base64
import re
import types
from hashlib import sha256
from html.parser import HTMLParser

import pytest

from tests.corpus.test_views import corpus_of
from tests.show.test_figures import evaluation
from tests.show.test_svg import explained
from wherefrom.corpus import Lexicon, bias, overview
from wherefrom.show import audit, corpus, html, report
from wherefrom.show.page import block, page, picture, table

EVIL = '"><script>alert(1)</script><!--'


class Tags(HTMLParser):
    """The tags of a page with their attributes, and the text of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script":
            self.scripts.append(data)

    def handle_endtag(self, tag):
        self.tags.append((f"/{tag}", {}))

    def count(self, name):
        return sum(tag == name for tag, _ in self.tags)


def audited():
    finding = types.SimpleNamespace(axiom="dummy", holds=False, value=0.5, words=EVIL)
    rewrite = {"name": EVIL, "places": 2, "dropped": 1}
    return types.SimpleNamespace(
        model=EVIL, methods=[EVIL], inputs=[EVIL], findings=[finding], conservation=[EVIL],
        rewrites={"x": rewrite}, of=lambda method: [finding], sound=lambda: [EVIL],
    )  # fmt: skip


def evaluated():
    result = evaluation()
    row = {"metric": EVIL, "method": EVIL, "better": "higher", "mean": 1, "low": 0, "high": 2}
    extra = {
        "model": EVIL, "best": EVIL, "complete": False, "notes": [EVIL], "skipped": {EVIL: 1},
        "settings": {EVIL: EVIL}, "rows": lambda: [row], "samples": 1,
        "best_by": lambda metric: EVIL,
        "recommendation": types.SimpleNamespace(text=EVIL),
        "studies": {}, "conservation_cells": lambda: {EVIL: ["–", "0.5"]},
    }  # fmt: skip
    return types.SimpleNamespace(**{**vars(result), **extra})


def words():
    texts = [[("Anna", 1.0), (EVIL.replace(" ", ""), -0.5)], [("Bob", 0.5), ("good", 1.0)]]
    return corpus_of(texts, [0, 1], [1, 1], (EVIL, "POSITIVE"))


PAGES = {
    "explanation": lambda: html.render([explained(name=EVIL, label=EVIL, method=EVIL)]),
    "several": lambda: html.render_many([[explained(label=EVIL)], [explained(label=EVIL)]]),
    "beside": lambda: html.render_classes([[explained(label=EVIL, method=EVIL)]] * 2),
    "evaluation": lambda: report.render_evaluation(evaluated(), []),
    "audit": lambda: audit.render(audited()),
    "overview": lambda: corpus.render_overview(overview(words(), 1)),
    "bias": lambda: corpus.render_bias(
        bias(words(), Lexicon.of([("Anna", EVIL), ("Bob", "x")]), draws=20)
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_every_page_has_the_shell_and_runs_only_the_librarys_script(name):
    text = PAGES[name]()
    tags = Tags(text)
    for tag in ("html", "head", "body"):
        assert (tags.count(tag), tags.count(f"/{tag}")) == (1, 1)
    metas = [attrs for tag, attrs in tags.tags if tag == "meta"]
    (policy,) = [meta["content"] for meta in metas if "http-equiv" in meta]
    directives = dict(part.strip().partition(" ")[::2] for part in policy.split(";"))
    assert directives["default-src"] == directives["base-uri"] == "'none'"
    assert directives["img-src"] == "data:"
    assert any(meta.get("name") == "viewport" for meta in metas)
    if name in ("overview", "bias"):
        assert tags.count("script") == 2  # the data and the program
        digest = base64.b64encode(sha256(tags.scripts[-1].encode()).digest()).decode()
        assert directives["script-src"] == f"'sha256-{digest}'"
    else:
        assert tags.count("script") == 0
        assert "script-src" not in directives
    assert "alert(1)" in text  # the content is there, as text
    assert not any(key.startswith("on") for _, attrs in tags.tags for key in attrs)
    assert not re.search(r"https?:|@import", text)
    assert "prefers-color-scheme:dark" in text
    assert "print-color-adjust:exact" in text


def test_data_cannot_end_its_script_element():
    text = page("t", "", script="run()", data='{"a": "</script><!--\u2028"}')
    assert text.count("</script>") == 2
    assert Tags(text).scripts == ['{"a": "\\u003c/script>\\u003c!--\\u2028"}', "run()"]


def test_a_page_holds_the_block_that_a_notebook_shows():
    assert block("<p>x</p>", ".a{}") in page("t", "<p>x</p>", ".a{}")


def test_numbers_stand_right_after_the_text_columns():
    assert table(["a", "b", "c"], [["x", "y", "1"]], text_columns=2).endswith(
        '<tr><td>x</td><td>y</td><td class="num">1</td></tr></tbody></table></div>'
    )


def test_a_picture_is_inside_the_page_with_its_caption_as_text(tmp_path):
    (tmp_path / "a.png").write_bytes(b"png")
    tags = Tags(picture(tmp_path / "a.png", EVIL))
    (image,) = [attrs for tag, attrs in tags.tags if tag == "img"]
    assert image == {"alt": EVIL, "src": "data:image/png;base64,cG5n"}
    assert tags.count("script") == 0
