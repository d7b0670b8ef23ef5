"""The plain sentence on top of every page: never read backwards, never more than is known."""

import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest

from wherefrom import METHODS, Explainer, Explanation, load
from wherefrom.core.explanation import RUNNERS_UP, Ledger, Line, Output, TargetInfo, Unit
from wherefrom.show import html
from wherefrom.show.page import STYLE
from wherefrom.show.sentence import (
    are_shares,
    explained,
    for_legend,
    is_unsigned,
    pieces,
    sentence,
    sides,
)
from wherefrom.show.text_marks import heading, target_name

WORDS = "the best film of his life".split()


def made(scores, output=2.0, probability=0.998, **changes):
    """An explanation of six words with these scores."""
    spans, at = [], 0
    for word in WORDS:
        spans.append((at, at + len(word)))
        at += len(word) + 1
    scores = np.array(scores, dtype=np.float32)
    first = Explanation(
        units=tuple(
            Unit(w, a, b, word=i) for i, (w, (a, b)) in enumerate(zip(WORDS, spans, strict=True))
        ),
        scores=scores,
        target=TargetInfo(1, "POSITIVE"),
        output=output,
        probability=probability,
        method="lrp",
        ledger=Ledger((Line("words", "word", float(scores.sum())),), output),
        text=" ".join(WORDS),
        model="tiny",
        largest=(Output("POSITIVE", output, probability), Output("NEGATIVE", -3.0, 0.002)),
    )
    return replace(first, **changes)


def test_the_reasons_and_what_speaks_against():
    assert sentence(made([0.1, 2, 0.1, 0, -0.5, 1.0])) == (
        "The model says POSITIVE (99.8 %), mostly because of “best” and “life”; “his” speaks "
        "against it."
    )


def test_a_side_that_is_weak_is_not_mentioned():
    assert sentence(made([0, 2, 0.1, 0, -0.1, 0.5])) == (
        "The model says POSITIVE (99.8 %), mostly because of “best”."
    )


def test_a_class_that_is_not_predicted_is_never_said():
    one = made(
        [0.1, -2, 0.1, 0, 0.5, -1.0], -3.0, 0.002,
        target=TargetInfo(0, "NEGATIVE"), largest=made([1] * 6).largest,
    )  # fmt: skip
    assert sentence(one) == (
        "The model says POSITIVE (99.8 %), not NEGATIVE (0.2 %). “his” speaks for NEGATIVE; "
        "“best” and “life” against it."
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
    assert text.endswith("Nothing speaks for inactive; “best” and “his” speak against it.")
    assert "because" not in text


@pytest.mark.parametrize("sign", [1, -1])
def test_a_contrast_names_the_preferred_class_first(sign):
    scores = sign * np.array([0, 2, 0, 0, -0.9, 0])
    one = made(scores, sign * 1.5, target=TargetInfo(1, "A", 0, "B"))
    first, second = ("A", "B") if sign > 0 else ("B", "A")
    assert sentence(one) == (
        f"The model prefers {first} to {second} (difference of the logits +1.500), mostly because "
        f"of “best”; “his” speaks for {second}."
    )
    # colours follow the sign of the score, not the order of the sentence
    assert ("for" if sign > 0 else "against", "best") in pieces(one)
    assert sides(one) == ("speaks for A", "for B")


def test_a_ranking_gives_no_reasons():
    one = made([0.1, 2, 0.1, 0, 0.2, 1.0], method="gae", ledger=None)
    assert sentence(one) == (
        "The model says POSITIVE (99.8 %). gae ranks “best” and “life” highest."
    )


def test_a_single_output_has_no_probability():
    one = made([0, 2, 0, 0, 0, 0], 3.2, None, largest=(Output("score", 3.2),),
               target=TargetInfo(0, "score"))  # fmt: skip
    assert sentence(one) == ("The model's output for score is +3.200, mostly because of “best”.")
    assert explained(one) == "Explained: the model's output score, +3.200."


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
        "The model says POSITIVE (99.8 %). Nothing speaks for or against POSITIVE."
    )


def test_tokens_of_a_word_are_joined_and_markers_left_out():
    one = made([0, 2, 1.5, 0, 0, 0])
    split = replace(one, units=tuple(
        replace(unit, word=1) if i in (1, 2) else replace(unit, special=i == 0)
        for i, unit in enumerate(one.units)
    ))  # fmt: skip
    assert "“best film”" in sentence(split)


def test_the_page_says_it_first_then_the_legend():
    page = made([0.1, 2, 0.1, 0, -0.5, 1.0]).to_html()
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


def test_embedded_models_of_every_kind_have_a_sentence():
    text = load("sentiment")("has a lot of the virtues of eastwood at his best.")
    assert sentence(text) == (
        "The model says POSITIVE (99.8 %), mostly because of “best” and “virtues”."
    )
    image = load("digits")("examples/three.png")
    assert sentence(image).startswith("The model says 3 (99.9 %), mostly because of the centre")
    molecule = load("bace")("CC(C)Cc1ccc(cc1)C(C)C(=O)O")
    assert "its logit is negative, -0.124, but that of inactive is lower" in sentence(molecule)


def test_methods_with_a_sign_give_reasons_without_a_ledger_too():
    one = made([0, -2, 0, 0, 0.9, 0], -1.5, target=TargetInfo(1, "A", 0, "B"), ledger=None)
    assert sentence(one) == (
        "The model prefers B to A (difference of the logits +1.500), mostly because of “best”; "
        "“his” speaks for A."
    )


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_methods_with_a_sign_are_those_that_have_one(name, bert, wordpiece):
    one = Explainer(bert, wordpiece)("the film is not good", name)
    bare = replace(one, ledger=None)
    assert are_shares(bare) == (one.ledger is not None or name == "occlusion")
    assert not (is_unsigned(one) and (one.scores < 0).any())
    assert not (is_unsigned(one) and are_shares(one))


def test_a_sum_of_gradients_has_a_sign(bert, wordpiece):
    explainer = Explainer(bert, wordpiece)
    assert is_unsigned(explainer("the film", "gradient"))
    assert not is_unsigned(explainer("the film", "gradient", reduce="sum"))


def test_tokens_are_quoted_and_what_is_no_token_is_not():
    target = TargetInfo(7, " banana", 8, " a", position=4)
    one = made([0, 2, 0, 0, -0.9, 0], 1.5, target=target)
    assert sentence(one) == (
        "The model prefers “ banana” to “ a” (difference of the logits +1.500), mostly because of "
        "“best”; “his” speaks for “ a”."
    )
    assert sides(one) == ("speaks for “ banana”", "for “ a”")
    assert heading(one).startswith("“ banana” − “ a”  output")
    several = replace(one, target=replace(target, label=" two\n", against_label=RUNNERS_UP))
    assert heading(several).startswith("“ two\\n” − the runner-up of each token  output")
    entity = replace(target, label="B-PER", against_label="O", place='"Paris", token 4')
    assert target_name(replace(one, target=entity)) == "B-PER − O"


def test_a_region_that_begins_a_sentence_is_capitalised():
    boxes = [(0, 0, 9, 9), (0, 10, 9, 19), (0, 20, 9, 29)]
    one = made(
        [1, -0.5, 0.9, 0, 0, 0], -3.0, 0.0002, target=TargetInfo(8, "8"), text=None,
        units=tuple(Unit("", box=box) for box in [*boxes, *boxes]),
        scene={"kind": "image", "width": 9, "height": 30},
        largest=(Output("3", 4.0, 0.9), Output("8", -3.0, 0.0002)),
    )  # fmt: skip
    assert sentence(one) == (
        "The model says 3 (90.0 %), not 8 (<0.1 %). The top and the bottom speak for 8; "
        "the centre against it."
    )
    assert heading(one) == "8  <0.1 %  output -3.000"


def test_the_page_names_no_colour_for_scores_that_cannot_be_negative():
    signed = made([0.1, 2, 0.1, 0, -0.5, 1.0])
    sizes = made([0.1, 2, 0.1, 0, 0.5, 1.0], method="gradient", ledger=None)
    ranked = replace(signed, method="random", ledger=None)
    assert sides(sizes) == ("ranked high by gradient, which does not say for or against", "")
    assert "blue, underlined" not in sizes.to_html()
    assert "blue, underlined</span> against it" in signed.to_html()
    assert for_legend([sizes, ranked, signed]) is signed
    assert for_legend([sizes, ranked]) is ranked
    assert "blue, underlined</span> against it" in html.render([sizes, signed])
