"""Attention flow against the maximum flow of networkx, and against bounds from cuts."""

import pytest
import torch

from tests.methods.calling import family, of_ids, scores
from tests.methods.cases import IDS, Case, case
from tests.oracles import attended
from tests.oracles import maps as oracle
from wherefrom.core.progress import stopped_by
from wherefrom.core.runner import ModelRunner
from wherefrom.core.target import Case as ModelCase
from wherefrom.core.target import Target
from wherefrom.methods import method
from wherefrom.methods.attention import flows

SHORT = IDS[:5]


def _small():
    bert = family("bert", "classify", num_hidden_layers=3)
    short = family("bert", "classify", num_hidden_layers=2)
    gpt2 = family("gpt2", "write", n_layer=3)
    gpt2_eager = family("gpt2", "write", n_layer=3, attn_implementation="eager")
    bart = family("bart", "translate", attn_implementation="eager")
    return {
        "bert": Case(attended.bert(bert, SHORT, 1), {"sdpa": bert}, SHORT, 1),
        "bert of two blocks": Case(attended.bert(short, SHORT, 1), {"sdpa": short}, SHORT, 1),
        "gpt2": Case(attended.decoder(gpt2_eager, SHORT, 9), {"sdpa": gpt2}, SHORT, 9),
        "bart": Case(
            attended.both(bart, SHORT, [1, 44, 21], 9), {"sdpa": bart}, SHORT, 9, [1, 44, 21]
        ),
        "bart of equal lengths": Case(
            attended.both(bart, SHORT, [1, 44, 21, 7, 8], 9),
            {"sdpa": bart},
            SHORT,
            9,
            [1, 44, 21, 7, 8],
        ),
    }


@pytest.fixture(scope="module")
def small():
    return _small()


def flow(here, **settings):
    return scores(here.models["sdpa"], here.inputs(), "attention_flow", here.target, **settings)[0]


@pytest.mark.parametrize("readout", ["auto", "all"])
@pytest.mark.parametrize(
    "name", ["bert", "bert of two blocks", "gpt2", "bart", "bart of equal lengths"]
)
def test_flow_is_the_maximum_flow_of_the_layered_graph(small, name, readout):
    expected = oracle.attention_flow(small[name].seen, readout == "all")
    found = flow(small[name], readout=readout)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)
    assert (
        float(expected.std()) > 1e-3
    )  # otherwise all positions are equal and the test proves nothing


def test_the_flow_of_a_row_through_two_maps_is_the_one_that_the_solver_finds():
    generator = torch.Generator().manual_seed(0)
    steps = [torch.rand(9, 9, generator=generator).double().softmax(-1) for _ in range(2)]
    steps = [(8 * step).softmax(-1) for step in steps]
    for row in (0, 4):
        read = torch.eye(9, dtype=torch.float64)[row]
        direct = flows(steps, [(0, 0)] * 2, {0: read})[0]
        # a second stream that no map reaches: nothing changes, but the solver is needed
        solved = flows(steps, [(0, 0)] * 2, {0: read, 1: torch.zeros(1).double()})[0]
        torch.testing.assert_close(direct, solved, rtol=0, atol=1e-7)
        assert float(direct.std()) > 1e-3


def test_flow_to_a_shifted_copy_goes_to_the_original():
    here = case("bart that classifies")
    expected = here.units(oracle.attention_flow(here.seen))
    torch.testing.assert_close(flow(here), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart"])
def test_no_flow_exceeds_what_the_readout_gives_nor_what_a_place_takes(small, name):
    here = small[name]
    found = flow(here)
    assert (found >= 0).all()
    assert (found <= 1 + 1e-9).all()
    seen = here.seen
    size = sum(seen.sizes)
    step = oracle.in_joint(seen, 0, oracle.mean_map(seen.maps[0]))
    into = oracle.row_normalised(torch.eye(size).double() + step).sum(0)
    assert (found <= into + 1e-7).all()


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart"])
def test_more_flows_to_a_place_than_rollout_sends_there(small, name):
    here = small[name]
    rolled = scores(here.models["sdpa"], here.inputs(), "attention_rollout", here.target)[0]
    found = flow(here)
    assert (found >= rolled - 1e-7).all()
    assert (found > rolled + 1e-3).any()


def test_a_decoder_sends_nothing_to_what_comes_later():
    model = family("gpt2", "write", n_layer=3)
    inputs = of_ids(model, [SHORT])
    target = Target(torch.tensor([9]), position=torch.tensor([2]))
    found = method("attention_flow")(ModelCase(ModelRunner(model), inputs, target)).values[0]
    assert (found[:3] > 0).all()
    assert not found[3:].any()


def test_the_search_can_be_stopped_before_each_place():
    asked = []

    def check():
        asked.append(1)
        if len(asked) == 3:
            raise TimeoutError

    step, start = torch.full((4, 4), 0.25, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    with pytest.raises(TimeoutError), stopped_by(check):
        flows([step], [(0, 0)], {0: start})
    assert len(flows([step], [(0, 0)], {0: start})[0]) == 4  # nothing asks outside the context
    assert len(asked) == 3
