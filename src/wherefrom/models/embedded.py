"""The models that come with the library: small, trained, loaded without a network."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError

HOME = Path(__file__).parent
CARD = "card.json"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Card:
    """The description of an embedded model, with the metrics measured in training."""

    name: str
    task: str
    data: str
    metric: str
    figures: dict[str, float]
    parameters: int
    sha256: str

    @property
    def folder(self) -> Path:
        """The folder of the model."""
        return HOME / self.name

    @property
    def megabytes(self) -> float:
        """The size of all its files."""
        return sum(f.stat().st_size for f in self.folder.iterdir() if f.is_file()) / 1e6


def embedded() -> dict[str, Card]:
    """The cards of all embedded models, by name."""
    return {card.name: card for card in map(_read, sorted(HOME.glob(f"*/{CARD}")))}


def verified(card: Card) -> Path:
    """The model's folder, after a check of its weights' checksum."""
    weights = card.folder / WEIGHTS
    if not weights.is_file():
        raise FileError(
            f"the weights of the embedded model {card.name} are missing "
            f"({weights.relative_to(HOME)}). Install wherefrom again."
        )
    if hashlib.sha256(weights.read_bytes()).hexdigest() != card.sha256:
        raise FileError(
            f"the weights of the embedded model {card.name} are damaged: {weights.name} is not "
            "the file that was trained. Install wherefrom again."
        )
    return card.folder


def _read(path: Path) -> Card:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Card(**data)
    except (OSError, ValueError, TypeError) as error:
        raise FileError(f"the card of an embedded model is damaged: {path.parent.name}") from error
