"""The embedded model `bace`: what its card says is so, on molecules of our own and on the data."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from wherefrom.inputs.graph import Graph, batch
from wherefrom.models import embedded
from wherefrom.models.graphormer import Graphormer

KEPT = Path(__file__).with_name("bace_logits.json")
PLACES = [os.environ.get("WHEREFROM_DATA", "data"), "../shared/data"]
BACE = next((Path(p, "bace") for p in PLACES if Path(p, "bace").is_dir()), None)


@pytest.fixture(scope="module")
def card():
    return embedded.embedded()["bace"]


@pytest.fixture(scope="module")
def bace(card):
    return Graphormer.load(embedded.verified(card))


@torch.inference_mode()
def logits_of(model, smiles):
    return model(**batch([Graph.from_smiles(text) for text in smiles], model.config.max_path))


def test_the_card_is_true_of_the_files(card, bace):
    assert card.megabytes < 2
    assert card.figures["test"] >= 0.83
    assert card.parameters == sum(p.numel() for p in bace.parameters())
    assert bace.config.labels == ("inactive", "active")
    assert bace.config.layers == 2
    assert bace.config.reads == "molecule"


def test_logits_on_molecules_of_our_own_are_as_when_it_was_trained(bace):
    expected = json.loads(KEPT.read_text(encoding="utf-8"))
    logits = logits_of(bace, [row["smiles"] for row in expected])
    np.testing.assert_allclose(logits, [row["logits"] for row in expected], rtol=1e-3, atol=1e-3)


def test_how_a_molecule_is_written_and_what_is_beside_it_has_no_say(bace):
    aspirin, other, long = "CC(=O)Oc1ccccc1C(=O)O", "OC(=O)c1ccccc1OC(C)=O", "CCCCCCCCCCCCCCCCCCCC"
    alone = logits_of(bace, [aspirin])
    torch.testing.assert_close(logits_of(bace, [other]), alone, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits_of(bace, [long, aspirin])[1:], alone, rtol=1e-5, atol=1e-5)


def test_it_takes_a_molecule_in_parts_an_ion_and_the_empty_graph(bace):
    assert torch.isfinite(logits_of(bace, ["CC(=O)[O-].[Na+]", "C"])).all()
    tensors = batch([Graph.from_smiles("CCO")], bace.config.max_path)
    tensors["mask"][:] = False
    with torch.inference_mode():
        assert torch.isfinite(bace(**tensors)).all()


@pytest.mark.skipif(BACE is None, reason="BACE is not at hand; set WHEREFROM_DATA to its parent")
def test_roc_auc_on_the_held_out_molecules_is_what_the_card_says(card, bace):
    from training.bace import measure, random_split, read

    data = read(BACE)
    parts = random_split(data.labels)
    for split in ("validation", "test"):
        auc, _ = measure(bace, data, parts[split])
        assert auc == pytest.approx(card.figures[split], abs=2e-3)


def test_the_command_line_explains_a_molecule(tmp_path):
    from typer.testing import CliRunner

    from wherefrom.cli import app

    page = tmp_path / "page.html"
    done = CliRunner().invoke(
        app, ["explain", "--smiles", "CC(=O)Nc1ccc(O)cc1", "--html", str(page)]
    )
    assert done.exit_code == 0, done.output
    assert "bace" in done.stdout
    assert "<circle" in page.read_text(encoding="utf-8")
    wrong = CliRunner().invoke(app, ["explain", "--smiles", "C1CC"])
    assert wrong.exit_code == 2
    assert "is not a valid SMILES" in wrong.output
