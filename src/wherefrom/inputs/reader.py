"""The base class of readers, one for each kind of input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.core.explanation import Unit
from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.core.target import OutputNames
from wherefrom.errors import InputError, TargetError
from wherefrom.inputs.image_text_processor import ImageTextProcessor

Item = TypeVar("Item")
Form = TypeVar("Form")
Replacement = str | int | None  # for erased units; None: the default of the reader
Present = NDArray[np.bool_]  # (K, units): which units are present


@dataclass(frozen=True)
class ReaderContext:
    """The model of an explainer, and its tokenizer and processors."""

    runner: ModelRunner
    tokenizer: Any = None
    processor: Any = None
    labels: tuple[str, ...] | None = None  # from the user, in place of the model's
    joint_processor: ImageTextProcessor | None = None  # of vision-language models

    @property
    def reads_only_texts(self) -> bool:
        """Whether the model takes token ids and nothing that another built-in reader makes."""
        config = getattr(self.runner.model, "config", None)
        others = self.processor is not None or self.runner.takes("pixel_values")
        return self.runner.takes("input_ids") and not others and not hasattr(config, "reads")

    @property
    def output_names(self) -> OutputNames:
        """The names of the model's outputs."""
        return OutputNames(self.runner, self.tokenizer, self.labels)


class Reader(ABC, Generic[Item, Form]):
    """Turns inputs into batches for the model.

    A source is one input as the user passes it; an item is a source after reading. A form is an
    item with some of its units erased; evaluations make thousands, so it becomes tensors only
    when it is collated.
    """

    name: ClassVar[str]  # of the kind of input: text, image, …
    runner: ModelRunner
    pads: bool = True  # whether items of several sizes may share a batch
    alone: bool = False  # whether each item must be run by itself

    # Recognising inputs

    @classmethod
    @abstractmethod
    def accepts(cls, context: ReaderContext, inputs: Any) -> bool:
        """Whether these inputs, one or a list of them, are of this kind for this model."""

    @classmethod
    @abstractmethod
    def build(cls, context: ReaderContext) -> Reader[Item, Form]:
        """The reader for a model."""

    @classmethod
    def needs_class_texts(cls, context: ReaderContext) -> bool:
        """Whether the model compares inputs with texts, and the user passed no labels."""
        return False

    def with_options(self, *, units: Any = None, prefix: str | None = None) -> Reader[Item, Form]:
        """The same reader with other units of an image, or with a prefix for the decoder."""
        if units is not None:
            raise InputError("units apply only to images.")
        if prefix is not None:
            raise InputError("prefix applies only to models with a decoder that generates text.")
        return self

    # Reading

    @abstractmethod
    def listed(self, inputs: Any) -> tuple[list[Any], bool]:
        """The inputs as a list of sources, and whether they were a single one."""

    @abstractmethod
    def read(self, source: Any, truncate: bool = False) -> Item:
        """Reads one input."""

    @abstractmethod
    def batch(self, items: Sequence[Item]) -> Batch:
        """Items as one batch."""

    @abstractmethod
    def size(self, item: Item) -> int:
        """The number of an item's units."""

    def shape(self, item: Item) -> tuple[int, ...]:
        """Items of one shape may share a batch: by default those of one size."""
        return (self.size(item),)

    @abstractmethod
    def units_of(self, item: Item) -> tuple[Unit, ...]:
        """The units of an item, with their names."""

    def warnings_of(self, item: Item) -> tuple[str, ...]:
        """Caveats about this item, for `Explanation.warnings`."""
        return ()

    # For evaluation

    @abstractmethod
    def erased(self, item: Item, present: Present, replacement: Replacement) -> list[Form]:
        """Copies of the item with some units replaced, one for each row of `present`."""

    def note_on_erasing(self, replacement: Replacement) -> str | None:
        """A caveat about erased units, for the notes of an evaluation."""
        return None

    @abstractmethod
    def key(self, form: Form) -> bytes:
        """Equal keys mean equal model inputs."""

    @abstractmethod
    def length(self, form: Form) -> int:
        """The number of a form's units."""

    def batch_shape(self, form: Form) -> Hashable:
        """Forms with equal shapes may share a batch."""
        return None if self.pads else self.length(form)

    @abstractmethod
    def collate(self, forms: Sequence[Form]) -> dict[str, Tensor]:
        """The forms as tensors for the model."""

    # Defaults

    def read_all(self, sources: Sequence[Any], truncate: bool = False) -> list[Item]:
        """Reads each input; the first error names the index of its input."""
        items: list[Item] = []
        for number, item in enumerate(self._read(sources, truncate)):
            if isinstance(item, InputError):
                raise placed(item, number, len(sources)) from item.__cause__
            items.append(item)
        return items

    def read_each(self, sources: Sequence[Any], truncate: bool = False) -> list[Item | InputError]:
        """Reads each input, or returns the error that prevents it."""
        return list(self._read(sources, truncate))

    def _read(self, sources: Sequence[Any], truncate: bool) -> Iterator[Item | InputError]:
        for source in sources:
            try:
                yield self.read(source, truncate)
            except InputError as error:
                yield error

    def chunks(
        self, items: Sequence[Item], size: int, tokens: int | None = None
    ) -> list[list[int]]:
        """Batches of item indices: items of one shape share a batch."""
        shapes = [self.shape(item) for item in items]
        chunks: list[list[int]] = []
        for i in sorted(range(len(items)), key=lambda i: shapes[i]):
            last = chunks[-1] if chunks else []
            if last and len(last) < size and shapes[last[0]] == shapes[i]:
                last.append(i)
            else:
                chunks.append([i])
        return chunks

    def positions(self, inputs: Batch, position: int | None) -> Tensor:
        """The token whose logits are explained, for models with an output for every token."""
        lengths = inputs.mask.sum(1)
        return lengths - 1 if position is None else resolve_position(lengths, position)

    def check_position(self, inputs: Batch) -> None:
        """Raises TargetError if no token is a natural default."""


def first_of(inputs: Any) -> Any:
    """The first input of a list, or the single one."""
    return inputs[0] if isinstance(inputs, (list, tuple)) and inputs else inputs


def placed(error: InputError, number: int, count: int) -> InputError:
    """The error with the index of its input, if there are several."""
    return error.at(f"input {number} of {count}, counted from 0") if count > 1 else error


def resolve_position(lengths: Tensor, position: int) -> Tensor:
    """A position in each sample; negative ones count from its end."""
    shortest = int(lengths.min())
    if not -shortest <= position < shortest:
        raise TargetError(f"there is no position {position}: the input has {shortest} tokens.")
    return lengths + position if position < 0 else torch.full_like(lengths, position)
