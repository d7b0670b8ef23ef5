"""Every kind of line in a ledger has a name and a meaning, one for terminal, pages and `serve`."""

import pytest

from tests.tracing.test_closed_calls import Head
from wherefrom import Explainer, load
from wherefrom.core.explanation import Ledger, Line
from wherefrom.show.html import waterfall
from wherefrom.show.line_kinds import LINE_KINDS, summary

TEXT = "a gorgeous film"


def kinds_of(explanation):
    return {line.kind for line in explanation.ledger.lines}


@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        ("lrp", {}, {"word", "root", "type", "position", "bias"}),
        ("lrp", {"at": "first_block", "root": None}, {"word", "norm"}),
        ("secant", {}, {"word", "reference"}),
        ("attn_lrp", {}, {"word", "softmax"}),
        ("integrated_gradients", {"steps": 2}, {"word", "baseline"}),
    ],
)
def test_lines_of_texts_have_words(method, settings, expected):
    kinds = kinds_of(load("sentiment")(TEXT, method, **settings))
    assert expected <= kinds
    assert kinds <= set(LINE_KINDS)


def test_lines_of_images_molecules_and_prototypes_have_words(rng):
    import torch

    digits = kinds_of(load("digits")("examples/three.png"))
    assert {"patch", "token", "softmax"} <= digits
    pixels = kinds_of(load("digits")("examples/three.png", units="pixels"))
    assert "pixel" in pixels
    atoms = kinds_of(load("bace")("CCO"))
    assert "atom" in atoms
    head = Head("distance").double()
    x = torch.randn(1, 5, head.inner.in_features, dtype=torch.float64)
    distance = kinds_of(Explainer(head)(x, target=0)[0])
    assert "prototype" in distance
    assert digits | pixels | atoms | distance <= set(LINE_KINDS)


def test_a_page_names_lines_as_the_terminal_does():
    ledger = Ledger(
        (Line("words", "word", 1.0), Line("blocks.0", "bias", 0.5), Line("x", "prototype", 2.0)),
        3.5,
    )
    page = waterfall(ledger)
    names = [line.label for line in summary(ledger)]
    assert names == ["tokens", "biases", "prototypes"]
    assert '<td>tokens</td><td class="dim"></td>' in page
    assert '<td>blocks.<wbr>0</td><td class="dim">biases</td>' in page
    assert "prototypes: what comparisons with the model&#x27;s prototype vectors add" in page
