"""The headline of every page: each claim holds for the numbers that it is built from."""

import math
import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest

from wherefrom import METHODS, Explainer, Explanation, load
from wherefrom.core.explanation import RUNNERS_UP, Ledger, Line, Output, TargetInfo, Unit
from wherefrom.show import html
from wherefrom.show.explanation_figure import waterfall_bars
from wherefrom.show.page import STYLE
from wherefrom.show.sentence import (
    Check,
    check_sentence,
    explained,
    for_legend,
    has_direction,
    pieces,
    sentence,
    sides,
)
from wherefrom.show.text_marks import heading, marks, target_name

WORDS = "the best film of his life".split()


def made(scores, output=2.0, probability=0.998, **changes):
    """An explanation of six words with these scores."""
    spans, at = [], 0
    for word in WORDS:
        spans.append((at, at + len(word)))
        at += len(word) + 1
    scores = np.array(scores, dtype=np.float32)
    total = float(scores.sum())
    lines = (Line("words", "word", total), Line("encoder", "bias", output - total))
    first = Explanation(
        units=tuple(
            Unit(w, a, b, word=i) for i, (w, (a, b)) in enumerate(zip(WORDS, spans, strict=True))
        ),
        scores=scores,
        target=TargetInfo(1, "POSITIVE"),
        output=output,
        probability=probability,
        method="lrp",
        ledger=Ledger(lines, output),
        text=" ".join(WORDS),
        model="tiny",
        largest=(Output("POSITIVE", output, probability), Output("NEGATIVE", -3.0, 0.002)),
    )
    return replace(first, **changes)


def test_the_reasons_and_what_counts_against():
    assert sentence(made([0.1, 2, 0.1, 0, -0.5, 0.7])) == (
        "The model says POSITIVE (99.8 %), mostly because of “best” and “life”; “his” counts "
        "against it. The words account for 120 % of the output."
    )


def test_a_side_that_is_weak_is_not_mentioned():
    assert sentence(made([0, 2, 0.1, 0, -0.1, 0.5], 2.5)) == (
        "The model says POSITIVE (99.8 %), mostly because of “best”. The words account for 100 % "
        "of the output."
    )


def test_words_that_account_for_little_are_not_the_reason():
    assert sentence(made([0, 0.1, 0, 0, -0.02, 0.02], 2.0)) == (
        "The model says POSITIVE (99.8 %). The words account for 5 % of the output; the rest is "
        "what the model's constants add at this input, +1.900. Among the words, “best” counts "
        "most for POSITIVE, “his” against it."
    )


def test_words_that_sum_against_the_output_are_not_the_reason():
    lines = (Line("words", "word", -0.2), Line("root", "root", 2.3), Line("a", "bias", -0.005))
    one = made([0, 0.4, 0, 0, -0.6, 0], 2.095, ledger=Ledger(lines, 2.095))
    assert sentence(one) == (
        "The model says POSITIVE (99.8 %). The words point the other way: they sum to -0.200, the "
        "output is +2.095; the rest is the offset at the reference, +2.300. Among the words, "
        "“best” counts most for POSITIVE, “his” against it."
    )


def test_a_few_of_many_equal_words_are_not_the_reason():
    text = sentence(made([1] * 6, 7.0))
    assert "because" not in text
    assert "The words account for 86 % of the output. Among the words, " in text


def test_words_that_sum_to_far_more_than_the_output_are_not_the_reason():
    text = sentence(made([0, 9, 0, 0, 0, 0], 2.0))
    assert ". The words sum to +9.000, which is more than the output, +2.000; the rest is" in text
    assert "because" not in text


def test_a_ledger_that_does_not_add_up_says_so():
    one = made([0, 0.1, 0, 0, 0, 0], 2.0, ledger=Ledger((Line("words", "word", 0.1),), 2.0))
    assert sentence(one) == (
        "The model says POSITIVE (99.8 %). The scores do not add up to the output: the residual is "
        "+1.900, the output +2.000. Among the words, “best” counts most for POSITIVE."
    )


def test_the_model_output_at_the_reference_is_named_after_the_input():
    lines = (Line("words", "word", 0.1), Line("reference", "reference", 1.9))
    one = made([0, 0.1, 0, 0, 0, 0], 2.0, ledger=Ledger(lines, 2.0))
    rest = "; the rest is the model's output for a text of unknown words, +1.900."
    assert rest in sentence(one)
    labelled = replace(one, ledger=Ledger((lines[0], replace(lines[1], label="[MASK]")), 2.0))
    assert "the model's output for [MASK]" in sentence(labelled)
    picture = {"kind": "image", "width": 3, "height": 3}
    boxes = tuple(Unit("", box=(0, 0, 3, 3)) for _ in WORDS)
    image = replace(one, text=None, scene=picture, units=boxes)
    assert "the model's output for a blank image" in sentence(image)
    table = replace(one, text=None)
    assert "the model's output for the reference input" in sentence(table)
    for shown in (str(one), one.to_html(), " ".join(b[0] for b in waterfall_bars(one, 3))):
        assert "a text of unknown words" in shown


def test_a_class_that_is_not_predicted_is_never_said():
    one = made(
        [0.1, -2, 0.1, 0, 0.5, -1.0], -3.0, 0.002,
        target=TargetInfo(0, "NEGATIVE"), largest=made([1] * 6).largest,
    )  # fmt: skip
    assert sentence(one) == (
        "The model says POSITIVE (99.8 %), not NEGATIVE (0.2 %). The words account for 77 % of the "
        "output. Among the words, “his” counts most for NEGATIVE, “best” and “life” against it."
    )


def test_a_predicted_class_with_a_negative_logit_is_explained_by_the_lower_one():
    one = made(
        [0, -0.2, 0, 0, -0.1, 0], -0.44, 0.55,
        target=TargetInfo(0, "inactive"),
        largest=(Output("inactive", -0.44, 0.55), Output("active", -0.64, 0.45)),
    )  # fmt: skip
    text = sentence(one)
    assert text.startswith("The model says inactive (55.0 %): its logit is negative, -0.440, but")
    assert "that of active is lower, -0.640." in text
    assert text.endswith("Among the words, “best” and “his” count most against inactive.")
    assert "because" not in text


@pytest.mark.parametrize("sign", [1, -1])
def test_a_contrast_names_the_preferred_class_first(sign):
    scores = sign * np.array([0, 2, 0, 0, -0.9, 0])
    one = made(scores, sign * 1.5, target=TargetInfo(1, "A", 0, "B"))
    first, second = ("A", "B") if sign > 0 else ("B", "A")
    assert sentence(one) == (
        f"The model prefers {first} to {second} (difference of the logits +1.500), mostly because "
        f"of “best”; “his” counts for {second}. The words account for 73 % of the difference."
    )
    # colours follow the sign of the score, not the order of the sentence
    assert ("for" if sign > 0 else "against", "best") in pieces(one)
    assert sides(one) == ("counts for A", "for B")


def test_a_ranking_gives_no_reasons():
    one = made([0.1, 2, 0.1, 0, 0.2, 1.0], method="gae", ledger=None)
    assert sentence(one) == (
        "The model says POSITIVE (99.8 %). gae ranks “best” and “life” highest."
    )
    assert ("strength", "best") in pieces(one)


def test_a_number_is_raised_and_lowered():
    one = made([0, 3, 0, 0, -0.4, 0], 3.2, None, largest=(Output("score", 3.2),),
               target=TargetInfo(0, "score"))  # fmt: skip
    assert sentence(one) == (
        "The model's output for score is +3.200. The words account for 81 % of the output. Among "
        "the words, “best” raises score most, “his” lowers it."
    )
    assert explained(one) == "Explained: the model's output score, +3.200."
    assert sides(one) == ("raises score", "lowers it")


def test_what_is_explained_is_named():
    assert explained(made([1] * 6)) == (
        "Explained: the logit of POSITIVE, +2.000; its probability is 99.8 %."
    )
    token = made([1] * 6, target=TargetInfo(7, " Paris", position=4))
    assert "the logit of “ Paris” at position 4" in explained(token)
    pair = made([1] * 6, target=TargetInfo(1, "A", 0, "B"))
    assert explained(pair) == "Explained: the difference of two logits, A − B, +2.000."


def test_nothing_at_all():
    assert sentence(made([0] * 6)) == (
        "The model says POSITIVE (99.8 %). The words account for 0 % of the output; the rest is "
        "what the model's constants add at this input, +2.000. None of the words counts for or "
        "against POSITIVE."
    )


def test_tokens_of_a_word_are_joined_and_markers_left_out():
    one = made([0, 2, 1.5, 0, 0, 0])
    split = replace(one, units=tuple(
        replace(unit, word=1) if i in (1, 2) else replace(unit, special=i == 0)
        for i, unit in enumerate(one.units)
    ))  # fmt: skip
    assert "“best film”" in sentence(split)


def test_special_tokens_do_not_set_the_scale_of_colours():
    one = made([9.0, 2, 0.1, 0, -0.5, 1.0])
    units = (replace(one.units[0], special=True), *one.units[1:])
    strengths = [mark.strength for mark in marks(replace(one, units=units))]
    assert strengths == pytest.approx([1, 1, 0.05, 0, -0.25, 0.5])
    only = replace(one, units=tuple(replace(unit, special=True) for unit in units))
    assert marks(only)[1].strength == pytest.approx(2 / 9)


def test_the_page_says_it_first_then_the_legend():
    page = made([0.1, 2, 0.1, 0, -0.5, 0.7]).to_html()
    body = page[page.index("<h1>") :]
    title = unescape(body[: body.index("</h1>")].replace("&nbsp;", " "))
    assert "The model says <strong>POSITIVE</strong> (99.8 %), mostly because of" in title
    order = [body.index(part) for part in ("</h1>", "Explained:", 'class="key', 'class="heat"')]
    assert order == sorted(order)
    assert "full colour: a score of 2.000" in body


def test_numbers_are_in_the_page_for_the_switch_and_for_paper():
    page = made([0.1, 2, 0.1, 0, -0.5, 1.0]).to_html()
    assert 'class="numbers"' in page
    scores = re.findall(r'data-score="([^"]+)"[^>]*>(\w+)<', page)
    assert scores == [
        ("+0.1", "the"),
        ("+2", "best"),
        ("+0.1", "film"),
        ("−0.5", "his"),  # a minus sign, which stays beside its number
        ("+1", "life"),
    ]
    assert ".wherefrom:has(.numbers:checked) .u[data-score]::after" in page
    paper = STYLE[STYLE.index("@media print") :]
    assert ".u[data-score]::after" in paper[: paper.index("@media", 1)]
    assert "print-color-adjust:exact" in page


def test_embedded_models_of_every_kind_have_a_headline():
    text = load("sentiment")("has a lot of the virtues of eastwood at his best.")
    assert sentence(text).startswith("The model says POSITIVE (99.8 %)")
    image = load("digits")("examples/three.png")
    assert sentence(image).startswith("The model says 3 (99.9 %), mostly because of the centre")
    molecule = load("bace")("CC(C)Cc1ccc(cc1)C(C)C(=O)O")
    assert "its logit is negative, -0.124, but that of inactive is lower" in sentence(molecule)


def test_scores_without_a_ledger_make_no_claim_about_sums():
    one = made([0, -2, 0, 0, 0.9, 0], -1.5, target=TargetInfo(1, "A", 0, "B"), ledger=None)
    assert sentence(one) == (
        "The model prefers B to A (difference of the logits +1.500). Among the words, “his” counts "
        "most for A, “best” for B."
    )


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_methods_with_a_sign_are_those_that_have_one(name, bert, wordpiece):
    one = Explainer(bert, wordpiece)("the film is not good", name)
    bare = replace(one, ledger=None)
    assert has_direction(bare) == (one.ledger is not None or name == "occlusion")
    assert one.signed or not (one.scores < 0).any()
    assert one.signed or not has_direction(one)
    assert one.to_dict()["signed"] == one.signed


def test_a_sum_of_gradients_has_a_sign(bert, wordpiece):
    explainer = Explainer(bert, wordpiece)
    assert not explainer("the film", "gradient").signed
    assert explainer("the film", "gradient", reduce="sum").signed


def test_tokens_are_quoted_and_what_is_no_token_is_not():
    target = TargetInfo(7, " banana", 8, " a", position=4)
    one = made([0, 2, 0, 0, -0.9, 0], 1.5, target=target)
    assert sentence(one) == (
        "The model prefers “ banana” to “ a” (difference of the logits +1.500), mostly because of "
        "“best”; “his” counts for “ a”. The words account for 73 % of the difference."
    )
    assert sides(one) == ("counts for “ banana”", "for “ a”")
    assert heading(one).startswith("“ banana” − “ a”  output")
    several = replace(one, target=replace(target, label=" two\n", against_label=RUNNERS_UP))
    assert heading(several).startswith("“ two\\n” − the runner-up of each token  output")
    entity = replace(target, label="B-PER", against_label="O", place='"Paris", token 4')
    assert target_name(replace(one, target=entity)) == "B-PER − O"


def test_regions_of_an_image_are_named_by_their_place():
    boxes = [(0, 0, 9, 9), (0, 10, 9, 19), (0, 20, 9, 29)]
    one = made(
        [1, -0.5, 0.9, 0, 0, 0], -3.0, 0.0002, target=TargetInfo(8, "8"), text=None,
        units=tuple(Unit("", box=box) for box in [*boxes, *boxes]),
        scene={"kind": "image", "width": 9, "height": 30},
        largest=(Output("3", 4.0, 0.9), Output("8", -3.0, 0.0002)),
    )  # fmt: skip
    assert sentence(one) == (
        "The model says 3 (90.0 %), not 8 (<0.1 %). The regions point the other way: they sum to "
        "+1.400, the output is -3.000; the rest is what the model's constants add at this input, "
        "-4.400. Among the regions, the top and the bottom count most for 8, the centre against it."
    )
    assert heading(one) == "8  <0.1 %  output -3.000"


def test_scores_without_a_sign_have_a_third_hue_and_no_sign():
    sizes = made([0.1, 2, 0.1, 0, 0.5, 1.0], method="gradient", ledger=None)
    page = sizes.to_html()
    body = page[page.index("<h1>") :]
    assert sides(sizes) == ("strength by gradient, without a sign", "")
    assert "rgba(var(--strength)" in body
    assert not re.search(r"--for|--against|red</span>|blue", body)
    assert not re.search(r'(title|data-score)="[+−-]', body)
    shown = str(sizes)
    assert "[2]" in shown
    assert "[+" not in shown
    assert re.search(r"\[0\.5\] the strength: this method has no sign", shown)


def test_the_legend_of_several_methods_explains_all_hues():
    signed = made([0.1, 2, 0.1, 0, -0.5, 1.0])
    sizes = made([0.1, 2, 0.1, 0, 0.5, 1.0], method="gradient", ledger=None)
    ranked = replace(signed, method="random", ledger=None)
    assert "blue, underlined</span> against it" in signed.to_html()
    assert for_legend([sizes, ranked, signed]) is signed
    assert for_legend([sizes, ranked]) is ranked
    page = html.render([sizes, signed])
    assert "blue, underlined</span> against it" in page
    assert "green</span> strength without a sign" in page


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "agree with the Shapley values: r = 0.97, and the mean difference is 12 % of"),
        ({"error": 3.6}, "correlate with the Shapley values, but differ in size: r = 0.97"),
        ({"r": 0.7}, "agree only in part with the Shapley values: r = 0.70"),
        ({"r": 0.49}, "do not agree with the Shapley values: r = 0.49"),
        ({"r": -0.95, "error": 2.0}, "do not agree with the Shapley values: r = -0.95"),
        ({"count": 2, "r": 1.0, "error": 0.9}, "differ from the Shapley values: the mean diff"),
        ({"count": 2, "r": -1.0}, "agree with the Shapley values: the mean difference is 12 %"),
        ({"are_shares": False}, "are no shares of the output, so their size is not compared."),
        ({"error": math.nan}, "All Shapley values are 0: no set of words changes the output."),
        ({"sampling": 0.04}, "Their mean standard error is 4 % of that size."),
        ({"sampling": 0.2}, "is 20 % of that size, so sampling alone may explain the difference."),
        ({"noun": "atom"}, "The Shapley values are exact: every subset of the atoms was run."),
    ],
)
def test_a_check_against_shapley_values_says_what_its_numbers_say(changes, words):
    check = replace(Check("lrp", r=0.97, error=0.12, sampling=0.0, count=8), **changes)
    text = check_sentence(check)
    assert words in text
    assert ("r = " in text) == (check.count > 2 and not math.isnan(check.error))
    if check.are_shares and not math.isnan(check.error):
        assert ("exact" in text) == (check.sampling == 0)
