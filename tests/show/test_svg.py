"""An explained image on a page, in a file, and back: without the model, and all text escaped."""

import base64
import io
import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
from PIL import Image

from wherefrom import load
from wherefrom.core.explanation import Explanation, Ledger, Line, TargetInfo, Unit
from wherefrom.show.html import render, render_classes
from wherefrom.show.sentence import explained as explained_words
from wherefrom.show.sentence import pieces
from wherefrom.show.svg import cells, heatmap

BAD = '<script>alert("x")</script>'


def explained(side=4, size=8, method="lrp", name=BAD, label=BAD, seed=0):
    """An explanation of a random image with side × side patches."""
    chance = np.random.default_rng(seed)
    whole = side * size
    png = io.BytesIO()
    Image.fromarray(chance.integers(0, 256, (whole, whole, 3), dtype=np.uint8)).save(png, "PNG")
    units = tuple(
        Unit(f"{x},{y}", box=(x, y, x + size, y + size))
        for y in range(0, whole, size)
        for x in range(0, whole, size)
    )
    scores = chance.normal(size=side**2).astype(np.float32)
    total = float(scores.sum())
    return Explanation(
        units=units,
        scores=scores,
        target=TargetInfo(1, label),
        output=total,
        probability=0.75,
        method=method,
        ledger=Ledger((Line("patches", "patch", total),), total),
        parts={"patch": scores},
        scene={
            "kind": "image",
            "png": base64.b64encode(png.getvalue()).decode(),
            "width": whole,
            "height": whole,
            "name": name,
        },
        model=BAD,
    )


def test_json_and_back_with_scene_and_boxes(tmp_path):
    first = explained()
    first.to_json(tmp_path / "one.json")
    back = Explanation.from_json(tmp_path / "one.json")
    assert back.units == first.units
    assert back.units[5].box == (8, 8, 16, 16)
    assert back.scene == first.scene
    np.testing.assert_array_equal(back.scores, first.scores)
    np.testing.assert_array_equal(back.parts["patch"], first.parts["patch"])
    assert back.to_html() == first.to_html()
    assert str(back) == str(first)


def test_classes_side_by_side_have_a_sentence_each_and_a_legend_for_both():
    columns = [[explained(label=label, seed=seed)] for seed, label in enumerate(("four", "nine"))]
    page = render_classes(columns)
    assert page.count("<h1>") == 1
    for column in columns:
        words = "".join(text for _, text in pieces(column[0]))
        assert words in unescape(re.sub("<[^>]*>", "", page)).replace("\u00a0", " ")
        assert explained_words(column[0]) in page.replace("&nbsp;", " ")
    assert "counts for the class of the column" in page
    assert "counts for four" not in page


def test_two_settings_of_one_method_are_told_apart():
    rows = [replace(explained(), label=f"lrp(gate={gate})") for gate in ("frozen", "shared")]
    cards = re.findall(r"<figcaption>(.*?)<br>", render(rows))
    assert cards == ["input", "lrp<wbr>(gate=frozen)", "lrp<wbr>(gate=shared)"]
    page = render_classes([rows, rows])
    for gate in ("frozen", "shared"):
        assert page.count(f"<td>lrp<wbr>(gate={gate})</td>") == 1
        assert page.count(f'aria-label="heatmap by lrp(gate={gate})"') == 2


def test_a_molecule_shows_the_atoms_that_its_sentence_names():
    one = load("bace")("CC(C)Cc1ccc(cc1)C(C)C(=O)O")
    drawn = heatmap(one)
    names = drawn[drawn.index('class="names"') : drawn.index('class="values"')]
    shown = set(re.findall(r"<text[^>]*>(\w+)</text>", names))
    assert shown == {text for kind, text in pieces(one) if kind in ("for", "against")}
    assert len(shown) == 6
    # on paper, where there is no switch, all atoms have their names and scores
    assert ":is(.pair,#heatmap) .molecule .values{display:inline}" in one.to_html()


@pytest.mark.parametrize("page", ["one", "many", "beside"])
def test_pages_are_self_contained_and_escaped(page):
    other = [explained(method="gae", seed=1), explained(method="gradient", seed=2)]
    text = {
        "one": lambda: explained().to_html(),
        "many": lambda: render(other),
        "beside": lambda: render_classes([other, other[::-1]]),
    }[page]()
    assert "<script" not in text.lower().replace("&lt;script", "")
    assert "&lt;script&gt;" in text
    links = re.findall(r'(?:src|href)="([^"]{0,40})', text)
    assert links
    assert all(link.startswith("data:image/png;base64,") for link in links)
    assert not re.search(r"https?:", text)


def test_every_patch_is_drawn_where_it_is():
    one = explained()
    patches = cells(one)
    assert len(patches) == 16
    assert [(c.left, c.top, c.width, c.height) for c in patches[:5]] == [
        (0, 0, 8, 8), (8, 0, 8, 8), (16, 0, 8, 8), (24, 0, 8, 8), (0, 8, 8, 8),
    ]  # fmt: skip
    np.testing.assert_allclose([c.score for c in patches], one.scores, rtol=1e-6)
    strengths = [abs(c.strength) for c in patches]
    assert max(strengths) == 1
    rects = re.findall(r'<rect x="(\d+)" y="(\d+)"', heatmap(one))
    visible = [(str(c.left), str(c.top)) for c in patches if abs(c.strength) >= 0.02]
    assert rects == visible


@pytest.mark.parametrize("side", [20, 21, 33])
def test_many_units_are_added_up_in_a_coarser_grid(side):
    one = explained(side, size=1)
    patches = cells(one, limit=100)
    assert 1 < len(patches) <= 121
    np.testing.assert_allclose(sum(c.score for c in patches), one.scores.sum(), rtol=1e-4)
    grid = one.scores.reshape(side, side)
    for c in patches:
        own = grid[c.top : c.top + c.height, c.left : c.left + c.width].sum()
        np.testing.assert_allclose(c.score, own, rtol=1e-4, atol=1e-5)
