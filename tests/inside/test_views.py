"""The views of the inside of a model say what its numbers say."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import wherefrom
from wherefrom.errors import FileError, InputError, MethodError
from wherefrom.show import inside as views
from wherefrom.show.inside_figure import Flow, drawings, strongest_apart
from wherefrom.show.plot_style import plot

TEXT = "The best movie I have seen, and its many virtues outweigh a slow start."


@pytest.fixture(scope="module")
def inside(sentiment):
    return sentiment.inside(TEXT)


@pytest.fixture(scope="module")
def image():
    return wherefrom.load("digits").inside("examples/three.png")


class Changed:
    """An inside of which some numbers are others."""

    def __init__(self, inside, **numbers):
        self._inside, self._numbers = inside, numbers

    def __getattr__(self, name):
        if name in self._numbers:
            return self._numbers[name]
        return getattr(self._inside, name)


def strongest(table, form):
    """The names of a table's numbers by size, by an own sort."""
    flat = [(abs(v), form.format(*i)) for i, v in np.ndenumerate(table) if not np.isnan(v)]
    return [name for _, name in sorted(flat, reverse=True)]


def test_the_top_heads_are_those_with_the_largest_numbers(inside):
    names = [name for name, _ in inside.top("head", 24)]
    assert names == strongest(inside.heads, "layer.{}.head.{}")
    for name, value in inside.top("head", 5):
        assert value == pytest.approx(inside.relevance(name), abs=1e-6)


def test_the_top_neurons_are_those_with_the_largest_sums_over_rows(inside):
    sums = np.array([inside.neurons(layer).sum(0) for layer in range(inside.depth)])
    names = [name for name, _ in inside.top("neuron", 20)]
    assert names == strongest(sums, "layer.{}.neuron.{}")[:20]
    for name, value in inside.top("neuron", 5):
        assert value == pytest.approx(inside.relevance(name), abs=1e-6)


@pytest.mark.parametrize("kind", ["attention", "mlp"])
def test_whole_parts_of_a_layer_are_ranked_with_their_relevance(inside, kind):
    top = inside.top(kind, 9)
    assert len(top) == inside.depth
    sizes = [abs(value) for _, value in top]
    assert sizes == sorted(sizes, reverse=True)
    for name, value in top:
        assert value == pytest.approx(inside.relevance(name), abs=1e-5)


def test_other_kinds_and_counts_are_refused_with_the_choices(inside):
    with pytest.raises(InputError, match="attention, head, mlp, neuron, expert, got 'layer'"):
        inside.top("layer")
    with pytest.raises(InputError, match="count must be 1 or more, got 0"):
        inside.top(count=0)


def test_what_attention_moves_to_a_unit_is_what_attention_carries_there(inside, image):
    for result in (inside, image):
        for layer in range(result.depth):
            moved = result.moved(layer)
            assert moved.shape == (len(result.units) + 1,) * 2
            assert moved[:, :-1].sum(0) == pytest.approx(result.attention[layer], abs=1e-5)
            assert moved.sum() == pytest.approx(
                result.relevance(f"layer.{layer}.attention"), abs=1e-5
            )


# Text


def rows_of(text):
    """The numbers in the rows of the table, by layer."""
    lines = [line.split() for line in text.splitlines()]
    start = next(i for i, line in enumerate(lines) if line[:1] == ["layer"])
    rows = {}
    for line in lines[start + 1 :]:
        if not line:
            return rows
        rows[line[0]] = line[1:]
    return rows


def test_the_table_has_the_numbers_of_each_layer(inside):
    rows = rows_of(str(inside))
    assert list(rows) == ["0", "1", "2", "3", "end"]
    for layer in range(4):
        stream, later, attention, mlp, head, relevance = rows[str(layer)]
        assert float(stream) == pytest.approx(inside.layers[layer].sum(), abs=6e-4)
        assert float(stream) + float(later) == pytest.approx(inside.output, abs=2e-3)
        assert float(attention) == pytest.approx(inside.attention[layer].sum(), abs=6e-4)
        assert float(mlp) == pytest.approx(inside.mlps[layer].sum(), abs=6e-4)
        assert int(head) == max(range(6), key=lambda k: abs(inside.heads[layer][k]))
        assert float(relevance) == pytest.approx(inside.heads[layer][int(head)], abs=6e-4)
    assert len(rows["end"]) == 2


def test_the_table_fits_into_80_columns(inside):
    text = views.text(inside, color=False, width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_the_claims_name_the_extremes(inside):
    heads = inside.heads
    largest, smallest = (np.unravel_index(k, heads.shape) for k in (heads.argmax(), heads.argmin()))
    claim = views.claims(inside)[-1]
    found = re.findall(r"layer\.(\d)\.head\.(\d)", claim)
    assert [tuple(map(int, pair)) for pair in found] == [largest, smallest]
    assert claim.startswith("Of 24 heads, ")


def test_no_head_is_called_negative_if_none_is(inside):
    claim = views.claims(Changed(inside, heads=np.abs(inside.heads)))[-1]
    assert "negative" not in claim
    claim = views.claims(Changed(inside, heads=-np.abs(inside.heads)))[-1]
    assert "largest" not in claim
    assert "has the most negative" in claim


def test_the_strongest_head_of_a_layer_may_be_negative(inside):
    heads = inside.heads.copy()
    heads[2, 4] = -9.0
    assert views.strongest_of_layers(Changed(inside, heads=heads), "head")[2] == "4 -9.000"


def test_heads_that_a_layer_lacks_are_not_named(inside):
    heads = inside.heads.copy()
    heads[0] = np.nan
    named = Changed(inside, heads=heads)
    assert "layer.0.head" not in views.claims(named)[-1]
    assert "Of 18 heads" in views.claims(named)[-1]
    assert views.strongest_of_layers(named, "head")[0] == ""
    assert len(views.claims(Changed(inside, heads=np.full((4, 0), np.nan)))) == 2


def test_cuts_that_do_not_sum_to_the_output_are_said_not_to(inside):
    assert "each sums to the output, +1.315, within" in views.claims(inside)[0]
    wrong = [*inside.cuts[:5], replace(inside.cuts[5], relevance=9.0), *inside.cuts[6:]]
    gap = abs(9.0 + inside.cuts[5].later - inside.output)
    claim = views.claims(Changed(inside, cuts=wrong))[0]
    assert f"do not sum to the output, +1.315; one misses it by {gap:.2g}" in claim


def test_cuts_of_a_secant_sum_to_the_difference_to_the_reference(sentiment):
    result = sentiment.inside("a charming film", "secant")
    reference = result.explanation.ledger.of("reference")
    assert reference != 0
    claim = views.claims(result)[0]
    assert f"the output minus that for the reference, {result.output - reference:+.3f}" in claim
    assert "do not sum" not in claim


def test_a_model_without_blocks_has_no_layers():
    import torch

    explainer = wherefrom.Explainer(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(20, 2)))
    result = explainer.inside(torch.ones(5, 4))
    assert views.NO_LAYERS in str(result)
    assert views.NO_LAYERS in result.to_html()
    with pytest.raises(InputError, match="no repeated blocks"):
        result.plot()


def test_experts_have_a_column_and_a_line():
    from tests.helpers import family_model

    result = wherefrom.Explainer(family_model("mixtral", "classify")).inside([3, 4, 5, 6])
    text = str(result)
    assert "strongest expert" in text
    best = strongest(result.experts, "layer.{}.expert.{}")[0]
    assert result.top("expert", 1)[0][0] == best
    assert re.search(rf"^experts  {re.escape(best)} ", text, re.MULTILINE)
    assert result.top("neuron") == []  # those of experts have no name


# JSON and rows


def test_json_has_every_number(inside, tmp_path):
    data = json.loads(inside.to_json(tmp_path / "inside.json"))
    assert json.loads((tmp_path / "inside.json").read_text(encoding="utf-8")) == data
    assert data["schema"] == "wherefrom/inside/1"
    for name in ("layers", "attention", "mlps", "heads"):
        assert np.array_equal(np.array(data[name]), getattr(inside, name))
    assert wherefrom.Explanation.from_dict(data["explanation"]) == inside.explanation
    assert [cut["relevance"] + cut["later"] for cut in data["cuts"]] == [
        cut.total for cut in inside.cuts
    ]
    assert data["neurons"] == dict(inside.top("neuron", 100))


def test_a_missing_head_is_null_in_json(inside):
    heads = inside.heads.copy()
    heads[1, 2] = np.nan
    data = json.loads(json.dumps(type(inside).to_dict(Changed(inside, heads=heads))))
    assert data["heads"][1][2] is None


def test_the_frame_has_a_row_for_each_component(inside):
    frame = inside.to_frame().set_index("name")
    assert len(frame) == 4 + 24 + 4
    assert frame.loc["layer.2.head.3", "relevance"] == inside.heads[2, 3]


# Figures


def test_the_layer_plot_shows_the_layers(inside):
    figure = inside.plot("layers")
    axes, side, *_ = figure.axes
    assert np.array_equal(axes.images[0].get_array(), inside.layers)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0", "1", "2", "3", "end"]
    assert [tick.get_text() for tick in axes.get_xticklabels()][:3] == ["[CLS]", "The", "best"]
    assert [bar.get_width() for bar in side.patches] == pytest.approx(inside.layers.sum(1))
    assert side.lines[0].get_xdata() == pytest.approx([inside.output] * 5)


def test_the_head_plot_shows_every_number(inside):
    axes = inside.plot("heads").axes[0]
    assert np.array_equal(axes.images[0].get_array(), inside.heads)
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert texts[5, 0] == "+1.67"
    assert len(texts) == 24


@pytest.mark.parametrize("units", [3, 24])
def test_bands_into_a_bar_sum_to_it(inside, image, units):
    for result in (inside, image):
        flow = Flow(result, units)
        assert flow.bars.sum(1) == pytest.approx(
            [cut.relevance for cut in views.stream_cuts(result)], abs=1e-4
        )
        into = flow.stays + flow.moved.sum(1)
        assert into == pytest.approx(flow.bars[1:], abs=1e-9)
        assert not any(np.diag(part).any() for part in flow.moved)


def test_units_that_the_flow_does_not_name_are_summed(inside):
    flow = Flow(inside, 3)
    strongest_units = np.argsort(-np.abs(inside.layers).max(0))[:3]
    assert flow.named == sorted(strongest_units)
    assert flow.labels[-1] == "17 others"
    assert flow.bars[:, :3] == pytest.approx(inside.layers[:, flow.named])
    assert Flow(inside, 24).labels[:2] == ["[CLS]", "The"]


def test_the_caption_states_what_is_left_out(inside):
    flow = Flow(inside, 24)
    sizes = np.abs(flow.moved)
    drawn = sum(patch.get_gid() == "moved" for patch in inside.plot("flow").axes[0].patches)
    assert drawn == (sizes >= flow.least).sum()
    share = sizes[sizes < flow.least].sum() / sizes.sum()
    assert f"{share:.0%}".replace("%", " %") in flow.caption


def test_the_flow_names_constants_after_the_last_layer_if_there_are_any(inside):
    def notes(result):
        return [text.get_text() for text in result.plot("flow").axes[0].texts]

    assert f"output\n{views.signed(inside.output)}\n(constants\n-0.195)" in notes(inside)
    without = [*inside.cuts[:-1], replace(inside.cuts[-1], later=0.0)]
    kinds = drawings(Changed(inside, cuts=without))
    changed = Changed(inside, plot=lambda kind: plot(kinds, kind, None, None, None, None, {}))
    assert f"output\n{views.signed(inside.output)}" in notes(changed)


def test_an_image_has_a_row_for_what_is_no_patch(image):
    flow = Flow(image, 100)
    assert flow.labels[-1] == "other rows"
    assert flow.bars[-1, -1] == pytest.approx(views.stream_cuts(image)[-1].relevance, abs=1e-4)
    assert image.plot("layers").axes[0].images[0].get_array().shape == (5, 50)


def test_labels_have_room():
    strengths = np.arange(200.0)
    shown = strongest_apart(strengths, 50)
    assert 199 in shown
    assert min(np.diff(shown)) >= 4
    assert strongest_apart(np.ones(20), 50) == list(range(20))


def test_errors_of_plots_name_the_choices(inside, sentiment, tmp_path):
    with pytest.raises(InputError, match=r'no figure "head".*"layers", "heads", "flow"'):
        inside.plot("head")
    with pytest.raises(InputError, match="units must be 1 or more"):
        inside.plot("flow", units=0)
    with pytest.raises(FileError, match="cannot write"):
        inside.plot(path=tmp_path / "plot.nothing")
    with pytest.raises(MethodError, match="secant has no edges"):
        sentiment.inside("a film", "secant").plot("flow")
    without = Changed(inside, heads=np.full((4, 0), np.nan))
    with pytest.raises(InputError, match="heads of this model are not known"):
        plot(drawings(without), "heads", None, None, None, None, {})


# Page


def test_the_page_has_the_numbers_and_needs_no_network(inside, tmp_path):
    page = inside.to_html(tmp_path / "inside.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    stream = next(table for table in data["maps"] if table["name"] == "stream")
    assert np.array(stream["rows"]) == pytest.approx(inside.layers, rel=1e-3)
    assert data["units"][2] == "best"
    assert "://" not in page
    for (layer, head), value in np.ndenumerate(inside.heads):
        name = f"layer.{layer}.head.{head} {views.signed(value)}"
        color = "for" if value > 0 else "against"
        assert f'title="{name}" style="background:rgba(var(--{color}),' in page


def test_a_linked_head_has_what_flows_through_it(inside):
    page = inside.to_html()
    linked = re.findall(r'<a href="#(layer\.\d\.head\.\d)">', page)
    assert sorted(linked) == sorted(name for name, _ in inside.top("head", 12))
    for name in linked:
        part = inside.through(name)
        units, other = (
            views.signed(v) for v in (part.scores.sum(), part.output - part.scores.sum())
        )
        heading = re.search(rf'id="{re.escape(name)}"><h3>(.*?)</h3>', page)[1]
        assert heading == (
            f"{name} carries {views.signed(part.output)}: {units} from these units, {other} from "
            "constants and other inputs."
        )


def test_a_text_cannot_leave_the_page(sentiment):
    page = sentiment.inside("<script>alert(1)</script> & a <b>film</b>").to_html()
    assert "<script>alert" not in page
    assert "<b>film" not in page


def test_a_notebook_gets_the_tables_without_a_script(inside):
    block = inside._repr_html_()
    assert "<script" not in block
    assert "canvas" not in block.replace(".map canvas", "")
    assert "href=" not in block
    assert "Strongest neurons" in block


# A part of an output


def test_the_headline_of_a_part_does_not_call_it_the_output(inside):
    part = inside.through("layer.0.head.5")
    text = " ".join(str(part).split())
    size = views.signed(part.output)
    assert text.startswith(f"NEGATIVE through layer.0.head.5 {size} ")
    assert f"The part of NEGATIVE that flows through layer.0.head.5 is {size}." in text
    assert "The model" not in text
    assert f"which is more than the part, {size};" in text
    assert "“outweigh” add most to it." in text
    assert wherefrom.Explanation.from_json(part.to_json()) == part


def test_components_in_turn_are_named_in_turn(inside):
    target = inside.through("layer.0.head.5", "layer.2.mlp").target
    assert target.through == "layer.0.head.5 → layer.2.mlp"
