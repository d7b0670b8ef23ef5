"""What the trainings on graphs measure and how they split: small, without their data."""

import gzip
from itertools import chain

import numpy as np
import pytest
import torch

from training.bace import Data, Setting, random_split, roc_auc, scaffold_split, train
from training.graphs import with_holes
from training.structure import Structure
from training.superpixels import cut, take
from wherefrom.inputs.graph import Graph, batch
from wherefrom.inputs.molecule import scaffold
from wherefrom.models.graphormer import Graphormer

RINGS = ["c1ccccc1", "C1CCCCC1", "c1ccncc1", "c1ccsc1", "C1CCNC1"]


@pytest.mark.parametrize("seed", range(5))
def test_roc_auc_is_the_share_of_pairs_in_the_right_order(seed):
    rng = np.random.default_rng(seed)
    scores, labels = rng.integers(0, 6, 30), np.arange(30) % 3 == 0
    pairs = [
        1.0 if a > b else 0.5 if a == b else 0.0 for a in scores[labels] for b in scores[~labels]
    ]
    assert roc_auc(scores, labels) == pytest.approx(np.mean(pairs), abs=1e-12)


def test_a_random_split_keeps_the_classes_and_loses_nothing():
    labels = torch.tensor([0] * 60 + [1] * 40)
    parts = random_split(labels)
    assert {name: len(rows) for name, rows in parts.items()} == {
        "train": 80, "validation": 10, "test": 10,
    }  # fmt: skip
    assert sorted(chain(*parts.values())) == list(range(100))
    assert [int(labels[rows].sum()) for rows in parts.values()] == [32, 4, 4]
    assert random_split(labels) == parts
    assert random_split(labels, seed=1) != parts


def test_a_scaffold_is_in_one_part_and_the_largest_train():
    smiles = [f"{'C' * n}{ring}" for k, ring in enumerate(RINGS) for n in range(1, 2 + 3 * (4 - k))]
    parts = scaffold_split(smiles)
    assert sorted(chain(*parts.values())) == list(range(len(smiles)))
    seen = {name: {scaffold(smiles[i]) for i in rows} for name, rows in parts.items()}
    assert not seen["train"] & (seen["validation"] | seen["test"])
    assert not seen["validation"] & seen["test"]
    assert scaffold(smiles[0]) in seen["train"]
    assert len(parts["train"]) <= 0.8 * len(smiles)


def test_holes_take_nodes_out_and_never_bring_padding_in():
    torch.manual_seed(0)
    mask = torch.arange(20) < torch.randint(1, 21, (400, 1))
    holed = with_holes(mask, share=0.5)
    assert not (holed & ~mask).any()
    touched = (holed != mask).any(1).float().mean().item()
    assert 0.3 < touched < 0.5
    assert torch.equal(with_holes(mask, share=0.0), mask)


@pytest.mark.parametrize("holes", [0.2, 0.0])
def test_a_setting_says_whether_molecules_lose_atoms_in_training(holes, tmp_path, monkeypatch):
    seen = []
    forward = Graphormer.forward

    def watch(model, **tensors):
        seen.append(int(tensors["mask"].sum()))
        return forward(model, **tensors)

    monkeypatch.setattr(Graphormer, "forward", watch)
    graphs = [Graph.from_smiles(f"{'C' * n}{ring}") for n in range(1, 17) for ring in RINGS]
    data = Data(graphs, torch.arange(len(graphs)) % 2)
    train(
        data, list(range(len(graphs))), Setting(8, 0.0, 1, holes=holes), tmp_path / "checkpoint.pt"
    )
    assert (sum(seen) < sum(map(len, graphs))) == (holes > 0)


def test_the_loss_of_the_structure_is_that_of_bits_and_properties_written_out():
    smiles = [f"{'C' * n}{ring}" for n in range(1, 5) for ring in RINGS]
    torch.manual_seed(0)
    structure = Structure(6, smiles, rows=range(10)).double()
    bits, values = structure.substructures.double(), structure.properties.double()
    often = bits[:10].mean(0)
    assert ((often > 0.02) & (often < 0.98)).all()
    assert values[:10].mean(0).abs().max() < 1e-6
    assert (values[:, 6] == 0).all()  # each has one ring, which tells nothing
    rows, whole = [3, 0, 17], torch.tensor([True, False, True])
    state = torch.randn(3, 6, dtype=torch.float64)
    said = state @ structure.head.weight.T + structure.head.bias
    expected = 0.0
    for place in (0, 2):
        chance = 1 / (1 + torch.exp(-said[place, : bits.shape[1]]))
        right = torch.where(bits[rows[place]] == 1, chance, 1 - chance)
        wrong = said[place, bits.shape[1] :] - values[rows[place]]
        expected += (-3 * torch.log(right).mean() + (wrong**2).mean()) / 3
    loss = structure.loss(state, rows, whole)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=0)


def test_a_model_that_learned_structure_is_a_graphormer_as_any_other(tmp_path):
    graphs = [Graph.from_smiles(f"{'C' * n}{ring}") for n in range(1, 9) for ring in RINGS]
    data, rows = Data(graphs, torch.arange(len(graphs)) % 2), list(range(len(graphs)))
    plain = train(data, rows, Setting(8, 0.0, 1), tmp_path / "plain.pt")
    model = train(data, rows, Setting(8, 0.0, 1, structure=1.0), tmp_path / "structure.pt")
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert not model.norm._forward_hooks
    assert not torch.equal(model.nodes.weight, plain.nodes.weight)


def test_settings_that_differ_are_kept_under_different_names():
    changes = ({}, {"holes": 0.0}, {"holes": 0.1}, {"rate": 1e-3}, {"structure": 1.0})
    settings = [Setting(8, 0.0, 1, **change) for change in changes]
    assert len(set(map(str, settings))) == len(settings)


def test_digits_are_read_and_cut_once(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 28, 28), dtype=np.uint8)
    for name, head, body in (
        ("images-idx3", 16, images.tobytes()),
        ("labels-idx1", 8, bytes([7, 0, 4])),
    ):
        (tmp_path / f"t10k-{name}-ubyte.gz").write_bytes(gzip.compress(bytes(head) + body))
    tensors = cut(tmp_path, "test", tmp_path / "cache")
    expected = batch([Graph.superpixels(image) for image in images])
    assert tensors["labels"].tolist() == [7, 0, 4]
    assert all(torch.equal(tensors[name], tensor) for name, tensor in expected.items())
    (tmp_path / "t10k-images-idx3-ubyte.gz").unlink()
    assert torch.equal(cut(tmp_path, "test", tmp_path / "cache")["x"], expected["x"])


def test_only_the_padding_that_is_needed_is_taken():
    rng = np.random.default_rng(0)
    graphs = [Graph(rng.normal(size=(n, 3)), [(0, n - 1)]) for n in (4, 2, 6)]
    some, expected = take(batch(graphs), torch.tensor([1, 0])), batch([graphs[1], graphs[0]])
    assert all(torch.equal(some[name], tensor) for name, tensor in expected.items())
