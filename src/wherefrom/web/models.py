"""The models that were allowed at the start; a request names one of them, never a path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from wherefrom.errors import InputError, nearest
from wherefrom.explain import Explainer
from wherefrom.inputs.image import ImageReader
from wherefrom.inputs.text_reader import TextReader

EXAMPLES = (
    "has a lot of the virtues of eastwood at his best.",
    "a gorgeous, witty, seductive movie.",
    "it's not a bad film, but it never surprises you.",
    "the acting is fine; the script is dull beyond belief.",
    "I expected to hate it, and I could not stop smiling.",
)

MOLECULES = (
    "CN1C(N)=NC(C)(CS1(=O)=O)c1cc(NC(=O)c2ccc(F)cn2)ccc1F",
    "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
    "Cn1cnc2c1c(=O)n(C)c(=O)n2C",
)
OPENINGS = (
    "The capital of France is",
    "When Mary and John went to the shop, John gave a drink to",
)


@dataclass(frozen=True)
class Shown:
    """A model as the page offers it."""

    name: str
    explainer: Explainer

    @property
    def takes(self) -> Literal["text", "image"]:
        """What a person gives it."""
        sees = isinstance(self.explainer.reader(""), ImageReader) or self._graphs == "superpixels"
        return "image" if sees else "text"

    @property
    def _graphs(self) -> str:
        """What the model's graphs are made of, if it reads any."""
        return str(getattr(getattr(self.explainer.subject.model, "config", None), "reads", ""))

    @property
    def prompt(self) -> str:
        """What the page says above the field for text."""
        return "Paste a SMILES" if self._graphs == "molecule" else "Type a sentence"

    @property
    def examples(self) -> tuple[str, ...]:
        """Texts to begin with."""
        if self._graphs == "molecule":
            return MOLECULES
        if not isinstance(self.explainer.reader(""), TextReader):
            return ()
        return OPENINGS if self.explainer.naming.generates else EXAMPLES


class Shelf:
    """Models by the name that requests may use."""

    def __init__(self, models: Mapping[str, Explainer]) -> None:
        if not models:
            raise InputError("there is no model to show: name one with --model.")
        self.models = {name: Shown(name, explainer) for name, explainer in models.items()}

    def __getitem__(self, name: str) -> Shown:
        if name not in self.models:
            raise InputError(f'no model "{name}" was allowed; {nearest(name, self.models)}')
        return self.models[name]


def opened(sources: Iterable[str], load: Callable[[str], Explainer]) -> Shelf:
    """Loads models by embedded name, folder or hub id; a folder goes by its last part."""
    found: dict[str, Explainer] = {}
    for source in sources:
        name = short = PurePath(source).name or source
        number = 2
        while name in found:
            name, number = f"{short} ({number})", number + 1
        found[name] = load(source)
    return Shelf(found)
