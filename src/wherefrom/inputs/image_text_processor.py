"""Images that a language model reads with a text, as its processor makes tensors of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.core.explanation import Unit
from wherefrom.core.runner import Batch, Layout, ModelRunner
from wherefrom.errors import InputError, ModelError, first_line
from wherefrom.inputs.patches import find_layout
from wherefrom.inputs.pictures import opened, png_of

_OF_THE_TEXT = ("input_ids", "attention_mask", "labels")
_LAYOUTS = 32  # that are remembered, one for each shape
_LONGEST_SIDE = 768  # of a picture in a result


@dataclass(frozen=True)
class PromptImages:
    """The images of a prompt to draw on, and their patches, each with its image as `field`."""

    units: tuple[Unit, ...]
    scenes: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class EncodedImages(PromptImages):
    """The images of a prompt as tensors for the model.

    `types` has numbers for each token of the prompt, such as whether it stands for an image; all
    tokens that follow have `fill`.
    """

    pixels: str  # the name of the tensor that holds the images
    tensors: Mapping[str, Tensor]  # all that the processor returned of them
    types: Mapping[str, Tensor]  # each (1, tokens)
    layout: Layout
    fill: int = 0

    def joined(self, inputs: Batch) -> Batch:
        """The inputs of one text with the images, whose patches follow the tokens."""
        types = {
            name: torch.cat([own, own.new_full((1, inputs.places - own.shape[1]), self.fill)], 1)
            for name, own in self.types.items()
        }
        rows = self.layout.split(self.tensors[self.pixels])
        return replace(
            inputs,
            tensors={**inputs.tensors, **types, **self.tensors, self.pixels: rows},
            fields=(*inputs.fields, self.pixels),
            units=(inputs.units[0] + self.units,),
            mask=torch.cat([inputs.mask, torch.ones(1, len(self.units), dtype=torch.bool)], 1),
            layout=self.layout,
            noun="unit",
        )


@dataclass(eq=False)
class ImageTextProcessor:
    """A processor of texts and images, and its model."""

    runner: ModelRunner
    processor: Any
    _layouts: dict[tuple[Any, ...], Layout] = field(default_factory=dict)

    @property
    def placeholder(self) -> str:
        """What stands for an image in a text: of some processors it opens the image's tokens."""
        for name in ("boi_token", "image_token"):
            token = getattr(self.processor, name, None)
            if token is not None:
                return str(token)
        raise ModelError(
            f"{type(self.processor).__name__} names no image_token: it is not known what stands "
            "for an image in a text."
        )

    @property
    def has_template(self) -> bool:
        """Whether the processor makes a text of chat messages with images."""
        return bool(getattr(self.processor, "chat_template", None))

    def see(self, text: str, images: Sequence[Any], chat: bool) -> tuple[list[int], EncodedImages]:
        """The ids of the text, with those that stand for the images, and the images."""
        pictures, names = zip(*map(opened, images), strict=True)
        pictures = tuple(picture.convert("RGB") for picture in pictures)
        output = self._output(text, pictures, chat)
        ids = output["input_ids"]
        others = {
            name: value.to(self.runner.device)
            for name, value in output.items()
            if isinstance(value, Tensor) and name not in _OF_THE_TEXT
        }
        types = {name: others.pop(name) for name in [*others] if others[name].shape == ids.shape}
        floats = [name for name, value in others.items() if value.is_floating_point()]
        if not floats:
            raise InputError(
                f"{type(self.processor).__name__} returned no pixels "
                f"(it returned {', '.join(output)})."
            )
        pixels = max(floats, key=lambda name: others[name].numel())
        for name in floats:
            others[name] = others[name].to(self.runner.dtype or torch.float32)
        layout = self._layout(pixels, others, types, ids.to(self.runner.device))
        units = self._units(text, pictures, chat, pixels, layout)
        scenes = tuple(_scene(picture, name) for picture, name in zip(pictures, names, strict=True))
        return ids[0].tolist(), EncodedImages(units, scenes, pixels, others, types, layout)

    def _output(self, text: str, pictures: Sequence[Any], chat: bool) -> Mapping[str, Any]:
        # the template has the special tokens
        options = {"add_special_tokens": False} if chat else {}
        try:
            output: Mapping[str, Any] = self.processor(
                text=text, images=list(pictures), return_tensors="pt", **options
            )
        except (TypeError, ValueError, IndexError, AttributeError, StopIteration) as error:
            raise InputError(
                f"{type(self.processor).__name__} does not read this prompt with "
                f"{len(pictures)} image{'s' * (len(pictures) != 1)}: {first_line(error)}"
            ) from error
        return output

    def _layout(
        self, pixels: str, others: Mapping[str, Tensor], types: Mapping[str, Tensor], ids: Tensor
    ) -> Layout:
        """The patches of images of this shape, found by running the model."""
        key = (pixels, *others[pixels].shape)
        if key not in self._layouts:
            if len(self._layouts) == _LAYOUTS:
                del self._layouts[next(iter(self._layouts))]
            tensors = {**others, **types, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
            values = tensors.pop(pixels)
            runner = replace(self.runner, restores=True)
            self._layouts[key] = find_layout(runner, pixels, values, tensors)
        return self._layouts[key]

    def _units(
        self, text: str, pictures: Sequence[Any], chat: bool, pixels: str, layout: Layout
    ) -> tuple[Unit, ...]:
        """The patches with their boxes in the images, found by processing test images.

        These have the same sizes: all black, all white, ramps to the right and to the bottom, and
        each image white in turn. This covers any resizing, cropping, tiling and order of patches.
        """

        def rows(images: Sequence[Any]) -> NDArray[np.float64]:
            value = self._output(text, images, chat)[pixels].double()
            return layout.split(value)[0].numpy()  # (units, features)

        sizes = [picture.size for picture in pictures]
        black = rows([_plain(size, 0) for size in sizes])
        contrast = rows([_plain(size, 255) for size in sizes]) - black
        shows = np.abs(contrast) > 1e-6  # not padding
        scale = np.where(shows, contrast, 1.0)
        across, down = (
            (rows([_ramp(size, axis) for size in sizes]) - black) / scale for axis in (0, 1)
        )
        owner = np.zeros(len(black), dtype=int)
        for number in range(1, len(sizes)):
            lit = [_plain(size, 255 * (i == number)) for i, size in enumerate(sizes)]
            owner[(np.abs(rows(lit) - black) > 1e-6).any(1)] = number
        units = []
        for unit, number in enumerate(owner):
            name = f"image {number + 1}"
            if not shows[unit].any():
                units.append(Unit("padding", field=name))
                continue
            (left, right), (top, bottom) = (
                _extent(values[unit][shows[unit]], size)
                for values, size in zip((across, down), sizes[number], strict=True)
            )
            units.append(Unit(f"{left},{top}", field=name, box=(left, top, right, bottom)))
        return tuple(units)


def _plain(size: tuple[int, int], value: int) -> Any:
    return opened(np.full((size[1], size[0], 3), value, dtype=np.uint8))[0]


def _ramp(size: tuple[int, int], axis: int) -> Any:
    """An image that is dark at its left (0) or upper (1) edge and bright at the other."""
    levels = np.linspace(0, 255, size[axis]).round().astype(np.uint8)
    levels = levels[None, :, None] if axis == 0 else levels[:, None, None]
    return opened(np.broadcast_to(levels, (size[1], size[0], 3)).copy())[0]


def _extent(values: NDArray[np.float64], size: int) -> tuple[int, int]:
    """From where to where a patch reaches along an axis, by the brightness of a ramp in it.

    Numbers that are spread evenly over an interval have their mean at its middle and a standard
    deviation of its length / √12.
    """
    places = values * (size - 1) + 0.5
    half = float(np.sqrt(3) * places.std())
    first = int(np.clip(round(float(places.mean()) - half), 0, size - 1))
    last = int(np.clip(round(float(places.mean()) + half), first + 1, size))
    return first, last


def _scene(picture: Any, name: str | None) -> dict[str, Any]:
    width, height = picture.size
    shown = picture.copy()
    shown.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    return {
        "kind": "image",
        "png": png_of(np.asarray(shown)),
        "width": width,
        "height": height,
        "name": name,
    }
