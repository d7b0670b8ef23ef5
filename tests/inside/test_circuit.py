"""Circuits: flows are conserved at every node, and known circuits are found."""

import pytest
import torch

from tests.inside.toy import Toy
from wherefrom import Explainer
from wherefrom.inside.circuit import CONSTANTS, INPUT, OUTPUT, _Search

PROMPT, CORRUPTED = [0, 1, 4, 2, 3, 1], [0, 5, 4, 2, 3, 1]
CIRCUIT = {"layer.0.head.0", "layer.1.head.1"}


@pytest.fixture(scope="module")
def explainer():
    return Explainer(Toy().eval(), labels=[str(i) for i in range(7)])


def test_the_compiled_model_continues_the_repetition():
    logits = Toy()(torch.tensor([PROMPT]))[0]
    assert logits.argmax() == 4
    assert logits[4] > 0.99


def test_the_compiled_circuit_is_found(explainer):
    inside = explainer.inside(PROMPT, target=4, reference=CORRUPTED)
    circuit = inside.circuit(0.95)
    assert set(map(str, circuit.nodes)) == CIRCUIT
    assert circuit.share == pytest.approx(1, abs=0.05)


def test_the_rest_of_the_model_can_be_patched_without_effect(explainer):
    patching = explainer.patching(PROMPT, CORRUPTED, 4)
    heads = [f"layer.{layer}.head.{head}" for layer in (0, 1) for head in (0, 1)]
    whole, *others = patching.recovered([CIRCUIT, *(CIRCUIT - {head} for head in CIRCUIT), heads])
    assert whole == pytest.approx(1, abs=1e-6)
    assert others == pytest.approx([0, 0, 1], abs=1e-6)


@pytest.mark.parametrize("method", ["lrp", "attn_lrp", "secant"])
def test_what_flows_into_a_node_flows_out_of_it(sentiment, method):
    inside = sentiment.inside("not a good film", method, target="POSITIVE")
    everything = _Search(inside, 0.0).run()
    assert everything.share == pytest.approx(1, abs=1e-5)
    edges = everything.edges
    assert sum(e.relevance for e in edges if e.target == OUTPUT) == pytest.approx(inside.flow)
    for component, relevance in everything.nodes.items():
        name = str(component)
        assert relevance == pytest.approx(inside.relevance(name), abs=1e-5)
        for flow in (
            [edge.relevance for edge in edges if edge.source == name],
            [edge.relevance for edge in edges if edge.target == name],
        ):
            assert sum(flow) == pytest.approx(relevance, abs=1e-5)
    ends = sum(edge.relevance for edge in edges if edge.source in (INPUT, CONSTANTS))
    assert ends == pytest.approx(inside.flow, abs=1e-5)


def test_a_smaller_share_takes_fewer_edges(sentiment):
    inside = sentiment.inside("a good film", target="POSITIVE")
    sizes = [len(inside.circuit(share).edges) for share in (0.3, 0.9)]
    assert sizes[0] < sizes[1]
