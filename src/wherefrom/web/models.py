"""The models of a server; requests name one of them, never a path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from wherefrom.errors import InputError, nearest
from wherefrom.explainer import Explainer
from wherefrom.explaining.request import has_spans
from wherefrom.inputs.image import ImageReader
from wherefrom.inputs.text_reader import TextReader

SENTENCES = (
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
# how a person draws 7, 3 and 5 on the page's canvas of 224 × 224, as paths of SVG
DIGITS = (
    "M62 58H160Q130 110 104 184",
    "M70 60Q112 34 146 66Q158 98 106 108Q166 114 156 156Q124 202 64 170",
    "M154 48H84L76 104Q118 84 148 116Q166 160 122 182Q90 190 66 170",
)
PROMPTS = (
    "The capital of France is",
    "When Mary and John went to the shop, John gave a drink to",
)

QUESTION = "What is the password of the garden gate?"
PASSAGES = (
    "Tom moved to Oslo in 1990. He likes fish.",
    "The red car belongs to Paul. It is fast.",
    "The password of the garden gate is banana.",
)


class NoSuchModel(InputError):
    """The server has no model of this name."""


@dataclass(frozen=True)
class ServedModel:
    """A model that the page offers."""

    name: str
    explainer: Explainer

    @property
    def input_kind(self) -> Literal["text", "image"]:
        """The kind of input that a request for this model must contain."""
        is_image = isinstance(self.explainer._reader(""), ImageReader)
        return "image" if is_image or self._graph_kind == "superpixels" else "text"

    @property
    def _graph_kind(self) -> str:
        """What the model's graphs represent; empty for text and image models."""
        return str(getattr(getattr(self.explainer.runner.model, "config", None), "reads", ""))

    @property
    def answers(self) -> bool:
        """Whether the model generates text, so that its answers can be explained."""
        output_names = self.explainer.output_names
        is_text = isinstance(self.explainer._reader(""), TextReader)
        return is_text and output_names.generates and output_names.is_language_model

    @property
    def refused(self) -> str | None:
        """Why the page cannot explain this model; None if it can."""
        if not has_spans(self.explainer.runner):
            return None
        use = "Use the command line, wherefrom explain, or the library."
        if self.explainer.runner.task == "QuestionAnswering":
            return (
                f"{self.name} predicts a start and an end in a context, which the page cannot "
                f"show. "
                f"{use}"
            )
        return f"{self.name} classifies every token, but the page shows a single class. {use}"

    @property
    def takes_pairs(self) -> bool:
        """Whether the model reads two texts as one input."""
        explainer = self.explainer
        is_text = isinstance(explainer._reader(""), TextReader) and explainer.tokenizer is not None
        return is_text and not explainer.output_names.generates

    @property
    def input_label(self) -> str:
        """The label of the page's text field."""
        return "Paste a SMILES string" if self._graph_kind == "molecule" else "Type a sentence"

    @property
    def examples(self) -> tuple[str, ...]:
        """Example inputs that the page offers: texts, or strokes that it draws."""
        if self._graph_kind == "molecule":
            return MOLECULES
        if self.input_kind == "image":
            labels = self.explainer.labels()
            return DIGITS if set(labels) == set(map(str, range(10))) else ()
        if not isinstance(self.explainer._reader(""), TextReader):
            return ()
        return PROMPTS if self.explainer.output_names.generates else SENTENCES


class Models:
    """The served models by name, fixed when the server starts."""

    def __init__(self, explainers: Mapping[str, Explainer]) -> None:
        if not explainers:
            raise InputError("no model to serve: pass one with --model.")
        self._models = {
            name: ServedModel(name, explainer) for name, explainer in explainers.items()
        }

    def __getitem__(self, name: str) -> ServedModel:
        if name not in self._models:
            raise NoSuchModel(f'this server has no model "{name}"; {nearest(name, self._models)}')
        return self._models[name]

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    @property
    def names(self) -> list[str]:
        """The names that requests may use, in page order."""
        return list(self._models)


def open_models(sources: Iterable[str], load: Callable[[str], Explainer]) -> Models:
    """Loads models by embedded name, folder or hub id; the last part of a path is the name."""
    explainers: dict[str, Explainer] = {}
    for source in sources:
        name = last_part = PurePath(source).name or source
        number = 2
        while name in explainers:
            name, number = f"{last_part} ({number})", number + 1
        explainers[name] = load(source)
    return Models(explainers)
