"""Plots are written as files and leave the caller's matplotlib alone."""

import types

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from PIL import Image

from tests.show.test_svg import explained
from wherefrom.errors import FileError
from wherefrom.show import figure, plot_style
from wherefrom.show.explanation_figure import scene_plot
from wherefrom.show.plot_style import COLORS, saved_figure

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


@pytest.mark.parametrize("count", [3, 9])
def test_the_best_curve_comes_first(count, tmp_path, monkeypatch):
    curves = {f"method {k}": [0.0, k / 10, 1.0] for k in range(count)}
    orders = []
    monkeypatch.setattr(plot_style, "save", lambda drawn, path: orders.append(_names(drawn)))
    for lower in (False, True):
        figure.curves_plot(curves, "x", "y", tmp_path / "curves.png", lower)
    assert orders == [list(curves)[::-1], list(curves)]


def _names(drawn):
    """The methods of a plot: of its legend, or of its panels."""
    legend = drawn.axes[0].get_legend()
    if legend is not None:
        return [text.get_text() for text in legend.get_texts()]
    return [axes.get_title() for axes in drawn.axes if axes.get_title()]


def test_plots_leave_backend_rcparams_and_open_figures_alone(session, tmp_path):
    before = state()
    paths = figure.plot_evaluation(evaluation(), tmp_path)
    paths.append(figure.histogram_plot({"a": [0.1, 0.9]}, "relevance", tmp_path / "h.png"))
    paths.append(scene_plot([explained(label="cat")], tmp_path / "scene.png"))
    explained(label="cat").to_png(tmp_path / "map.png")
    assert state() == before
    assert {path.stem for path in paths} == {
        "activation", "conservation", "flip", "agreement", "attention_erasure",
        "attention_to_flip", "layers", "collapse", "h", "scene",
    }  # fmt: skip
    for path in paths:
        with Image.open(path) as picture:
            assert picture.format == "PNG"
            assert picture.width > 200


def test_a_plot_that_fails_leaves_the_style_alone_and_no_file(session, tmp_path):
    before = state()
    with pytest.raises(ZeroDivisionError), saved_figure(tmp_path / "a.png") as drawn:
        drawn.subplots().plot([1 / 0])
    assert state() == before
    assert not (tmp_path / "a.png").exists()


def test_the_style_of_plots_is_the_librarys_own(session, tmp_path):
    with saved_figure(tmp_path / "a.png") as drawn:
        axes = drawn.subplots()
        assert (drawn.dpi, axes.xaxis.label.get_size()) == (120, 10)
        assert not axes.spines["top"].get_visible()


def test_a_file_that_cannot_be_written_is_an_error_of_the_library(tmp_path):
    (tmp_path / "taken").write_text("", encoding="utf-8")
    with pytest.raises(FileError, match="cannot write"), saved_figure(tmp_path / "taken" / "a.png"):
        pass


@pytest.mark.parametrize("values", [{"a": [0.1, 0.2, 0.9], "b": [0.1]}, {"a": [1.0], "b": [1.0]}])
def test_a_histogram_may_have_a_single_value(values, tmp_path):
    path = figure.histogram_plot(values, "relevance", tmp_path / "a.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_boxes_are_over_the_texts_that_some_ranking_flips(tmp_path, monkeypatch):
    boxes = []
    monkeypatch.setattr(figure, "draw_boxes", lambda axes, values: boxes.append(values))
    shares = {"slow": [0.9, 1.0, 1.0], "fast": [0.5, 0.25, 1.0]}
    figure.until_flip_plot(shares, tmp_path / "a.png")
    assert list(boxes[0].items()) == [("fast", [0.5, 0.25]), ("slow", [0.9, 1.0])]


def test_a_profile_may_have_more_methods_than_there_are_colours(tmp_path):
    blocks = {f"method {i}": PROFILE for i in range(len(COLORS) + 1)}
    assert figure.profile_plot(blocks, tmp_path / "a.png").exists()
