"""Images as inputs: a picture, a file, an array, or the tensor that the model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wherefrom.core.explanation import Unit
from wherefrom.core.runner import Batch, Forward, Layout, ModelRunner
from wherefrom.core.scope import restores_state
from wherefrom.errors import InputError, TargetError, TooLong
from wherefrom.inputs.patches import find_patches, layout_of, try_image
from wherefrom.inputs.pictures import is_image, note_on_frames, opened, png_of, thumbnail_of
from wherefrom.inputs.reader import Present, Reader, ReaderContext, Replacement, first_of

Units = Literal["patches", "pixels"] | int
FILLS = ("zero", "mean", "blur")
"""What erased pixels become: 0 (the mean colour, once normalised), the image's mean, a blur."""
_MOST_UNITS = 1 << 18

_UNNORMALISED = 10.0  # times the largest normalised pixel: beyond this, pixels are not normalised
_GRIDS = 32  # layouts that a reader caches, one per image size


@dataclass(frozen=True)
class Picture:
    """One image as the model takes it, and its units."""

    pixels: Tensor  # (C, H, W)
    name: str | None = None
    notes: tuple[str, ...] = ()  # on what was left out


@dataclass(frozen=True)
class ErasedImage:
    """An image with some of its units erased, until it is collated."""

    picture: Picture
    present: NDArray[np.bool_]
    replacement: Replacement


@dataclass
class ImageReader(Reader[Picture, ErasedImage]):
    """Reads images with the model's processor; units are its patches, or its pixels.

    An integer for `units` is the side of square cells, in pixels.
    """

    name: ClassVar[str] = "image"
    runner: ModelRunner
    processor: Any = None
    units: Units = "patches"
    argument: str = "pixel_values"
    _fill: tuple[Picture, str | int | None, Tensor] | None = None
    _grids: dict[tuple[int, ...], tuple[Layout, tuple[Unit, ...]]] = field(default_factory=dict)

    _other_units: dict[str, ImageReader] = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_size = isinstance(self.units, int) and not isinstance(self.units, bool)
        if not (is_size and int(self.units) > 0) and self.units not in ("patches", "pixels"):
            raise InputError(
                f'units must be "patches", "pixels" or a positive integer, got {self.units!r}.'
            )

    @classmethod
    def accepts(cls, context: ReaderContext, inputs: Any) -> bool:
        """Accepts pictures for vision models, and float tensors of three axes per input."""
        first = first_of(inputs)
        floats = isinstance(first, Tensor) and first.is_floating_point()
        takes_images = context.processor is not None or context.runner.takes("pixel_values")
        takes_texts = context.tokenizer is not None or context.runner.takes("input_ids")
        if takes_images:
            return not takes_texts or isinstance(first, Picture) or is_image(first) or (
                floats and first.ndim > 2
            )  # fmt: skip
        axes = 3 if isinstance(inputs, (list, tuple)) else 4
        return floats and first.ndim == axes and not takes_texts

    @classmethod
    def build(cls, context: ReaderContext) -> ImageReader:
        runner = context.runner
        if compares_with_texts(runner):
            if context.labels is None:
                raise no_class_texts(runner)
            runner = ModelRunner(runner.model, compare_with(context.tokenizer, context.labels))
        return cls(runner.by_position(cls.argument), context.processor)

    @classmethod
    def needs_class_texts(cls, context: ReaderContext) -> bool:
        return context.labels is None and compares_with_texts(context.runner)

    def with_options(self, *, units: Any = None, prefix: str | None = None) -> ImageReader:
        """The same reader for other units."""
        super().with_options(prefix=prefix)
        if units is None or (units == self.units and type(units) is type(self.units)):
            return self
        key = repr(units)
        if key not in self._other_units:  # cached, since finding the patches takes a run
            reader = ImageReader(self.runner, self.processor, units, self.argument)
            self._other_units[key] = reader
        return self._other_units[key]

    def listed(self, inputs: Any) -> tuple[list[Any], bool]:
        if isinstance(inputs, (Tensor, np.ndarray)):
            if inputs.ndim != 4:
                return [inputs], True
            inputs = list(inputs)
        if isinstance(inputs, (list, tuple)):
            if not inputs:
                raise InputError("the list of images is empty: there is nothing to explain.")
            return list(inputs), False
        return [inputs], True

    def read(self, source: Any, truncate: bool = False) -> Picture:
        if isinstance(source, Picture):
            return source
        if isinstance(source, Tensor) and source.is_floating_point():
            pixels = source.unsqueeze(0) if source.ndim == 2 else source
            if pixels.ndim != 3 or 0 in pixels.shape:
                raise InputError(
                    "an image tensor must have the shape (channels, height, width), "
                    f"got shape {tuple(source.shape)}."
                )
            if not bool(torch.isfinite(pixels).all()):
                raise InputError("the image has pixels that are NaN or infinite.")
            self._check_normalised(pixels)
            return Picture(
                pixels.detach().to(self.runner.device, self.runner.dtype or pixels.dtype)
            )
        image, name = opened(source)
        notes = note_on_frames(source if hasattr(source, "info") else image)
        if self.processor is None:
            raise InputError(
                "this explainer has no image processor to read a picture with.",
                "Pass one, Explainer(model, processor=…), or pass the tensor that the model takes.",
                command="",
            )
        output = self.processor(images=self._with_channels(image), return_tensors="pt")
        pixels = output["pixel_values"][0].to(
            self.runner.device, self.runner.dtype or torch.float32
        )
        if pixels.ndim != 3:
            raise InputError(
                f"the processor of {self.runner.name} returns pixels of shape "
                f"{tuple(pixels.shape)}; (channels, height, width) is needed."
            )
        return Picture(pixels, name, (*notes, *_note_on_crop(self.processor, image.size)))

    def warnings_of(self, item: Picture) -> tuple[str, ...]:
        return item.notes

    def _check_normalised(self, pixels: Tensor) -> None:
        """Refuses floats from 0 to 255 if the model's processor normalises pixels."""
        if not getattr(self.processor, "do_normalize", False):
            return
        means, deviations = (
            np.asarray(getattr(self.processor, name, None) or [default], dtype=float)
            for name, default in (("image_mean", 0.0), ("image_std", 1.0))
        )
        limit = float(np.maximum(np.abs(means), np.abs(1 - means)).max() / deviations.min())
        largest = float(pixels.abs().max())
        if largest > _UNNORMALISED * max(1.0, limit):
            raise InputError(
                "a float tensor must hold pixels as the model takes them, here normalised to at "
                f"most {limit:.3g}, got {largest:.3g}. Pass pixels from 0 to 255 as uint8."
            )

    def _with_channels(self, image: Any) -> Any:
        config = getattr(self.runner.model, "config", None)
        config = getattr(config, "vision_config", config)
        if getattr(config, "num_channels", 3) == 1:
            # transformers 4 requires a channel axis for grey images
            return np.asarray(image.convert("L"))[..., None]
        return image.convert("RGB")

    def grid(self, picture: Picture) -> tuple[Layout, tuple[Unit, ...]]:
        """The layout and the units of images of this size, cached."""
        shape = tuple(picture.pixels.shape)
        if shape not in self._grids:
            owners = self._owners(picture.pixels)
            cut = self.units == "patches"
            if len(self._grids) == _GRIDS:  # images of many sizes must not fill the memory
                del self._grids[next(iter(self._grids))]
            self._grids[shape] = (layout_of(owners.expand(shape), cut), _units(owners))
        return self._grids[shape]

    @restores_state
    def _owners(self, pixels: Tensor) -> Tensor:
        height, width = pixels.shape[1:]
        if self.units == "patches":
            return find_patches(self.runner, self.argument, pixels)
        with self.runner.evaluating(gradients=False):
            try_image(self.runner, self.argument, pixels.unsqueeze(0))
        size = 1 if self.units == "pixels" else self.units
        assert isinstance(size, int)
        rows, columns = -(-height // size), -(-width // size)
        if rows * columns > _MOST_UNITS:
            raise TooLong(
                f"an image of {height} × {width} has too many units.",
                "Try units=4.",
                command="Try --units 4.",
                page="Use a smaller image.",
            )
        down, right = torch.arange(height) // size, torch.arange(width) // size
        return down[:, None] * columns + right[None, :]

    def size(self, item: Picture) -> int:
        return self.grid(item)[0].units

    def shape(self, item: Picture) -> tuple[int, ...]:
        """The shape of the image: different grids can have the same number of patches."""
        return tuple(item.pixels.shape)

    def batch(self, items: Sequence[Picture]) -> Batch:
        pixels = torch.stack([item.pixels for item in items])
        layout, units = self.grid(items[0])
        return Batch(
            tensors={self.argument: layout.split(pixels)},
            fields=(self.argument,),
            units=(units,) * len(items),
            mask=torch.ones(len(items), layout.units, dtype=torch.bool),
            texts=(None,) * len(items),
            layout=layout,
            noun="pixel" if self.units == "pixels" else "patch",
            scenes=tuple(self._scene(item) for item in items),
        )

    def _scene(self, item: Picture) -> dict[str, Any]:
        _, height, width = item.pixels.shape
        mean, std = (
            torch.tensor(getattr(self.processor, name, None) or [default]).reshape(-1, 1, 1)
            for name, default in (("image_mean", 0.0), ("image_std", 1.0))
        )
        pixels = item.pixels.detach().cpu().float()
        if getattr(self.processor, "do_normalize", False):
            pixels = pixels * std + mean
        else:
            pixels = (pixels - pixels.min()) / (pixels.max() - pixels.min()).clamp_min(1e-12)
        shown = (pixels.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
        return {
            "kind": "image",
            "png": png_of(shown),
            "thumbnail": thumbnail_of(shown),
            "width": width,
            "height": height,
            "name": item.name,
        }

    def units_of(self, item: Picture) -> tuple[Unit, ...]:
        return self.grid(item)[1]

    def erased(
        self, item: Picture, present: Present, replacement: Replacement
    ) -> list[ErasedImage]:
        if replacement not in (None, *FILLS):
            raise InputError(
                f'no replacement "{replacement}" for pixels; there are: {", ".join(FILLS)}.'
            )
        return [ErasedImage(item, row, replacement) for row in present]

    def key(self, form: ErasedImage) -> bytes:
        return id(form.picture).to_bytes(8) + np.packbits(form.present).tobytes()

    def length(self, form: ErasedImage) -> int:
        return len(form.present)

    def batch_shape(self, form: ErasedImage) -> tuple[int, ...]:
        return tuple(form.picture.pixels.shape)

    def collate(self, forms: Sequence[ErasedImage]) -> dict[str, Tensor]:
        layout = self.grid(forms[0].picture)[0]
        pixels = torch.stack([form.picture.pixels for form in forms])
        fill = torch.stack([self._filled(form) for form in forms])
        present = torch.from_numpy(np.stack([form.present for form in forms])).unsqueeze(-1)
        keep = layout.whole(present.expand(-1, -1, layout.features)).to(pixels.device)
        return {self.argument: torch.where(keep, pixels, fill)}

    def _filled(self, form: ErasedImage) -> Tensor:
        """The values of erased pixels, cached for the last image."""
        fill = self._fill
        if fill is None or fill[0] is not form.picture or fill[1] != form.replacement:
            fill = (
                form.picture,
                form.replacement,
                filled(form.picture.pixels, str(form.replacement or "zero")),
            )
            self._fill = fill
        return fill[2]


def _units(owners: Tensor) -> tuple[Unit, ...]:
    count = int(owners.max()) + 1
    down, right = (t.flatten() for t in torch.meshgrid(
        *(torch.arange(n) for n in owners.shape), indexing="ij"
    ))  # fmt: skip
    flat = owners.flatten()
    edges = [
        torch.zeros(count, dtype=torch.long).scatter_reduce(
            0, flat, values, how, include_self=False
        )
        for values, how in ((right, "amin"), (down, "amin"), (right, "amax"), (down, "amax"))
    ]
    boxes = torch.stack([edges[0], edges[1], edges[2] + 1, edges[3] + 1], 1).tolist()
    return tuple(Unit(f"{left},{top}", box=(left, top, r, b)) for left, top, r, b in boxes)


def filled(pixels: Tensor, fill: str) -> Tensor:
    """An uninformative image (C, H, W): zero (the mean colour, once normalised), mean or blur."""
    if fill == "mean":
        return pixels.mean((1, 2), keepdim=True).expand_as(pixels)
    return _blurred(pixels) if fill == "blur" else torch.zeros_like(pixels)


def _blurred(pixels: Tensor, share: float = 0.125) -> Tensor:
    """A Gaussian blur as wide as an eighth of the image."""
    sigma = max(1.0, share * min(pixels.shape[1:]))
    radius = int(3 * sigma)
    steps = torch.arange(-radius, radius + 1, device=pixels.device, dtype=pixels.dtype)
    weights = torch.exp(-(steps**2) / (2 * sigma**2))
    weights = weights / weights.sum()
    for axis in (1, 2):
        size = pixels.shape[axis]
        indices = (torch.arange(size)[:, None] + steps.long().cpu()[None, :]).clamp(0, size - 1)
        gathered = pixels.index_select(axis, indices.flatten().to(pixels.device))
        shape = (*pixels.shape[:axis], size, len(steps), *pixels.shape[axis + 1 :])
        along = weights.reshape(1, *(1,) * (axis), -1, *(1,) * (2 - axis))
        pixels = (gathered.reshape(shape) * along).sum(axis + 1)
    return pixels


def compares_with_texts(runner: ModelRunner) -> bool:
    """Whether the model takes an image together with texts."""
    return runner.forward is None and runner.takes("pixel_values", "input_ids")


def no_class_texts(runner: ModelRunner) -> TargetError:
    """The error for an image–text model without texts."""
    return TargetError(
        f"{runner.name} compares images with texts.",
        'Name the texts, as in target="a photo of a cat", or pass Explainer(…, labels=[…]).',
        command='Name the text: --target "a photo of a cat".',
    )


def compare_with(tokenizer: Any, texts: Sequence[str]) -> Forward:
    """A forward function for an image–text model, with these texts as classes."""
    if tokenizer is None:
        raise InputError(
            "texts as classes need a tokenizer.",
            "Pass it: Explainer(model, tokenizer).",
            command="",
        )
    encoded = tokenizer(list(texts), return_tensors="pt", padding=True)
    names = [name for name in ("input_ids", "attention_mask") if name in encoded]

    def forward(model: nn.Module, tensors: Mapping[str, Tensor]) -> Any:
        device = tensors["pixel_values"].device
        return model(**tensors, **{name: encoded[name].to(device) for name in names})

    return forward


def _note_on_crop(processor: Any, size: tuple[int, int]) -> tuple[str, ...]:
    """A caveat if a processor cuts a picture of this width and height to its centre."""
    if not getattr(processor, "do_center_crop", False):
        return ()
    target, crop = (dict(getattr(processor, name, None) or {}) for name in ("size", "crop_size"))
    width, height = size
    if getattr(processor, "do_resize", False):
        edge = target.get("shortest_edge")
        scale = edge / min(size) if edge else 1
        width = round(target.get("width") or width * scale)
        height = round(target.get("height") or height * scale)
    kept = min(width, crop.get("width") or width), min(height, crop.get("height") or height)
    if max(width - kept[0], height - kept[1]) <= 1:  # rounding
        return ()
    share = 1 - kept[0] * kept[1] / (width * height)
    return (
        f"The processor cuts the picture to its centre: {100 * share:.0f} % of it are not part of "
        "the explanation.",
    )
