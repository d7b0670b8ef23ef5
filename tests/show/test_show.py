"""What a person sees: text with and without colour, and a page."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from wherefrom import Explainer, Explanation
from wherefrom.core.explanation import Ledger, Line, TargetInfo, Unit
from wherefrom.show import html, terminal
from wherefrom.show.line_kinds import summary
from wherefrom.show.sentence import sentence
from wherefrom.show.text_marks import marks, signed

ESCAPE = "\x1b["


@pytest.fixture
def explanation():
    """Two words for, one against, in a text with marks of its own."""
    text = "good <script>alert(1)</script> & bad"
    spans = [(0, 4), (5, 30), (31, 32), (33, 36)]
    return Explanation(
        units=(
            Unit("[CLS]", special=True),
            *(Unit(text[a:b], a, b, word=i) for i, (a, b) in enumerate(spans)),
        ),
        scores=np.array([0.3, 2.0, 0.05, 0.0, -1.0], dtype=np.float32),
        target=TargetInfo(1, "<b>good</b>"),
        output=1.75,
        probability=0.875,
        method="lrp",
        settings={"gate": "shared", "root": "unk"},
        label="lrp(root=unk)",
        ledger=Ledger(
            (
                Line("words", "word", 1.35),
                Line("layer <0>", "bias", 0.25),
                Line("layer 1", "bias", 0.125),
            ),
            1.75,
        ),
        parts={"word": np.array([0.3, 2.0, 0.05, 0.0, -1.0], dtype=np.float32)},
        text=text,
        model="tiny & small",
    )


def test_text_without_colour_carries_the_scores(explanation, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    shown = str(explanation)
    assert ESCAPE not in shown
    assert "good[+2]" in shown
    assert "bad[-1]" in shown
    assert "&[" not in shown  # weak units stay quiet
    assert "<b>good</b>  87.5 %  output +1.750" in shown
    assert "tokens +1.350 · biases +0.375 · residual +0.025 = +1.750" in shown
    assert "lrp(root=unk)  tiny & small" in shown


def test_text_with_colour_is_red_for_and_blue_underlined_against(explanation, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "3")
    monkeypatch.setenv("WHEREFROM_BACKGROUND", "light")
    shown = terminal.render(explanation, numbers=False)
    assert re.search(r"\x1b\[[\d;]*48;2;214;39;39m?[^m]*m?good", shown)
    against = re.search(r"\x1b\[([\d;]*)mbad", shown).group(1)
    red, _, blue = map(int, re.search(r"48;2;(\d+);(\d+);(\d+)", against).groups())
    assert red < 0.6 * blue
    assert against.startswith("4;")  # underlined
    assert "[+2]" not in shown


def test_no_color_wins_over_force_color(explanation, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert ESCAPE not in str(explanation)


def test_brackets_in_a_text_are_no_markup(explanation):
    from dataclasses import replace

    odd = replace(explanation, text="[bold]x[/bold] [/]", units=(Unit("[bold]x[/bold]", 0, 14),),
                  scores=np.float32([1]), parts={})  # fmt: skip
    assert "[bold]x[/bold]" in terminal.render(odd, color=False)


def test_marks_keep_every_blank_and_scale_by_the_strongest_word(explanation):
    pieces = marks(explanation)
    assert "".join(mark.gap + mark.text for mark in pieces[1:]).strip() == explanation.text
    assert [round(mark.strength, 3) for mark in pieces] == [0.15, 1.0, 0.025, 0.0, -0.5]
    assert pieces[0].special


@pytest.mark.parametrize(
    ("scores", "strengths"),
    [
        ([-8, 2, 1, 0, -1], [-1, 1, 0.5, 0, -0.5]),  # the largest score is that of [CLS]
        ([8, 0, 0, 0, 0], [1, 0, 0, 0, 0]),
        ([0, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
    ],
)
def test_special_tokens_do_not_set_the_scale_unless_they_alone_have_scores(
    explanation, scores, strengths
):
    scored = replace(explanation, scores=np.float32(scores), parts={})
    assert [mark.strength for mark in marks(scored)] == strengths


def test_a_newline_is_shown_as_a_sign(bert, wordpiece):
    newline = Explainer(bert, wordpiece)("good\nfilm")
    assert "good" in terminal.render(newline, color=False)


def test_rows_show_each_method_once_and_what_it_adds_up_to(bert, wordpiece):
    compared = Explainer(bert, wordpiece).compare("good film", ["lrp", "gradient", "random"])
    shown = terminal.render_rows(compared, color=False)
    for each in compared:
        assert len(re.findall(rf"^{re.escape(each.label)} ", shown, re.M)) == 1
    assert signed(compared[0].ledger.total) in shown
    assert f"output of the model: {signed(compared[0].output)}" in shown
    assert f"{sentence(compared[0])} Scores by {compared[0].label}." in shown.replace(" \n", " ")


class Page(HTMLParser):
    """Collects the tags and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.styles = [], [], 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)


def test_a_page_is_escaped_and_needs_nothing_from_outside(explanation):
    text = explanation.to_html()
    page = Page(text)
    names = {tag for tag, _ in page.tags}
    assert "script" not in names
    assert "b" not in names
    assert not names & {"link", "img", "iframe", "object", "base"}
    assert "<script>alert(1)</script>" in page.words
    assert not re.search(r"https?:|url\(|@import|src=", text)
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)


def test_a_quote_in_a_text_stays_within_its_span(explanation):
    from dataclasses import replace

    odd = replace(explanation, text='"><i onload=x>', units=(Unit('"><i onload=x>', 0, 14),),
                  scores=np.float32([1]), parts={'"><u>': np.float32([1])})  # fmt: skip
    page = Page(odd.to_html())
    assert not any("onload" in attrs for _, attrs in page.tags)
    assert "u" not in {tag for tag, _ in page.tags}


def test_a_page_has_a_row_for_each_line_of_the_ledger_the_residual_and_the_output(explanation):
    page = explanation.to_html()
    table = page[page.index('<table class="ledger">') :]
    assert table.count("<tr") == len(explanation.ledger.lines) + 2
    for shown in ("tokens", "layer &lt;0&gt;", "residual", "output", "+0.250", "+0.025", "+1.750"):
        assert shown in table
    assert table.count('class="bar"') == len(explanation.ledger.lines) + 2


def test_bars_follow_each_other_to_the_output(explanation):
    table = explanation.to_html()
    bars = re.findall(r"left:([\d.]+)%;width:([\d.]+)%", table)
    ends = [float(left) + float(width) for left, width in bars]
    for (left, _), before in zip(bars[1:-1], ends, strict=False):
        assert float(left) == pytest.approx(before, abs=0.02)
    assert ends[-1] == pytest.approx(100, abs=0.02)
    assert float(bars[-1][0]) == 0.0


def test_page_is_written_and_a_notebook_gets_a_part_of_it(explanation, tmp_path):
    path = tmp_path / "page.html"
    assert explanation.to_html(path) == path
    assert path.read_text(encoding="utf-8") == explanation.to_html()
    part = explanation._repr_html_()
    assert part.startswith('<div class="wherefrom">')
    assert "<html" not in part
    assert part in path.read_text(encoding="utf-8")


def test_one_page_for_many_texts_and_methods(bert, wordpiece):
    explainer = Explainer(bert, wordpiece)
    tables = [explainer.compare(text, ["lrp", "random"]) for text in ("good film", "bad")]
    page = html.render_many(tables)
    assert page.count("<h1>") == 2
    assert page.count("<td>lrp<wbr>(root=unk)</td>") == 2
    assert page.count('<table class="ledger">') == 2


def test_two_settings_of_one_method_are_told_apart(explanation):
    frozen = replace(explanation, label="lrp(gate=frozen, root=unk)")
    open_ledger = replace(explanation.ledger, output=2.0)
    rows = [frozen, replace(explanation, ledger=open_ledger)]
    shown = terminal.render_rows(rows, color=False, width=100)
    assert re.search(r"^lrp +\S.*\n\(gate=frozen, root=unk\) ", shown, re.M)
    assert re.search(r"^lrp\(root=unk\) ", shown, re.M)
    page = html.render(rows)
    assert page.count("<td>lrp<wbr>(gate=frozen, root=unk)</td>") == 1
    assert page.count("<td>lrp<wbr>(root=unk)</td>") == 1
    assert "The ledger of lrp(gate=frozen, root=unk)</h2>" in page


def test_long_settings_are_folded_under_the_name(explanation):
    long = replace(explanation, label=f"lrp({'x' * 60})")
    shown = terminal.render_rows([long, explanation], color=False, width=100)
    assert max(map(len, shown.splitlines())) <= 100
    assert shown.count("x") >= 60


def test_a_method_without_a_ledger_shows_none(bert, wordpiece):
    without = Explainer(bert, wordpiece)("good film", "gradient")
    assert "residual" not in terminal.render(without, color=False)
    assert '<table class="ledger">' not in without.to_html()


def test_each_half_of_a_pair_begins_a_line(bert, pair_wordpiece):
    pair = Explainer(bert, pair_wordpiece)(("good film", "bad film"))
    breaks = [mark.text for mark in marks(pair) if mark.gap == "\n"]
    assert breaks == ["bad"]


def test_summary_joins_the_biases(explanation):
    lines = {line.label: line.value for line in summary(explanation.ledger)}
    assert lines == {"tokens": 1.35, "biases": 0.375}


def test_saved_explanation_is_shown_without_its_model(explanation):
    again = Explanation.from_json(explanation.to_json())
    assert again.to_html() == explanation.to_html()
    assert terminal.render(again, color=False) == terminal.render(explanation, color=False)


def test_the_ledger_of_a_comparison_is_the_first_that_adds_up(explanation):
    def named(method, total):
        ledger = replace(explanation.ledger, lines=(Line("words", "word", total),))
        return replace(explanation, method=method, label="", ledger=ledger)

    rows = [named("open", 1.0), named("first", 1.75 + 1e-7), named("second", 1.75)]
    assert "The ledger of first" in html.render(rows)
    assert "The ledger of open" in html.render(rows[:1] * 2)
