"""Molecules as graphs of their heavy atoms, read from SMILES by RDKit."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from wherefrom.errors import InputError, MissingExtra, TooLong
from wherefrom.inputs.graph import Graph

ELEMENTS = ("B", "C", "N", "O", "F", "Si", "P", "S", "Cl", "Br", "I")
HYBRIDS = ("SP", "SP2", "SP3")
BONDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
RINGS = (3, 4, 5, 6, 7)
# the columns of x and of the edge features, in their order
ATOM_FEATURES = (
    *ELEMENTS, "another element", *(f"degree {n}" for n in range(5)), "degree 5 or more",
    "negative", "neutral", "positive", *HYBRIDS, "another hybrid",
    *(f"{n} hydrogens" for n in range(4)), "4 hydrogens or more",
    "aromatic", "in a ring", *(f"in a ring of {n}" for n in RINGS), "R", "S of a stereocentre",
)  # fmt: skip
BOND_FEATURES = (*BONDS, "conjugated", "in a ring", "E", "Z")


def molecule(smiles: str, max_atoms: int | None = None) -> Graph:
    """The atoms (without hydrogens) and bonds of a molecule, with its layout in the plane."""
    try:
        from rdkit import Chem, rdBase
        from rdkit.Chem import rdDepictor
    except ImportError as error:
        raise MissingExtra("RDKit", "graph", "reading a SMILES") from error
    if not smiles.strip():
        raise InputError("the SMILES is empty: there is no molecule to explain.")
    with rdBase.BlockLogs():
        mol: Any = Chem.MolFromSmiles(smiles.strip())
        if mol is None:
            unchecked: Any = Chem.MolFromSmiles(smiles.strip(), sanitize=False)
            problems = [] if unchecked is None else Chem.DetectChemistryProblems(unchecked)
            why = problems[0].Message() if problems else "it breaks the rules of SMILES"
            raise InputError(f"{smiles!r} is not a valid SMILES: {why}.")
    if not mol.GetNumAtoms():
        raise InputError(f"the molecule {smiles!r} has no atoms.")
    if max_atoms is not None and mol.GetNumAtoms() > max_atoms:  # the layout would take minutes
        raise TooLong(
            f"the molecule has {mol.GetNumAtoms()} atoms, but the model takes {max_atoms}."
        )
    rdDepictor.Compute2DCoords(mol)
    layout = mol.GetConformer().GetPositions()[:, :2]
    atoms, bonds = list(mol.GetAtoms()), list(mol.GetBonds())
    return Graph(
        np.array([_atom(atom) for atom in atoms], dtype=np.float32),
        np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in bonds]).reshape(-1, 2),
        np.array([_bond(bond) for bond in bonds]).reshape(-1, len(BOND_FEATURES)),
        names=tuple(atom.GetSymbol() for atom in atoms),
        positions=(layout * [1, -1]).astype(np.float32),
        source=smiles.strip(),
    )


def drawing(smiles: str, width: int = 420, height: int = 300) -> dict[str, Any]:
    """The structure as a picture without background, and where in it each atom lies."""
    try:
        from rdkit import Chem
        from rdkit.Chem.Draw import rdMolDraw2D
    except ImportError as error:
        raise MissingExtra("RDKit", "graph", "drawing a molecule") from error
    mol = Chem.MolFromSmiles(smiles)
    picture: dict[str, Any] = {"width": width, "height": height}
    kinds = {"svg": rdMolDraw2D.MolDraw2DSVG, "png": rdMolDraw2D.MolDraw2DCairo}
    for kind, drawer in kinds.items():
        canvas: Any = drawer(width, height)
        canvas.drawOptions().clearBackground = False
        canvas.drawOptions().useBWAtomPalette()
        canvas.drawOptions().padding = 0.12  # room for a disc around each atom
        canvas.DrawMolecule(mol)
        canvas.FinishDrawing()
        text = canvas.GetDrawingText()
        picture[kind] = base64.b64encode(text.encode() if kind == "svg" else text).decode("ascii")
        points = [canvas.GetDrawCoords(i) for i in range(mol.GetNumAtoms())]
        picture["points"] = [[round(p.x, 1), round(p.y, 1)] for p in points]
    return picture


def scaffold(smiles: str) -> str:
    """The Bemis–Murcko scaffold: rings and what links them, as SMILES; empty without rings."""
    try:
        from rdkit.Chem.Scaffolds import MurckoScaffold
    except ImportError as error:
        raise MissingExtra("RDKit", "graph", "finding a scaffold") from error
    rings: str = MurckoScaffold.MurckoScaffoldSmiles(smiles=smiles, includeChirality=False)
    return rings


def _atom(atom: Any) -> list[bool]:
    stereo = atom.GetProp("_CIPCode") if atom.HasProp("_CIPCode") else ""
    charge = atom.GetFormalCharge()
    return [
        *_one_of(atom.GetSymbol(), ELEMENTS),
        *_count(atom.GetDegree(), 5),
        charge < 0,
        charge == 0,
        charge > 0,
        *_one_of(str(atom.GetHybridization()), HYBRIDS),
        *_count(atom.GetTotalNumHs(), 4),
        atom.GetIsAromatic(),
        atom.IsInRing(),
        *(atom.IsInRingSize(n) for n in RINGS),
        stereo == "R",
        stereo == "S",
    ]


def _bond(bond: Any) -> list[bool]:
    kind, stereo = str(bond.GetBondType()), str(bond.GetStereo())
    return [
        *(kind == bond_kind for bond_kind in BONDS),
        bond.GetIsConjugated(),
        bond.IsInRing(),
        stereo in ("STEREOE", "STEREOTRANS"),
        stereo in ("STEREOZ", "STEREOCIS"),
    ]


def _one_of(value: str, known: Sequence[str]) -> list[bool]:
    """A place for each known value, and a last one for any other."""
    return [*(value == name for name in known), value not in known]


def _count(value: int, most: int) -> list[bool]:
    """A place for each number up to `most`, which also stands for more."""
    return [min(value, most) == n for n in range(most + 1)]
