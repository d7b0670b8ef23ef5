"""Graphormer: the paper's equations, padding, the numbering of nodes, removal, files."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import captured, exactly, through
from tests.oracles.graphormer import Graphormer as Oracle
from wherefrom.errors import FileError, InputError, TooLong
from wherefrom.inputs.graph import Graph, batch
from wherefrom.methods.propagation import AH, CONSERVATIVE
from wherefrom.models.graphormer import Graphormer, GraphormerConfig
from wherefrom.tracing.observers.attention_maps import Maps

PATH = 3


def graphormer(seed=0, **changes):
    """A small Graphormer with all its weights random, float64."""
    torch.manual_seed(seed)
    config = {
        "features": 4, "edge_features": 2, "labels": ("a", "b", "c"), "width": 12, "layers": 2,
        "heads": 3, "hidden": 16, "max_degree": 3, "max_distance": 3, "max_path": PATH,
        "max_nodes": 20, "dropout": 0.1,
    }  # fmt: skip
    model = Graphormer(GraphormerConfig(**(config | changes))).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.5)
    return model


def random_graph(seed, nodes=8, chance=0.3):
    """A graph that often has several shortest paths, parts apart, nodes of their own."""
    rng = np.random.default_rng(seed)
    pairs = [(i, j) for i in range(nodes) for j in range(i) if rng.random() < chance]
    features = rng.integers(0, 2, (len(pairs), 2))
    return Graph(rng.normal(size=(nodes, 4)), pairs, features)


def permuted(graph, order):
    """The same graph with node order[i] at place i."""
    place = np.argsort(order)
    return Graph(graph.x[order], place[graph.edges], graph.edge_features)


def run(model, graphs, **changes):
    tensors = batch(graphs, model.config.max_path)
    dtype = next(model.parameters()).dtype
    floats = {name: tensors[name].to(dtype) for name in ("x", "edges") if name in tensors}
    with torch.no_grad():
        return model(**(tensors | floats | changes))


@pytest.mark.parametrize("seed", range(6))
def test_logits_are_those_of_the_papers_equations(seed):
    model, graph = (
        graphormer(seed),
        random_graph(seed, nodes=3 + 2 * seed, chance=0.15 + 0.05 * seed),
    )
    exactly(run(model, [graph])[0], Oracle(model)(graph), tol=1e-11)


@pytest.mark.parametrize("seed", range(3))
def test_a_removed_node_is_a_key_of_no_attention_and_changes_nothing_else(seed):
    model, graph = graphormer(seed), random_graph(seed)
    mask = torch.ones(1, len(graph), dtype=torch.bool)
    mask[0, [1, 4]] = False
    exactly(run(model, [graph], mask=mask)[0], Oracle(model)(graph, removed=(1, 4)), tol=1e-11)


def test_of_the_empty_graph_the_virtual_node_is_left():
    model = graphormer()
    graphs = [random_graph(1), random_graph(2, nodes=5)]
    none = torch.zeros(2, 8, dtype=torch.bool)
    empty = run(model, graphs, mask=none)
    assert torch.isfinite(empty).all()
    exactly(empty[0], empty[1], tol=1e-12)
    exactly(empty[0], Oracle(model)(graphs[0], removed=range(8)), tol=1e-11)
    assert not torch.allclose(empty[0], run(model, graphs)[0])


@pytest.mark.parametrize(("dtype", "tol"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_padding_changes_nothing(dtype, tol):
    model = graphormer().to(dtype)
    if dtype == torch.float32:
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(0.4)
    graphs = [random_graph(seed, nodes=n) for seed, n in enumerate((1, 4, 9, 15))]
    together = run(model, graphs)
    for row, graph in zip(together, graphs, strict=True):
        exactly(row, run(model, [graph])[0], tol=tol)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), order=st.permutations(range(8)))
def test_the_numbering_of_nodes_has_no_say(seed, order):
    model, graph = graphormer(), random_graph(seed)
    exactly(run(model, [permuted(graph, order)]), run(model, [graph]), tol=1e-11)


def test_each_encoding_has_a_say():
    model, graph = graphormer(), random_graph(3)
    whole = run(model, [graph])
    for name in ("centrality.weight", "spatial", "virtual_distance", "path", "virtual"):
        other = graphormer()
        with torch.no_grad():
            other.get_parameter(name).mul_(0.5)
        assert not torch.allclose(run(other, [graph]), whole, atol=1e-4), name


def test_what_is_beyond_the_tables_is_taken_as_their_last_place():
    model = graphormer(max_degree=2, max_distance=2)
    star = Graph(np.eye(6, 4), [(0, i) for i in range(1, 6)], np.zeros((5, 2)))
    chain = Graph(np.eye(6, 4), [(i, i + 1) for i in range(5)], np.zeros((5, 2)))
    for graph in (star, chain):
        exactly(run(model, [graph])[0], Oracle(model)(graph), tol=1e-11)


def test_without_edge_features_only_degrees_and_distances_count():
    model = graphormer(edge_features=0, max_path=0)
    graph = random_graph(5)
    bare = Graph(graph.x, graph.edges)
    exactly(run(model, [graph]), run(model, [bare]), tol=1e-12)


def test_training_drops_and_evaluation_does_not():
    model, graph = graphormer(), random_graph(1)
    assert torch.equal(run(model, [graph]), run(model, [graph]))
    model.train()
    assert not torch.equal(run(model, [graph]), run(model, [graph]))


def test_a_saved_model_is_the_same_when_loaded(tmp_path):
    model = graphormer().float()
    model.save(tmp_path / "saved")
    again = Graphormer.load(tmp_path / "saved")
    assert again.config == model.config
    assert not again.training
    assert torch.equal(run(again, [random_graph(1)]), run(model, [random_graph(1)]))
    model.save(tmp_path / "half", torch.float16)
    half = Graphormer.load(tmp_path / "half")
    assert next(half.parameters()).dtype == torch.float32
    exactly(run(half, [random_graph(1)]), run(model, [random_graph(1)]), tol=2e-2)


def test_the_config_holds_names_of_classes():
    assert graphormer().config.id2label == {0: "a", 1: "b", 2: "c"}


def test_more_nodes_than_the_model_takes_are_refused():
    with pytest.raises(TooLong, match="has 21 nodes, but the model takes 20"):
        run(graphormer(), [random_graph(0, nodes=21)])


def test_other_features_are_refused():
    graph = Graph(np.ones((3, 5)), [(0, 1)], [[1, 0]])
    with pytest.raises(InputError, match=r"5 features, but the model takes 4: .*molecule"):
        run(graphormer(reads="molecule"), [graph])
    with pytest.raises(InputError, match="3 features, but the model takes 2"):
        run(graphormer(), [Graph(np.ones((3, 4)), [(0, 1)], [[1, 0, 0]])])


def test_paths_of_another_length_are_refused():
    model = graphormer()
    tensors = {name: t.double() if t.is_floating_point() else t
             for name, t in batch([random_graph(1)]).items()}  # fmt: skip
    with pytest.raises(InputError, match=r"uses 3 edges .* path_length=3"):
        model(**tensors)


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "graphormer", "depth": 3}', "{}"])
def test_a_damaged_config_is_refused(tmp_path, text):
    graphormer().save(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(FileError, match="not the config of a graphormer"):
        Graphormer.load(tmp_path)


def test_a_config_of_another_model_is_refused(tmp_path):
    graphormer().save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(FileError, match="describes a bert"):
        Graphormer.load(tmp_path)


def test_missing_files_and_other_weights_are_refused(tmp_path):
    with pytest.raises(FileError, match=r"config\.json is missing"):
        Graphormer.load(tmp_path)
    graphormer().save(tmp_path)
    graphormer(width=24).config.save(tmp_path)
    with pytest.raises(FileError, match=r"do not fit config\.json"):
        Graphormer.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(FileError, match=r"do not fit config\.json"):
        Graphormer.load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileError, match=r"model\.safetensors is missing"):
        Graphormer.load(tmp_path)


def inside(model, graphs, table, maps=None):
    """The first logit of each graph under a table, from the node features on."""
    tensors = batch(graphs, PATH)
    x = tensors.pop("x").double()
    tensors["edges"] = tensors["edges"].double()
    ran = through(table, lambda x: model(x=x, **tensors)[:, 0], x, maps=maps, model=model)
    return ran, tensors["mask"]


def test_the_ledger_closes_from_the_node_features_on():
    model, graphs = graphormer(), [random_graph(1), random_graph(2, nodes=5)]
    ran, mask = inside(model, graphs, CONSERVATIVE)
    relevance = ran.relevance[0].sum(-1)  # (B, N)
    exactly(float(relevance.sum()) + ran.recorded, float(ran.out.sum()), tol=1e-10)
    assert not relevance[~mask].any()
    assert (relevance[mask] != 0).all()
    kinds = {kind for _, kind in ran.tracer.ledger.entries}
    assert kinds == {"bias", "token", "type"}


def test_attention_is_seen_with_the_virtual_node_first():
    model, graphs = graphormer(), [random_graph(1), random_graph(2, nodes=5)]
    maps = Maps(2)
    inside(model, graphs, AH, maps)
    weights_of_layers = captured(maps)
    assert [tuple(map_.shape) for map_ in weights_of_layers] == [(2, 3, 9, 9)] * 2
    for weights in weights_of_layers:
        exactly(weights.sum(-1), torch.ones(2, 3, 9))
        assert not weights[1, :, :, 6:].any()
