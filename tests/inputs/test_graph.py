"""Graphs from molecules, images, networkx, PyTorch Geometric and plain arrays."""

import re
import sys
from types import SimpleNamespace

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import wherefrom
from tests.helpers import exactly
from tests.oracles.graphormer import shortest_paths
from wherefrom.errors import InputError, MissingExtra, TooLong
from wherefrom.inputs.graph import UNREACHABLE, Graph, batch, of_regions
from wherefrom.inputs.graph_reader import _outline
from wherefrom.inputs.molecule import ATOM_FEATURES, BOND_FEATURES, scaffold

MOLECULES = {
    "aspirin": ("CC(=O)Oc1ccccc1C(=O)O", 13, 13),
    "caffeine": ("Cn1c(=O)c2c(ncn2C)n(C)c1=O", 14, 15),
    "paracetamol": ("CC(=O)Nc1ccc(O)cc1", 11, 11),
    "methane": ("C", 1, 0),
    "soap": ("CCCCCCCC(=O)[O-].[Na+]", 11, 9),
}


def features(graph, node):
    """The names of what an atom is."""
    return {name for name, value in zip(ATOM_FEATURES, graph.x[node], strict=True) if value}


@pytest.mark.parametrize("name", MOLECULES)
def test_a_molecule_has_its_heavy_atoms_and_bonds(name):
    smiles, atoms, bonds = MOLECULES[name]
    graph = Graph.from_smiles(smiles)
    assert graph.x.shape == (atoms, len(ATOM_FEATURES))
    assert graph.edge_features.shape == (bonds, len(BOND_FEATURES))
    assert graph.source == smiles
    assert graph.positions.shape == (atoms, 2)
    assert graph.degree.sum() == 2 * bonds


def test_atoms_are_told_apart_by_what_they_are():
    graph = Graph.from_smiles("CC(=O)Nc1ccc(O)cc1")
    assert graph.names == tuple("CCONCCCCOCC")
    assert features(graph, 0) == {"C", "degree 1", "neutral", "SP3", "3 hydrogens"}
    assert features(graph, 2) == {"O", "degree 1", "neutral", "SP2", "0 hydrogens"}
    assert features(graph, 5) == {
        "C", "degree 2", "neutral", "SP2", "1 hydrogens", "aromatic", "in a ring", "in a ring of 6",
    }  # fmt: skip
    soap = Graph.from_smiles("CC(=O)[O-].[Na+]")
    assert "negative" in features(soap, 3)
    assert {"positive", "another element"} <= features(soap, 4)


@pytest.mark.parametrize("size", [3, 4, 5, 6, 7, 8])
def test_an_atom_is_in_a_ring_of_its_size_alone(size):
    rings = {f for f in features(Graph.from_smiles(f"C1{'C' * (size - 2)}C1"), 0) if "ring" in f}
    assert rings == {"in a ring", *([f"in a ring of {size}"] if size < 8 else [])}


@pytest.mark.parametrize(
    ("smiles", "name"),
    [
        ("C", "4 hydrogens or more"),
        ("CC", "3 hydrogens"),
        ("CCC", "3 hydrogens"),
        ("O", "2 hydrogens"),
        ("F", "1 hydrogens"),
        ("[Na+]", "0 hydrogens"),
    ],
)
def test_an_atom_has_its_number_of_hydrogens_alone(smiles, name):
    found = features(Graph.from_smiles(smiles), 0)
    assert {feature for feature in found if "hydrogens" in feature} == {name}


def test_mirror_images_differ_and_so_do_cis_and_trans():
    left, right = (Graph.from_smiles(f"N[C{turn}](C)C(=O)O") for turn in ("@@H", "@H"))
    assert features(left, 1) ^ features(right, 1) == {"R", "S of a stereocentre"}
    trans, cis = (Graph.from_smiles(f"F/C=C{mark}F") for mark in ("/", "\\"))
    assert not np.array_equal(trans.edge_features, cis.edge_features)
    assert np.array_equal(trans.x, cis.x)


def test_how_a_smiles_is_written_has_no_say():
    first, second = (
        Graph.from_smiles("CC(=O)Oc1ccccc1C(=O)O"),
        Graph.from_smiles("OC(=O)c1ccccc1OC(C)=O"),
    )
    assert sorted(map(tuple, first.x)) == sorted(map(tuple, second.x))
    assert sorted(first.distance.ravel()) == sorted(second.distance.ravel())


@pytest.mark.parametrize(
    ("smiles", "why"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("c1ccc", "not a valid SMILES"),
        ("hello", "not a valid SMILES"),
        ("C(C)(C)(C)(C)C", "valence"),
        ("c1cccc1", "kekulize"),
        ("CCO CCC", "has no spaces, got 'CCO CCC'"),
        ("CCO\tethanol", "has no spaces"),
        ("CC\0O", r"at position 3\.$"),
        (
            "C\N{CYRILLIC CAPITAL LETTER ES}O",
            r'CAPITAL LETTER ES\) at position 2; did you mean "C"',
        ),
        ("\N{GREEK CAPITAL LETTER NU}", r'GREEK CAPITAL LETTER NU\) at position 1; .* "N"'),
        ("C\N{FULLWIDTH EQUALS SIGN}O", 'did you mean "="'),
        ("C\N{GREEK SMALL LETTER OMEGA}", r"OMEGA\) at position 2\.$"),
        ("C" * 100 + "X", "C…' is not a valid SMILES"),
    ],
)
def test_a_bad_smiles_is_refused_with_the_reason(smiles, why, capfd):
    with pytest.raises(InputError, match=f"(?i){why}"):
        Graph.from_smiles(smiles)
    assert capfd.readouterr().err == ""


def cage(atoms, reach):
    """A SMILES in which each atom is bound to the next ones, `reach` of them, as no molecule is."""
    text, open_rings, free = "", {}, list(range(99, 9, -1))
    for atom in range(atoms):
        closed = [pair for pair in open_rings if pair[1] == atom]
        numbers = [open_rings.pop(pair) for pair in closed]
        free += numbers
        for other in range(atom + 2, min(atoms, atom + 1 + reach)):
            open_rings[atom, other] = free.pop()
            numbers.append(open_rings[atom, other])
        text += "*" + "".join(f"%{number}" for number in numbers)
    return text


@pytest.mark.parametrize(
    ("smiles", "max_atoms", "message"),
    [
        ("C" * 257, 256, "has 257 atoms, but the model takes 256"),
        ("C" * 20_000, 256, "has 20000 atoms"),
        ("C" * 1001, None, "has 1,001 atoms; at most 1,000 are read"),
        (".".join(["[H]"] * 3000), 256, "3,000 hydrogens for 0 other atoms"),
        (cage(100, 9), 256, "has 756 rings or more for 100 atoms; at most 110"),
    ],
)
def test_a_molecule_that_would_take_minutes_is_refused_before_any_work(
    smiles, max_atoms, message, monkeypatch
):
    from rdkit import Chem

    parse = Chem.MolFromSmiles

    def without_work(text, sanitize=True):
        assert not sanitize, "rings are sought before the size is checked"
        return parse(text, sanitize=False)

    monkeypatch.setattr(Chem, "MolFromSmiles", without_work)
    with pytest.raises(TooLong, match=message):
        Graph.from_smiles(smiles, max_atoms)


def test_an_image_of_too_many_pixels_is_not_split():
    with pytest.raises(TooLong, match=r"1025 × 1024 is too large .* at most 1,048,576"):
        Graph.superpixels(np.zeros((1025, 1024), np.uint8))


def test_real_cages_and_explicit_hydrogens_are_read():
    cubane = "C12C3C4C1C5C2C3C45"
    ferrocene = "[Fe]123456789C%10C1C2C3C4%10.C5%10C6C7C8C9%10"
    assert len(Graph.from_smiles(cubane).edges) == 12
    assert len(Graph.from_smiles(ferrocene)) == 11
    methane = "[H]C([H])([H])[H]"
    assert Graph.from_smiles(".".join([methane] * 3), max_atoms=3).names == ("C",) * 3


def test_a_scaffold_is_the_rings_and_what_links_them():
    assert scaffold("CC(=O)Nc1ccc(O)cc1") == scaffold("Cc1ccccc1") == "c1ccccc1"
    assert scaffold("CCO") == ""


@pytest.mark.parametrize(
    ("module", "make"),
    [
        ("rdkit", lambda: Graph.from_smiles("C")),
        ("skimage.segmentation", lambda: Graph.superpixels(np.zeros((28, 28)))),
    ],
)
def test_a_library_that_is_not_there_is_named_with_its_extra(module, make, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r"wherefrom\[graph\]"):
        make()


def drawn(size=28):
    """A bright ring on black."""
    down, across = np.indices((size, size)) / size - 0.5
    return (np.abs(np.hypot(down, across) - 0.3) < 0.08).astype(np.float64)


def test_superpixels_are_about_as_many_as_asked_for_and_cover_the_image():
    image = drawn()
    graph = Graph.superpixels(image, n=75)
    assert 55 <= len(graph) <= 85
    assert sorted(np.unique(graph.regions)) == list(range(len(graph)))
    assert np.array_equal(graph.source, image)
    assert graph.distance.max() < UNREACHABLE
    sizes = np.bincount(graph.regions.ravel())
    exactly(float(sizes @ graph.x[:, 0]), float(image.sum()), tol=1e-4)
    # the centre of one region, told from the pixels themselves
    centre = np.argwhere(graph.regions == 7).mean(0) + 0.5
    exactly(graph.x[7, [2, 1]] * 28, centre, tol=1e-5)


def test_the_outline_of_a_region_has_its_pixels_and_no_others():
    regions = np.array([[0, 1, 0, 2], [0, 1, 1, 2], [0, 0, 0, 2]])
    for region in range(3):
        drawn_pixels = np.zeros_like(regions)
        for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\d+z", _outline(regions == region)):
            drawn_pixels[int(y), int(x) : int(x) + int(width)] += 1
        assert np.array_equal(drawn_pixels, regions == region)


def test_bytes_are_numbers_up_to_one():
    image = np.round(drawn() * 255).astype(np.uint8)
    exactly(Graph.superpixels(image).x, Graph.superpixels(drawn()).x, tol=1e-6)


def test_a_colour_has_an_intensity_for_each_channel():
    image = np.stack([drawn(), 1 - drawn(), np.zeros((28, 28))], axis=-1)
    graph = Graph.superpixels(image)
    grey = Graph.superpixels(drawn())
    assert graph.x.shape[1] == grey.x.shape[1] + 2
    exactly(graph.x[:, 0] + graph.x[:, 1], np.ones(len(graph)), tol=1e-6)


def test_regions_are_joined_where_they_touch_or_to_the_nearest():
    regions = np.array([[0, 0, 1], [0, 0, 1], [2, 2, 3]])
    values = np.zeros((3, 3, 1))
    assert of_regions(values, regions).edges.tolist() == [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert of_regions(values, regions, nearest=1).edges.tolist() == [[0, 1], [0, 2], [1, 3]]


@pytest.mark.parametrize(
    "image", [np.zeros(5), np.zeros((0, 3)), np.full((9, 9), 3.0), np.full((9, 9), np.nan)]
)
def test_what_is_no_image_is_refused(image):
    with pytest.raises(InputError, match="image"):
        Graph.superpixels(image)


def test_a_networkx_graph_keeps_its_nodes_and_features():
    source = networkx.Graph()
    source.add_node("a", x=[1.0, 2.0])
    source.add_node("b", x=[3.0, 4.0])
    source.add_node("c", x=[5.0, 6.0])
    source.add_edge("c", "a", weight=0.5)
    graph = Graph.from_networkx(source, edge_features="weight")
    assert graph.names == ("a", "b", "c")
    assert graph.x.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert graph.edges.tolist() == [[0, 2]]
    assert graph.edge_features.tolist() == [[0.5]]
    assert graph.distance.tolist() == [
        [0, UNREACHABLE, 1],
        [UNREACHABLE, 0, UNREACHABLE],
        [1, UNREACHABLE, 0],
    ]
    with pytest.raises(InputError, match=r"'a' has no attribute \"size\" \(it has: x\)"):
        Graph.from_networkx(source, features="size")


def test_data_of_pytorch_geometric_gives_each_edge_once():
    data = SimpleNamespace(
        x=torch.ones(3, 2),
        edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]),
        edge_attr=torch.tensor([7.0, 7.0, 8.0, 8.0]),
        pos=None,
    )
    graph = Graph.from_pyg(data)
    assert graph.edges.tolist() == [[0, 1], [1, 2]]
    assert graph.edge_features.tolist() == [[7.0], [8.0]]
    data.edge_attr = torch.tensor([7.0, 6.0, 8.0, 8.0])
    with pytest.raises(InputError, match="undirected"):
        Graph.from_pyg(data)
    with pytest.raises(InputError, match="no node features"):
        Graph.from_pyg(SimpleNamespace(x=None, edge_index=data.edge_index))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((np.zeros((0, 3)), []), "at least one node"),
        (([1.0, 2.0], []), "shape"),
        (([[np.nan]], []), "NaN"),
        (([[1.0], [2.0]], [(0, 2)]), "the node 2; the nodes are 0 to 1"),
        (([[1.0], [2.0]], [(1, 1)]), "with itself"),
        (([[1.0], [2.0]], [(0, 1)], [[1.0], [2.0]]), "1 edges, but features for 2"),
    ],
)
def test_what_is_no_graph_is_refused(arguments, why):
    with pytest.raises(InputError, match=why):
        Graph(*arguments)


def test_names_must_be_as_many_as_nodes():
    with pytest.raises(InputError, match="3 names for 2 nodes"):
        Graph([[1.0], [2.0]], [], names=("a", "b", "c"))


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 9), length=st.integers(1, 4))
def test_paths_are_the_first_in_order_of_all_shortest_ones(seed, nodes, length):
    rng = np.random.default_rng(seed)
    pairs = [(i, j) for i in range(nodes) for j in range(i) if rng.random() < 0.35]
    graph = Graph(np.ones((nodes, 1)), pairs, rng.integers(0, 2, (len(pairs), 2)))
    kinds_of_edges, paths = graph.kinds[0], graph.paths(length)
    walks = shortest_paths(nodes, graph.edges.tolist(), graph.edge_features.tolist())
    for i in range(nodes):
        for j in range(nodes):
            between = walks.get((i, j))
            assert graph.distance[i, j] == (len(between[0]) if between else UNREACHABLE)
            expected = [list(step) for step in min(between)[:length]] if between else []
            kinds = [kind for kind in paths[i, j] if kind >= 0]
            assert [kinds_of_edges[kind].tolist() for kind in kinds] == expected
            assert (paths[i, j, len(kinds) :] == -1).all()


def test_a_batch_is_padded_and_masked():
    small, large = Graph.from_smiles("CO"), Graph.from_smiles("CC(=O)Nc1ccc(O)cc1")
    tensors = batch([small, large], path_length=4)
    assert tensors["mask"].sum(1).tolist() == [2, 11]
    assert tensors["x"].shape == (2, 11, len(ATOM_FEATURES))
    assert tensors["paths"].shape == (2, 11, 11, 4)
    assert not tensors["x"][0, 2:].any()
    assert (tensors["paths"][0, 2:] == -1).all()
    assert tensors["degree"][1].tolist() == large.degree.tolist()
    assert np.array_equal(tensors["distance"][1].numpy(), large.distance)
    assert set(batch([small])) == {"x", "degree", "distance", "mask"}


def test_graphs_that_do_not_go_together_are_refused():
    with pytest.raises(InputError, match="no graph"):
        batch([])
    narrow, wide = Graph([[1.0]], []), Graph([[1.0, 2.0]], [])
    with pytest.raises(InputError, match=r"node features: \[1, 2\]"):
        batch([narrow, wide])
    edged = Graph([[1.0], [2.0]], [(0, 1)], [[1.0]])
    with pytest.raises(InputError, match=r"edge features: \[0, 1\]"):
        batch([Graph([[1.0], [2.0]], [(0, 1)]), edged], path_length=1)
    assert batch([narrow, edged], path_length=1)["edges"].tolist() == [[[0.0]], [[1.0]]]


def test_a_molecule_that_is_too_large_is_refused_before_its_layout_is_computed(monkeypatch):
    from rdkit.Chem import rdDepictor

    def refuse(mol):
        raise AssertionError("the layout of a large molecule takes minutes")

    monkeypatch.setattr(rdDepictor, "Compute2DCoords", refuse)
    explainer = wherefrom.load("bace")
    with pytest.raises(TooLong, match="has 600 atoms, but the model takes"):
        explainer("C" * 600)
