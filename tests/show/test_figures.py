"""Figures show what the explanation says, without overlaps, and leave matplotlib alone."""

import itertools
import re
import types
from dataclasses import replace

import matplotlib
import matplotlib.backends.backend_agg
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.colors import to_rgb
from PIL import Image

from tests.show.test_svg import explained
from wherefrom import Comparison, load
from wherefrom.core.explanation import Explanation, Ledger, Line, TargetInfo, Unit
from wherefrom.errors import FileError, InputError
from wherefrom.show import figure
from wherefrom.show.plot_style import COLORS, TINTS, saved_figure

METHODS = ["lrp", "random"]
PROFILE = {f"blocks.{i}": {"share": 0.5, "low": 0.2, "high": 0.9} for i in range(3)}


@pytest.fixture
def session():
    """A caller with a backend and a style of their own, and an open figure."""
    backend, rc = matplotlib.get_backend(), dict(matplotlib.rcParams)
    pyplot.switch_backend("svg")
    matplotlib.rcParams.update({"font.size": 7, "axes.spines.top": True, "figure.dpi": 50})
    pyplot.figure()
    yield
    pyplot.close("all")
    pyplot.switch_backend(backend)
    matplotlib.rcParams.update({key: rc[key] for key in rc if key != "backend"})


def evaluation():
    """The fields of an evaluation that plots read."""
    chance = np.random.default_rng(0)
    record = {"delta_weight": 0.3, "delta_js": 0.1, "flips_highest": True, "flips_random": False}
    studies = {
        "attention_erasure": [{"single": record, "to_flip": dict.fromkeys(METHODS, 0.5)}] * 3,
        "layers": [{}],
    }
    norms = {"gradient_x_input": [{"before": 0.1, "after": 0.9}] * 4}
    return types.SimpleNamespace(
        methods=METHODS,
        metrics=["activation", "flip"],
        curves={"activation": {name: [0.1, 0.4, 0.9] for name in METHODS}},
        values={name: {"flip": chance.random(9).tolist()} for name in METHODS},
        sums={name: chance.normal(size=(9, 2)).tolist() for name in METHODS},
        conservation=dict.fromkeys(METHODS, types.SimpleNamespace(slope=-0.001, r2=0.5)),
        agreement={a: dict.fromkeys(METHODS, 0.5) for a in METHODS},
        studies=studies,
        title=lambda metric: metric,
        meaning=lambda metric: f"what {metric} is",
        better={"activation": "higher"},
        study=lambda name: {"blocks": dict.fromkeys(METHODS, PROFILE), "norms": norms},
    )


def state():
    return matplotlib.get_backend(), dict(matplotlib.rcParams), pyplot.get_fignums()


def curves_of(count, lower):
    curves = {f"method {k}": [0.0, k / 10, 1.0] for k in range(count)}
    result = evaluation()
    result.metrics, result.curves = ["activation"], {"activation": curves}
    result.better = {"activation": "lower" if lower else "higher"}
    return figure.evaluation_drawings(result)["activation"](), curves


def drawn(drawing):
    canvas = matplotlib.figure.Figure(figsize=drawing.size, layout="constrained")
    matplotlib.backends.backend_agg.FigureCanvasAgg(canvas)
    if drawing.on_figure is not None:
        drawing.on_figure(canvas)
    else:
        drawing.on_axes(canvas.subplots())
    canvas.draw_without_rendering()
    return canvas


@pytest.mark.parametrize("count", [3, 9])
@pytest.mark.parametrize("lower", [False, True])
def test_the_best_curve_comes_first(count, lower):
    drawing, curves = curves_of(count, lower)
    canvas = drawn(drawing)
    legend = canvas.axes[0].get_legend()
    names = [axes.get_title() for axes in canvas.axes if axes.get_title()]
    if legend is not None:
        names = [text.get_text() for text in legend.get_texts()]
    assert names == list(curves)[:: 1 if lower else -1]


def evaluations():
    """An evaluation with figures of all kinds."""
    return {kind: draw() for kind, draw in figure.evaluation_drawings(evaluation()).items()}


def test_plots_leave_backend_rcparams_and_open_figures_alone(session, tmp_path):
    before = state()
    shown = explained(label="cat")
    shown.plot(path=tmp_path / "map.png")
    shown.plot("waterfall").savefig(tmp_path / "waterfall.pdf")
    assert state() == before


def test_an_evaluation_has_a_figure_for_each_of_its_measurements():
    assert set(evaluations()) == {
        "activation", "conservation", "flip", "agreement", "attention_erasure",
        "attention_to_flip", "layers", "collapse",
    }  # fmt: skip


@pytest.mark.parametrize("kind", evaluations())
def test_no_text_of_an_evaluations_figure_overlaps_another(kind):
    assert_no_overlap(drawn(evaluations()[kind]))


def test_a_plot_that_fails_leaves_the_style_alone_and_no_file(session, tmp_path):
    before = state()
    with pytest.raises(ZeroDivisionError), saved_figure(tmp_path / "a.png") as canvas:
        canvas.subplots().plot([1 / 0])
    assert state() == before
    assert not (tmp_path / "a.png").exists()


def test_the_style_of_plots_is_the_librarys_own(session, tmp_path):
    with saved_figure(tmp_path / "a.png") as canvas:
        axes = canvas.subplots()
        assert (canvas.dpi, axes.xaxis.label.get_size()) == (120, 10)
        assert not axes.spines["top"].get_visible()


def test_a_file_that_cannot_be_written_is_an_error_of_the_library(tmp_path):
    (tmp_path / "taken").write_text("", encoding="utf-8")
    with pytest.raises(FileError, match="cannot write"), saved_figure(tmp_path / "taken" / "a.png"):
        pass


@pytest.mark.parametrize("values", [{"a": [0.1, 0.2, 0.9], "b": [0.1]}, {"a": [1.0], "b": [1.0]}])
def test_a_histogram_may_have_a_single_value(values):
    canvas = drawn(figure.histogram_drawing(values, "relevance"))
    entries = [text.get_text() for text in canvas.axes[0].get_legend().get_texts()]
    assert entries[0] == f"a, {len(values['a'])} occurrences"


def test_boxes_are_over_the_texts_that_some_ranking_flips(monkeypatch):
    boxes = []
    monkeypatch.setattr(figure, "draw_boxes", lambda axes, values: boxes.append(values))
    shares = {"slow": [0.9, 1.0, 1.0], "fast": [0.5, 0.25, 1.0]}
    drawn(figure.until_flip_drawing(shares))
    assert list(boxes[0].items()) == [("fast", [0.5, 0.25]), ("slow", [0.9, 1.0])]


def test_a_profile_may_have_more_methods_than_there_are_colours():
    blocks = {f"method {i}": PROFILE for i in range(len(COLORS) + 1)}
    canvas = drawn(figure.profile_drawing(blocks))
    entries = [text.get_text() for text in canvas.axes[0].get_legend().get_texts()]
    assert entries == list(blocks)


# Explanations

SENTENCE = "a fine film , not a dull one"
SCORES = [0.5, 2.0, 0.25, 0.0, -1.0, 0.25, -0.5, 0.0]


def sentence(scores=SCORES, text=SENTENCE, method="secant", **changes):
    """An explanation of a text with these scores, and what else adds up to the output."""
    units = tuple(
        Unit(match[0], *match.span(), word=i) for i, match in enumerate(re.finditer(r"\S+", text))
    )
    total = float(sum(scores))
    lines = (Line("tokens", "word", total), Line("blocks.0", "bias", 0.25))
    one = Explanation(
        units=units, scores=np.array(scores, np.float32), target=TargetInfo(1, "POSITIVE"),
        output=total + 0.25, probability=0.9, method=method, text=text, model="tiny",
        ledger=Ledger(lines, total + 0.25),
    )  # fmt: skip
    return replace(one, **changes)


def texts_of(canvas):
    """The texts that are drawn: no ticks out of view, nothing on axes that are off."""
    record, draw = [], matplotlib.text.Text.draw

    def recorded(text, renderer):
        record.append(text)
        draw(text, renderer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matplotlib.text.Text, "draw", recorded)
        canvas.draw_without_rendering()
    shown = [text for text in record if text.get_visible() and text.get_text().strip()]
    return list({id(text): text for text in shown}.values())


def assert_no_overlap(canvas):
    """No two visible texts of a figure cover each other, and all are within the figure."""
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts_of(canvas)]
    assert boxes
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        down = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert min(across, down) <= 2, (one, other)
    width, height = canvas.get_size_inches() * canvas.dpi
    for text, box in boxes:
        assert box.x0 >= -2, text
        assert box.x1 <= width + 2, text
        assert box.y0 >= -2, text
        assert box.y1 <= height + 2, text


def colors_behind(canvas, word):
    """The colours of the rectangles behind a word."""
    axes = canvas.axes[0]
    (text,) = [text for text in texts_of(canvas) if text.get_text() == word]
    x, y = text.get_position()
    return [
        patch.get_facecolor()[:3]
        for patch in axes.patches
        if patch.get_x() <= x <= patch.get_x() + patch.get_width()
        and patch.get_y() <= y <= patch.get_y() + patch.get_height()
    ]


def mixed(tint, strength):
    return tuple(1 - 0.85 * strength * (1 - channel) for channel in to_rgb(TINTS[tint]))


def test_a_text_is_drawn_as_a_sentence_in_the_colours_of_its_scores():
    canvas = sentence(text="one fine film , not two dull ones").plot()
    assert_no_overlap(canvas)
    order = [text.get_text() for text in texts_of(canvas)]
    begin = order.index("one")
    assert order[begin : begin + 8] == "one fine film , not two dull ones".split()
    for word, score in zip(order[begin:], SCORES, strict=False):
        expected = [mixed("for" if score > 0 else "against", abs(score) / 2)] if score else []
        np.testing.assert_allclose(colors_behind(canvas, word), expected)
    # negative scores are underlined, and the key says what the colours mean
    assert len([line for line in canvas.axes[0].lines if line.get_linestyle() == ":"]) == 2 + 1
    joined = " ".join(order)
    assert "counts for POSITIVE" in joined
    assert "against it" in joined
    assert "full colour: a score of 2.000" in joined


@pytest.mark.parametrize("figsize", [None, (3.3, 1.5), (7, 0.8)])
def test_a_long_text_is_broken_into_lines_that_fit(figsize):
    words = [f"word{i}" for i in range(60)]
    one = sentence([0.5, -0.25, 1.0] * 20, " ".join(words))
    canvas = one.plot(figsize=figsize)
    assert_no_overlap(canvas)
    lines = {round(text.get_position()[1], 3) for text in texts_of(canvas)}
    assert len(lines) > 3
    assert [t.get_text() for t in texts_of(canvas) if t.get_text().startswith("word")] == words
    if figsize is not None:
        assert tuple(canvas.get_size_inches()) == figsize


def test_a_comparison_has_a_row_of_coloured_tokens_for_each_method():
    unsigned = sentence(np.abs(SCORES).tolist(), method="gae", label="gae", ledger=None)
    rows = Comparison([sentence(label="secant(root=unk)"), sentence(label="lrp"), unsigned])
    canvas = rows.plot()
    assert_no_overlap(canvas)
    shown = [text.get_text() for text in texts_of(canvas)]
    for row in rows:
        assert shown.count(row.method_label) == 1
    assert shown.count("film") == 3
    tops = [t.get_position()[1] for t in texts_of(canvas) if t.get_text() == "film"]
    labels = [t.get_position()[1] for t in texts_of(canvas) if t.get_text() in ("lrp", "gae")]
    assert tops[1:] == labels
    greens = [
        patch
        for patch in canvas.axes[0].patches
        if patch.get_facecolor()[:3] == mixed("strength", 1)
    ]
    assert len(greens) == 1 + 1  # the strongest token of gae, and the key
    assert "strength without a sign" in " ".join(shown)


def test_what_looks_like_mathematics_or_controls_is_text():
    canvas = sentence([1.0, 0.5, 0.25], "$5 $6_x \x1b[31m").plot()
    shown = [text.get_text() for text in texts_of(canvas)]
    assert {"$5", "$6_x", "\\u001b[31m"} <= set(shown)
    assert_no_overlap(canvas)
    assert_no_overlap(sentence([1.0, 0.5], "$5 $6").plot("waterfall"))


@pytest.mark.parametrize("kind", ["waterfall", "bar"])
@pytest.mark.parametrize("figsize", [None, (3.3, 2.2)])
def test_bars_have_their_numbers_in_a_column_without_overlaps(kind, figsize):
    long = sentence(text="a quite-extraordinarily-long-hyphenated-word film , not a dull one")
    canvas = long.plot(kind, figsize=figsize, units=5)
    assert_no_overlap(canvas)
    axes = canvas.axes[0]
    numbers = [t for t in axes.texts if re.fullmatch(r"[+-][\d.e-]+", t.get_text())]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert len(numbers) == len(names)
    edges = [text.get_window_extent() for text in numbers]
    assert max(e.x1 for e in edges) - min(e.x1 for e in edges) < 1
    bars = [patch.get_window_extent() for patch in axes.patches]
    assert min(edge.x0 for edge in edges) >= max(bar.x1 for bar in bars)
    assert numbers[0].get_text() == "+2.000"
    colors = {
        name: patch.get_facecolor()[:3] for name, patch in zip(names, axes.patches, strict=True)
    }
    assert colors["quite-extraordinarily-l…" if "film" not in names[0] else names[0]] == to_rgb(
        TINTS["for"]
    )
    assert colors["not"] == to_rgb(TINTS["against"])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "counts for POSITIVE", "against it",
    ]  # fmt: skip
    if kind == "waterfall":
        assert names[-1] == "output"
        assert axes.patches[-1].get_width() == pytest.approx(long.output)
        ends = [patch.get_x() + patch.get_width() for patch in axes.patches]
        assert ends[-2] == pytest.approx(ends[-1], abs=1e-6)


def test_patches_are_squares_with_their_numbers():
    one = explained(side=4, size=8, label="cat")
    canvas = one.plot()
    assert_no_overlap(canvas)
    bare, panel = canvas.axes
    assert bare.get_title() == "input"
    heat = panel.images[-1]
    assert heat.get_interpolation() == "nearest"
    scale = np.abs(one.scores).max()
    np.testing.assert_allclose(heat.get_array(), one.scores.reshape(4, 4) / scale, rtol=1e-6)
    numbers = {
        (int(t.get_position()[0] // 8), int(t.get_position()[1] // 8)): t.get_text()
        for t in panel.texts
    }
    for i, score in enumerate(one.scores.tolist()):
        if abs(score) >= 0.05 * scale:
            value = float(numbers.pop((i % 4, i // 4)).replace("\u2212", "-"))
            assert value == pytest.approx(score, rel=0.06)
    assert not numbers
    for text in panel.texts:  # each within its square
        box = text.get_window_extent().transformed(panel.transData.inverted())
        assert abs(box.x1 - box.x0) <= 8
    (legend,) = canvas.legends
    assert [text.get_text() for text in legend.get_texts()][:2] == ["counts for cat", "against it"]


def test_pixels_without_room_have_no_numbers():
    assert not explained(side=32, size=1).plot().axes[1].texts
    assert not explained(side=16, size=2).plot(figsize=(2, 1)).axes[1].texts


def test_a_molecule_has_its_scores_beside_its_letters():
    one = load("bace")("O=S(=O)(N)c1ccc(Cl)c(Br)c1CN(C)C(=O)Nc1ccc2[nH]ccc2c1")
    canvas = one.plot()
    assert_no_overlap(canvas)
    panel = canvas.axes[1]
    assert panel.texts
    letters = [
        patch.get_window_extent()
        for patch in panel.patches
        if isinstance(patch, matplotlib.patches.PathPatch) and patch.get_facecolor()[3]
    ]
    assert len(letters) >= 9  # O S O N H Cl Br …
    for text in panel.texts:
        box = text.get_window_extent()
        for letter in letters:
            across = min(box.x1, letter.x1) - max(box.x0, letter.x0)
            down = min(box.y1, letter.y1) - max(box.y0, letter.y0)
            assert min(across, down) <= 0.5, text.get_text()
    discs = [patch for patch in panel.patches if isinstance(patch, matplotlib.patches.Circle)]
    assert len(discs) == len(one)
    strongest = int(np.abs(one.scores).argmax())
    assert f"{one.scores[strongest]:+.2g}".replace("-", "\u2212") in [
        t.get_text() for t in panel.texts
    ]


def test_figures_are_drawn_on_axes_of_the_caller():
    canvas = matplotlib.figure.Figure(figsize=(6, 6))
    matplotlib.backends.backend_agg.FigureCanvasAgg(canvas)
    left, right = canvas.subplots(1, 2)
    assert sentence().plot(ax=left) is left
    assert explained(label="cat").plot(ax=right) is right
    canvas.draw_without_rendering()
    assert "film" in [text.get_text() for text in left.texts]
    assert len(right.images) == 2
    for wrong in ({"path": "a.png"}, {"figsize": (3, 3)}, {"dpi": 300}):
        with pytest.raises(InputError, match="do not apply to axes of yours"):
            sentence().plot(ax=left, **wrong)
    rows = Comparison([explained(label="cat"), explained(label="cat", method="gae")])
    with pytest.raises(InputError, match="several panels"):
        rows.plot(ax=left)


def test_sizes_are_those_that_were_asked_for(tmp_path):
    sentence().plot(path=tmp_path / "a.png", figsize=(3, 2), dpi=200)
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size == (600, 400)
    sentence().plot("bar", tmp_path / "b.png", figsize=(4, 3), dpi=100)
    with Image.open(tmp_path / "b.png") as picture:
        assert picture.size == (400, 300)


@pytest.mark.parametrize("one", [sentence(), explained(label="cat")], ids=["text", "image"])
def test_fonts_of_a_pdf_are_embedded_as_truetype_and_svg_has_text(one, tmp_path):
    pdf = one.plot(path=tmp_path / "a.pdf").read_bytes()
    assert b"FontFile2" in pdf
    assert b"/Type3" not in pdf
    svg = one.plot(path=tmp_path / "a.svg").read_text(encoding="utf-8")
    assert re.search(r"<text[^>]*>[^<]*(POSITIVE|cat)", svg)


def test_fonts_are_embedded_whoever_saves_the_figure(tmp_path):
    sentence().plot("waterfall").savefig(tmp_path / "a.pdf")
    assert b"/Type3" not in (tmp_path / "a.pdf").read_bytes()


def test_an_unknown_kind_option_or_format_is_an_error_that_names_the_others(tmp_path):
    with pytest.raises(InputError, match='"heatmap", "waterfall", "bar"'):
        sentence().plot("pie")
    with pytest.raises(InputError, match=r'plot\("heatmap"\): got an unexpected keyword argument'):
        sentence().plot(units=3)
    with pytest.raises(InputError, match="1 or more"):
        sentence().plot("bar", units=0)
    with pytest.raises(FileError, match=r"cannot write .*foo"):
        sentence().plot(path=tmp_path / "a.foo")
    with pytest.raises(InputError, match="there are: none"):
        Comparison().plot()
