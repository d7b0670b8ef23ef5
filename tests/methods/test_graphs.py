"""Graphs as inputs: all methods, permuted nodes, padding, removal, the ledger."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import wherefrom
from tests.helpers import exactly
from tests.methods.cases import FEWER_PASSES
from wherefrom.errors import InputError, TooLong, WherefromError
from wherefrom.inputs.graph import Graph, batch
from wherefrom.models.graphormer import Graphormer, GraphormerConfig
from wherefrom.testing import untouched

FEATURES, KINDS = 5, 3
BY_CHANCE = ("random", "smoothgrad")  # drawn by place: equal under permutation in the mean only


@pytest.fixture(scope="module")
def explainer():
    torch.manual_seed(3)
    config = GraphormerConfig(
        features=FEATURES, edge_features=KINDS, labels=("no", "yes"), width=16, heads=4, hidden=24,
        max_path=2, max_nodes=20,
    )  # fmt: skip
    model = Graphormer(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.4)
    return wherefrom.Explainer(model)


def random_graph(seed, nodes=7):
    chance = np.random.default_rng(seed)
    pairs = [(a, b) for a in range(nodes) for b in range(a) if chance.random() < 0.35]
    kinds = np.eye(KINDS)[chance.integers(0, KINDS, len(pairs))].reshape(-1, KINDS)
    return Graph(chance.normal(size=(nodes, FEATURES)), np.array(pairs).reshape(-1, 2), kinds)


def permuted(graph, order):
    """The graph with node order[i] as its i-th."""
    place = np.argsort(order)
    return Graph(graph.x[order], place[graph.edges], graph.edge_features)


@pytest.mark.parametrize("method", [name for name in wherefrom.METHODS if name not in BY_CHANCE])
def test_permuted_nodes_have_permuted_scores(explainer, method):
    @settings(max_examples=2)
    @given(st.integers(0, 10_000), st.permutations(range(7)))
    def law(seed, order):
        graph = random_graph(seed)
        few = FEWER_PASSES.get(method, {})
        expected = explainer(graph, method, target=1, **few)
        actual = explainer(permuted(graph, np.array(order)), method, target=1, **few)
        np.testing.assert_allclose(
            actual.scores, expected.scores[list(order)], rtol=1e-4, atol=1e-6
        )
        assert actual.output == pytest.approx(expected.output, rel=1e-9)

    law()


@pytest.mark.parametrize("method", list(wherefrom.METHODS))
def test_a_graph_is_the_same_alone_and_padded_among_larger_ones(explainer, method):
    few = FEWER_PASSES.get(method, {})
    graphs = [random_graph(1, 9), random_graph(2, 3)]
    padded = explainer(graphs, method, **few)[1]
    alone = explainer(graphs[1], method, **few)
    np.testing.assert_allclose(padded.scores, alone.scores, rtol=1e-5, atol=1e-6)


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.integers(1, 12))
def test_the_ledger_closes_with_encodings_as_its_lines(explainer, seed, nodes):
    found = explainer(random_graph(seed, nodes))
    exactly(found.ledger.total, found.output, tol=1e-9)
    kinds = {line.kind for line in found.ledger.lines}
    # the degree enters each node, the virtual node is a token; distances live in the attention
    assert {"node", "token", "bias"} <= kinds
    assert kinds <= {"node", "token", "bias", "type", "position", "softmax"}
    exactly(sum(found.parts.values()), found.scores, tol=1e-5)


def test_gradient_x_input_is_that_of_plain_autograd(explainer):
    graph = random_graph(5)
    given = batch([graph], path_length=2)
    given = {k: v.double() if v.is_floating_point() else v for k, v in given.items()}
    x = given["x"].requires_grad_()
    (gradient,) = torch.autograd.grad(explainer.runner.model(**given)[0, 1], x)
    found = explainer(graph, "gradient_x_input", target=1, at="embeddings")
    exactly(found.parts["node"], (gradient * x)[0].sum(-1).detach().float(), tol=1e-6)


def test_removed_nodes_are_gone_and_the_empty_graph_can_be_asked(explainer):
    graph = random_graph(8, 6)
    reader = explainer._reader(graph)
    present = np.array([[True] * 6, [True, False, True, True, False, True], [False] * 6])
    logits = explainer.runner.run(reader.collate(reader.erased(graph, present, None)))
    given = batch([graph], path_length=2)
    given = {k: v.double() if v.is_floating_point() else v for k, v in given.items()}
    for row, kept in zip(logits, present, strict=True):
        changed = given["x"].clone()
        changed[0, ~torch.from_numpy(kept)] = 99.0  # arbitrary values at removed nodes
        given["mask"] = torch.from_numpy(kept)[None]
        exactly(explainer.runner.model(**{**given, "x": changed})[0].detach(), row.detach())


def test_curves_begin_at_the_empty_graph_and_end_at_the_model(explainer):
    graphs = [random_graph(n, 5) for n in range(4)]
    found = wherefrom.evaluate(explainer, [(g, 1) for g in graphs], ["lrp"], ["activation"])
    for graph, curve in zip(graphs, found.series["lrp"]["activation"], strict=True):
        assert curve[-1] == pytest.approx(explainer(graph, target=1).probability, abs=1e-5)
    starts = [curve[0] for curve in found.series["lrp"]["activation"]]
    np.testing.assert_allclose(starts, starts[0], atol=1e-6)


def test_the_model_is_untouched(explainer):
    with untouched(explainer.runner.model):
        for method in ("lrp", "gae", "transformer_attribution", "integrated_gradients"):
            explainer(random_graph(2), method)


def test_networkx_and_pyg_are_read(explainer):
    networkx = pytest.importorskip("networkx")
    graph = random_graph(4)
    net = networkx.Graph()
    for node, features in enumerate(graph.x):
        net.add_node(node, x=features)
    plain = Graph(graph.x, graph.edges, np.zeros((len(graph.edges), KINDS)))
    for a, b in graph.edges:
        net.add_edge(int(a), int(b), weight=np.zeros(KINDS))
    read = Graph.from_networkx(net, edge_features="weight")
    exactly(explainer(read).scores, explainer(plain).scores, tol=1e-6)

    class Data:
        x = torch.tensor(graph.x)
        edge_index = torch.tensor(graph.edges.T)
        edge_attr = torch.tensor(graph.edge_features)

    exactly(explainer(Data()).scores, explainer(graph).scores, tol=1e-6)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (random_graph(1, 21), TooLong, "the graph has 21 nodes, but the model takes 20"),
        (Graph([[1.0, 2.0]], []), InputError, "the nodes have 2 features, but the model takes 5"),
        ([], InputError, "the list of graphs is empty"),
        (3.5, InputError, "cannot read a float as a graph"),
        ("CCO", InputError, "cannot read a str as a graph"),
    ],
)
def test_what_cannot_be_read_is_said(explainer, given, error, words):
    with pytest.raises(error, match=words):
        explainer(given)


class TestMolecules:
    @pytest.fixture(scope="class")
    @staticmethod
    def reader():
        molecule = pytest.importorskip("wherefrom.inputs.molecule")
        pytest.importorskip("rdkit")
        torch.manual_seed(1)
        config = GraphormerConfig(
            features=len(molecule.ATOM_FEATURES), edge_features=len(molecule.BOND_FEATURES),
            labels=("inactive", "active"), width=16, heads=4, hidden=24, max_path=3,
            reads="molecule",
        )  # fmt: skip
        return wherefrom.Explainer(Graphormer(config).eval())

    def test_a_smiles_is_explained_atom_by_atom_and_drawn(self, reader, tmp_path):
        found = reader("CC(=O)Nc1ccc(O)cc1")
        assert [unit.text for unit in found.units] == list("CCONCCCCOCC")
        assert found.scene["kind"] == "molecule"
        page = found.to_html(tmp_path / "page.html").read_text(encoding="utf-8")
        assert page.count("<circle") >= 5
        assert "http:" not in page.replace("http://www.w3.org", "")
        assert "https:" not in page
        again = wherefrom.Explanation.from_json(found.to_json())
        assert again.to_html() == found.to_html()
        found.plot(path=tmp_path / "molecule.png")
        assert (tmp_path / "molecule.png").read_bytes()[:4] == b"\x89PNG"

    def test_a_drawing_from_elsewhere_cannot_bring_a_script(self, reader):
        data = json.loads(reader("CCO").to_json())
        data["scene"]["svg"] = '"/><script>alert(1)</script>'
        data["scene"]["name"] = "<script>"
        assert "<script" not in wherefrom.Explanation.from_dict(data).to_html()

    @pytest.mark.parametrize(
        ("smiles", "words"),
        [
            ("", "empty"),
            ("C1CC", "not a valid SMILES"),
            ("not a molecule", "no spaces"),
            ("molecule", "not a valid SMILES"),
        ],
    )
    def test_bad_smiles(self, reader, smiles, words):
        with pytest.raises(WherefromError, match=words):
            reader(smiles)

    def test_a_salt_has_two_parts_and_is_explained(self, reader):
        found = reader("[Na+].[Cl-]")
        assert len(found) == 2
        assert found.ledger.relative < 1e-4


def test_occlusion_by_removal_is_what_the_output_loses_without_the_node(explainer):
    graph, other = random_graph(5), random_graph(6, nodes=4)
    alone = explainer(graph, "occlusion", target=1, baseline="remove")
    together = explainer([graph, other], "occlusion", target=1, baseline="remove")
    model = explainer.runner.model
    tensors = {
        name: value.double() if value.is_floating_point() else value
        for name, value in batch([graph], path_length=2).items()
    }
    whole = model(**tensors)[0, 1]
    expected = []
    for node in range(len(graph)):
        mask = tensors["mask"].clone()
        mask[0, node] = False
        expected.append(float((whole - model(**{**tensors, "mask": mask})[0, 1]).detach()))
    exactly(alone.scores, expected, 1e-6)
    exactly(together[0].scores, expected, 1e-6)
    assert len(together[1].scores) == 4
