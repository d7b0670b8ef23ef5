"""What a molecule is made of, for a model to learn beside its task.

A few hundred labels say little about which groups of atoms there are. A molecule itself says it,
without a label: a model that has to name its substructures and properties learns to see them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

RARE = 0.02  # substructures in fewer of the molecules, or missing in fewer, are left out
SHARE = 3.0  # of the substructures in the loss: so both parts start near 1


class Structure(nn.Module):
    """Names a molecule's substructures and properties from what the classifier's head reads.

    Substructures are the bits of a Morgan fingerprint (Rogers & Hahn 2010) of radius 2, properties
    are counts and RDKit's estimates in units of their standard deviation. `rows` are the molecules
    that choose the bits and set the units.
    """

    substructures: Tensor  # (molecules, bits)
    properties: Tensor  # (molecules, properties)

    def __init__(self, width: int, smiles: Sequence[str], rows: Sequence[int]) -> None:
        super().__init__()
        bits, values = _describe(smiles)
        often = bits[rows].mean(0)
        bits = bits[:, (often > RARE) & (often < 1 - RARE)]
        spread = values[rows].std(0, correction=0).clamp(min=1e-6)
        values = (values - values[rows].mean(0)) / spread
        self.register_buffer("substructures", bits, persistent=False)
        self.register_buffer("properties", values, persistent=False)
        self.head = nn.Linear(width, bits.shape[1] + values.shape[1])

    def loss(self, state: Tensor, rows: Sequence[int], whole: Tensor) -> Tensor:
        """How wrong it is about these molecules, (); those that are not `whole` do not count."""
        bits, values = self.substructures[rows], self.properties[rows]
        said = self.head(state)
        named = F.binary_cross_entropy_with_logits(said[:, : bits.shape[1]], bits, reduction="none")
        measured = (said[:, bits.shape[1] :] - values).square()
        each = SHARE * named.mean(1) + measured.mean(1)
        return (each * whole).mean()


def _describe(smiles: Sequence[str]) -> tuple[Tensor, Tensor]:
    from rdkit import Chem
    from rdkit.Chem import Crippen, rdFingerprintGenerator, rdMolDescriptors

    fingerprint: Any = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    molecules = [Chem.MolFromSmiles(text) for text in smiles]
    kinds: tuple[Any, ...] = (
        rdMolDescriptors.CalcNumHeavyAtoms,
        Crippen.MolLogP,  # type: ignore[attr-defined]
        rdMolDescriptors.CalcTPSA,
        rdMolDescriptors.CalcNumHBD,
        rdMolDescriptors.CalcNumHBA,
        rdMolDescriptors.CalcNumRotatableBonds,
        rdMolDescriptors.CalcNumRings,
        rdMolDescriptors.CalcNumAromaticRings,
        rdMolDescriptors.CalcFractionCSP3,
        rdMolDescriptors.CalcNumHeteroatoms,
        rdMolDescriptors.CalcNumAmideBonds,
        rdMolDescriptors.CalcNumAliphaticRings,
    )
    bits = np.stack([fingerprint.GetFingerprintAsNumPy(m) for m in molecules])
    values = np.array([[kind(m) for kind in kinds] for m in molecules])
    return torch.from_numpy(bits).float(), torch.from_numpy(values).float()
