"""Molecules as graphs of their heavy atoms, read from SMILES by RDKit."""

from __future__ import annotations

import base64
import unicodedata
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


MOST_ATOMS = 1000  # the layout of more takes minutes
_SPARE_RINGS = 10  # of small cages and sandwich compounds, beyond one ring for each atom
_LOOK_ALIKES = {
    **{
        unicodedata.lookup(f"CYRILLIC {size} LETTER {name}"): latin if size == "CAPITAL" else small
        for size in ("CAPITAL", "SMALL")
        for name, latin, small in (
            ("VE", "B", ""), ("ES", "C", "c"), ("EN", "H", ""), ("O", "O", "o"),
            ("ER", "P", "p"), ("DZE", "S", "s"), ("BYELORUSSIAN-UKRAINIAN I", "I", ""),
        )
    },
    **{
        unicodedata.lookup(f"GREEK CAPITAL LETTER {name}"): latin
        for name, latin in (
            ("BETA", "B"), ("ETA", "H"), ("IOTA", "I"), ("NU", "N"), ("OMICRON", "O"), ("RHO", "P"),
        )
    },
    "\N{MINUS SIGN}": "-",
    "\N{EN DASH}": "-",
    "\N{HYPHEN}": "-",
}  # fmt: skip


def molecule(smiles: str, max_atoms: int | None = None) -> Graph:
    """The atoms (without hydrogens) and bonds of a molecule, with its layout in the plane.

    At most `max_atoms` atoms are read, 1,000 by default.
    """
    try:
        from rdkit import Chem, rdBase
        from rdkit.Chem import rdDepictor
    except ImportError as error:
        raise MissingExtra("RDKit", "graph", "reading a SMILES") from error
    text = smiles.strip()
    _check_characters(text)
    with rdBase.BlockLogs():
        unchecked: Any = Chem.MolFromSmiles(text, sanitize=False)  # takes linear time
        if unchecked is not None:
            _check_size(unchecked, max_atoms)
        mol: Any = None if unchecked is None else Chem.MolFromSmiles(text)
        if mol is None:
            problems = [] if unchecked is None else Chem.DetectChemistryProblems(unchecked)
            reason = problems[0].Message() if problems else "it breaks the rules of SMILES"
            raise InputError(f"{_short(text)!r} is not a valid SMILES: {reason}.")
    if not mol.GetNumAtoms():
        raise InputError(f"the molecule {_short(text)!r} has no atoms.")
    rdDepictor.Compute2DCoords(mol)
    layout = mol.GetConformer().GetPositions()[:, :2]
    atoms, bonds = list(mol.GetAtoms()), list(mol.GetBonds())
    return Graph(
        np.array([_atom(atom) for atom in atoms], dtype=np.float32),
        np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in bonds]).reshape(-1, 2),
        np.array([_bond(bond) for bond in bonds]).reshape(-1, len(BOND_FEATURES)),
        names=tuple(atom.GetSymbol() for atom in atoms),
        positions=(layout * [1, -1]).astype(np.float32),
        source=text,
    )


def _check_characters(text: str) -> None:
    """Refuses texts that RDKit rejects without a reason, or reads only in part."""
    if not text:
        raise InputError("the SMILES is empty: there is no molecule to explain.")
    for position, character in enumerate(text, 1):
        if character.isspace():
            raise InputError(
                f"a SMILES has no spaces, got {_short(text)!r}: pass one molecule without its name."
            )
        if not character.isascii() or not character.isprintable():
            name = unicodedata.name(character, f"U+{ord(character):04X}")
            latin = _LOOK_ALIKES.get(character) or unicodedata.normalize("NFKC", character)
            hint = f'; did you mean "{latin}"?' if latin.isascii() and latin.isprintable() else "."
            raise InputError(
                f"a SMILES has ASCII characters only, got {character!r} ({name}) at position "
                f"{position}{hint}"
            )


def _check_size(mol: Any, max_atoms: int | None) -> None:
    """Refuses large molecules and cages of many rings, which take RDKit minutes."""
    atoms = sum(atom.GetAtomicNum() != 1 for atom in mol.GetAtoms())
    hydrogens = mol.GetNumAtoms() - atoms
    if max_atoms is None and atoms > MOST_ATOMS:
        raise TooLong(f"the molecule has {atoms:,} atoms; at most {MOST_ATOMS:,} are read.")
    if max_atoms is not None and atoms > max_atoms:
        raise TooLong(f"the molecule has {atoms} atoms, but the model takes {max_atoms}.")
    if hydrogens > 4 * atoms + _SPARE_RINGS:
        raise TooLong(f"the molecule has {hydrogens:,} hydrogens for {atoms} other atoms.")
    rings = mol.GetNumBonds() - mol.GetNumAtoms() + 1
    if rings > atoms + _SPARE_RINGS:
        raise TooLong(
            f"the molecule has {rings} rings or more for {atoms} atoms; at most "
            f"{atoms + _SPARE_RINGS} are read."
        )


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}…"


def drawing(smiles: str, width: int = 420, height: int = 300) -> dict[str, Any]:
    """The structure as a picture without background, with the position of each atom."""
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
    """The Bemis–Murcko scaffold, rings and their linkers, as SMILES; empty without rings."""
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
    """One-hot encoding, with a last entry for unknown values."""
    return [*(value == name for name in known), value not in known]


def _count(value: int, most: int) -> list[bool]:
    """One-hot encoding of a count, clipped at `most`."""
    return [min(value, most) == n for n in range(most + 1)]
