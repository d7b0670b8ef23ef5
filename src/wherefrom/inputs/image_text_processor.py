"""Images in the prompt of a vision-language model, read with its processor."""

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

_TEXT_TENSORS = ("input_ids", "attention_mask", "labels")
_LAYOUTS = 32  # cached, one per shape
_LONGEST_SIDE = 768  # of a picture in a result


@dataclass(frozen=True)
class PromptImages:
    """The images of a prompt for display, and their patches, whose `field` names the image."""

    units: tuple[Unit, ...]
    scenes: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class EncodedImages(PromptImages):
    """The images of a prompt as tensors for the model.

    `types` are per-token tensors of the prompt, such as flags of image tokens; later tokens get
    `fill`.
    """

    pixels: str  # the name of the tensor that holds the images
    tensors: Mapping[str, Tensor]  # all image tensors that the processor returned
    types: Mapping[str, Tensor]  # each (1, tokens)
    layout: Layout
    fill: int = 0

    def joined(self, inputs: Batch) -> Batch:
        """Adds the images to a batch of one text; their patches follow its tokens."""
        types = {
            name: torch.cat([row, row.new_full((1, inputs.places - row.shape[1]), self.fill)], 1)
            for name, row in self.types.items()
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
        """The token that marks an image in a text; for some processors the image's first token."""
        for name in ("boi_token", "image_token"):
            token = getattr(self.processor, name, None)
            if token is not None:
                return str(token)
        raise ModelError(
            f"{type(self.processor).__name__} has no image_token, so images cannot be placed in "
            "a text."
        )

    @property
    def has_template(self) -> bool:
        """Whether the processor has a chat template."""
        return bool(getattr(self.processor, "chat_template", None))

    def encode(
        self, text: str, images: Sequence[Any], chat: bool
    ) -> tuple[list[int], EncodedImages]:
        """The ids of the text, image tokens included, and the images."""
        pictures, names = zip(*map(opened, images), strict=True)
        pictures = tuple(picture.convert("RGB") for picture in pictures)
        output = self._output(text, pictures, chat)
        ids = output["input_ids"]
        others = {
            name: value.to(self.runner.device)
            for name, value in output.items()
            if isinstance(value, Tensor) and name not in _TEXT_TENSORS
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
        # the template adds the special tokens
        options = {"add_special_tokens": False} if chat else {}
        try:
            output: Mapping[str, Any] = self.processor(
                text=text, images=list(pictures), return_tensors="pt", **options
            )
        except (TypeError, ValueError, IndexError, AttributeError, StopIteration) as error:
            raise InputError(
                f"{type(self.processor).__name__} cannot read this prompt with "
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
        visible = np.abs(contrast) > 1e-6  # not padding
        scale = np.where(visible, contrast, 1.0)
        across, down = (
            (rows([_ramp(size, axis) for size in sizes]) - black) / scale for axis in (0, 1)
        )
        owner = np.zeros(len(black), dtype=int)
        for image in range(1, len(sizes)):
            lit = [_plain(size, 255 * (i == image)) for i, size in enumerate(sizes)]
            owner[(np.abs(rows(lit) - black) > 1e-6).any(1)] = image
        units = []
        for unit, image in enumerate(owner):
            name = f"image {image + 1}"
            if not visible[unit].any():
                units.append(Unit("padding", field=name))
                continue
            (left, right), (top, bottom) = (
                _extent(values[unit][visible[unit]], size)
                for values, size in zip((across, down), sizes[image], strict=True)
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
    """The first and last pixel of a patch along an axis, from the brightness of a ramp in it.

    A uniform distribution has its mean at the middle and a standard deviation of length / √12.
    """
    positions = values * (size - 1) + 0.5
    half = float(np.sqrt(3) * positions.std())
    first = int(np.clip(round(float(positions.mean()) - half), 0, size - 1))
    last = int(np.clip(round(float(positions.mean()) + half), first + 1, size))
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
