"""DIX against nested Python loops, and what it costs in passes."""

import pytest
import torch

from benchmarks.tiny import model as tiny
from tests.methods.calling import family, of_ids, rows_run, same, scores
from tests.oracles import attended
from tests.oracles import maps as oracle
from wherefrom.errors import MethodError

IDS = [2, 17, 9, 33, 3]
LAYERS = 3


@pytest.fixture(scope="module")
def bert():
    return family("bert", "classify", num_hidden_layers=LAYERS)


def see(model):
    return lambda scales: attended.bert(model, IDS, 1, scales)


def dix(model, rows=(IDS,), **settings):
    return scores(model, of_ids(model, list(rows)), "dix", 1, **settings)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("readout", ["auto", "all"])
@pytest.mark.parametrize(
    ("layers", "steps"),
    [((-1,), 3), ((-1, -2), 2), ((0, 2), 3), ((2, 0, 1), 2)],
)
def test_definition_is_the_nested_mean_of_gradient_rollout(bert, layers, steps, readout, skip):
    chosen = [layer % LAYERS for layer in layers]
    expected = oracle.dix_definition(see(bert), LAYERS, chosen, steps, readout == "all", skip)
    found = dix(bert, variant="definition", layers=layers, steps=steps, readout=readout, skip=skip)
    same(found[0], expected)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("layers", "steps", "readout", "skip"),
    [((-1, -2), 10, "auto", False), ((-1,), 3, "all", True), ((0, 1, 2), 2, "auto", True)],
)
def test_authors_variant_is_their_program(bert, layers, steps, readout, skip, last):
    chosen = [layer % LAYERS for layer in layers]
    plain = attended.bert(bert, IDS, 1)
    expected = oracle.dix_authors(
        lambda fixed: attended.bert(bert, IDS, 1, fixed=fixed),
        plain, chosen, steps, readout == "all", skip, last,
    )  # fmt: skip
    settings = {"layers": layers, "steps": steps, "readout": readout, "skip": skip}
    same(dix(bert, faithful_to_code=last, **settings)[0], expected)


def test_the_slip_of_the_code_is_not_the_default(bert):
    own, last = dix(bert), dix(bert, faithful_to_code=True)
    assert not torch.allclose(own, last, rtol=1e-3)
    same(dix(bert, layers=(-1,)), dix(bert, layers=(-1,), faithful_to_code=True), 1e-12)


def test_defaults_are_the_last_two_blocks_and_ten_steps(bert):
    assert torch.equal(dix(bert), dix(bert, layers=(-1, -2), steps=10, variant="authors"))


@pytest.mark.parametrize("layers", [(-1,), (0, 1)])
def test_one_step_of_the_definition_is_gradient_rollout(bert, layers):
    expected = scores(bert, of_ids(bert, [IDS]), "gradient_rollout", 1)
    same(dix(bert, variant="definition", layers=layers, steps=1), expected, 1e-12)


@pytest.mark.parametrize(("layers", "steps"), [((-1,), 5), ((0, 2), 3), ((0, 1, 2), 2)])
def test_definition_takes_steps_to_the_number_of_layers_passes(layers, steps):
    model = tiny("bert", "classify", num_hidden_layers=LAYERS)
    dix(model, [IDS, IDS[:3]], steps=1)  # looks once whether the model keeps samples apart
    with rows_run(model) as rows:
        dix(model, [IDS, IDS[:3]], variant="definition", layers=layers, steps=steps)
    assert sum(rows) == 2 * steps ** len(layers)


def test_authors_variant_takes_eleven_passes_a_block():
    model = tiny("bert", "classify", num_hidden_layers=LAYERS)
    dix(model, [IDS, IDS[:3]], steps=1)
    with rows_run(model) as rows:
        dix(model, [IDS, IDS[:3]])
    assert sum(rows) == 2 * (1 + 2 * 11)


def test_a_layer_named_twice_counts_once(bert):
    once = dix(bert, variant="definition", layers=(-1,), steps=3)
    same(dix(bert, variant="definition", layers=(-1, 2), steps=3), once, 1e-12)


@pytest.mark.parametrize("layers", [(3,), (-4,), (0, 9)])
def test_a_layer_that_is_not_there_is_named(bert, layers):
    with pytest.raises(MethodError, match=rf"no layer {layers[-1]}: .* layers 0 to 2"):
        dix(bert, layers=layers)


@pytest.mark.parametrize("settings", [{"steps": 0}, {"layers": ()}])
def test_nothing_to_integrate_is_refused(bert, settings):
    with pytest.raises(MethodError, match="at least one step and one layer"):
        dix(bert, **settings)
