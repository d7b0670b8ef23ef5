"""Images as inputs: a picture, a file, an array, or the tensor that the model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wherefrom.errors import InputError, TooLong
from wherefrom.explanation import Unit
from wherefrom.inputs.patches import find_patches, layout_of, try_image
from wherefrom.inputs.pictures import opened, png_of
from wherefrom.inputs.reader import Present, Reader
from wherefrom.subject import Forward, Inputs, Layout, Subject

Units = Literal["patches", "pixels"] | int
_MOST_UNITS = 1 << 18


@dataclass(frozen=True)
class Picture:
    """One image as the model takes it, and its units."""

    pixels: Tensor  # (C, H, W)
    name: str | None = None


@dataclass(frozen=True)
class Erased:
    """An image of which some units are not there, until it is collated."""

    picture: Picture
    present: NDArray[np.bool_]
    blank: str | int | None


@dataclass
class ImageReader(Reader[Picture, Erased]):
    """Reads images by the model's processor; units are its patches, or its pixels.

    A whole number for `units` means square cells of so many pixels.
    """

    subject: Subject
    processor: Any = None
    units: Units = "patches"
    argument: str = "pixel_values"
    _fill: tuple[Picture, str | int | None, Tensor] | None = None
    _grids: dict[tuple[int, ...], tuple[Layout, tuple[Unit, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole = isinstance(self.units, int) and not isinstance(self.units, bool) and self.units > 0
        if not whole and self.units not in ("patches", "pixels"):
            raise InputError(f'units={self.units!r}: say "patches", "pixels", or how large.')

    def listed(self, given: Any) -> tuple[list[Any], bool]:
        if isinstance(given, (Tensor, np.ndarray)):
            if given.ndim != 4:
                return [given], True
            given = list(given)
        if isinstance(given, (list, tuple)):
            if not given:
                raise InputError("the list of images is empty: there is nothing to explain.")
            return list(given), False
        return [given], True

    def read(self, given: Any, truncate: bool = False) -> Picture:
        if isinstance(given, Picture):
            return given
        if isinstance(given, Tensor) and given.is_floating_point():
            pixels = given.unsqueeze(0) if given.ndim == 2 else given
            if pixels.ndim != 3 or 0 in pixels.shape:
                raise InputError(
                    f"an image tensor of shape {tuple(given.shape)}: give (channels, height, width)"
                    ", as the model takes it."
                )
            if not bool(torch.isfinite(pixels).all()):
                raise InputError("the image has pixels that are no numbers (NaN or infinite).")
            return Picture(pixels.detach().to(self.subject.device, self._dtype(pixels.dtype)))
        picture, name = opened(given)
        if self.processor is None:
            raise InputError(
                "this explainer has no image processor, so it cannot read a picture. Give it one: "
                "Explainer(model, processor=…), or give the tensor that the model takes."
            )
        found = self.processor(images=self._coloured(picture), return_tensors="pt")
        pixels = found["pixel_values"][0].to(self.subject.device, self._dtype(torch.float32))
        if pixels.ndim != 3:
            raise InputError(
                f"the processor of {self.subject.name} makes an image into numbers of shape "
                f"{tuple(pixels.shape)}, and not into (channels, height, width)."
            )
        return Picture(pixels, name)

    def _dtype(self, otherwise: torch.dtype) -> torch.dtype:
        first = next((p for p in self.subject.model.parameters() if p.is_floating_point()), None)
        return otherwise if first is None else first.dtype

    def _coloured(self, picture: Any) -> Any:
        config = getattr(self.subject.model, "config", None)
        config = getattr(config, "vision_config", config)
        if "transparency" in picture.info:  # of a palette: Pillow asks for this step
            picture = picture.convert("RGBA")
        return picture.convert("L" if getattr(config, "num_channels", 3) == 1 else "RGB")

    def grid(self, picture: Picture) -> tuple[Layout, tuple[Unit, ...]]:
        """The layout and the units of an image of this size, found once."""
        shape = tuple(picture.pixels.shape)
        if shape not in self._grids:
            owners = self._owners(picture.pixels)
            cut = self.units == "patches"
            self._grids[shape] = (layout_of(owners, shape[0], cut), _units(owners))
        return self._grids[shape]

    def _owners(self, pixels: Tensor) -> Tensor:
        height, width = pixels.shape[1:]
        if self.units == "patches":
            return find_patches(self.subject, self.argument, pixels)
        with self.subject.evaluating(), torch.no_grad():
            try_image(self.subject, self.argument, pixels.unsqueeze(0))
        size = 1 if self.units == "pixels" else self.units
        assert isinstance(size, int)
        rows, columns = -(-height // size), -(-width // size)
        if rows * columns > _MOST_UNITS:
            raise TooLong(f"an image of {height} × {width} has too many units; try units=4.")
        down, right = torch.arange(height) // size, torch.arange(width) // size
        return down[:, None] * columns + right[None, :]

    def size(self, item: Picture) -> int:
        return self.grid(item)[0].units

    def chunks(self, items: Sequence[Picture], size: int) -> list[list[int]]:
        """Images of one shape together: as many patches may lie otherwise."""
        alike: dict[tuple[int, ...], list[int]] = {}
        for i, item in enumerate(items):
            alike.setdefault(tuple(item.pixels.shape), []).append(i)
        return [
            of_one[at : at + size]
            for of_one in alike.values()
            for at in range(0, len(of_one), size)
        ]

    def batch(self, items: Sequence[Picture]) -> Inputs:
        pixels = torch.stack([item.pixels for item in items])
        layout, units = self.grid(items[0])
        return Inputs(
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
        mean, spread = (
            torch.tensor(getattr(self.processor, name, None) or [given]).reshape(-1, 1, 1)
            for name, given in (("image_mean", 0.0), ("image_std", 1.0))
        )
        seen = item.pixels.detach().cpu().float()
        if getattr(self.processor, "do_normalize", False):
            seen = seen * spread + mean
        else:
            seen = (seen - seen.min()) / (seen.max() - seen.min()).clamp_min(1e-12)
        shown = (seen.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
        return {
            "kind": "image",
            "png": png_of(shown),
            "width": width,
            "height": height,
            "name": item.name,
        }

    def units_of(self, item: Picture) -> tuple[Unit, ...]:
        return self.grid(item)[1]

    def erased(self, item: Picture, present: Present, blank: str | int | None) -> list[Erased]:
        if blank not in (None, "zero", "mean", "blur"):
            raise InputError(
                f'there is no filling "{blank}" for pixels; there are: zero, mean, blur.'
            )
        return [Erased(item, row, blank) for row in present]

    def key(self, form: Erased) -> bytes:
        return id(form.picture).to_bytes(8) + np.packbits(form.present).tobytes()

    def length(self, form: Erased) -> int:
        return len(form.present)

    def batch_shape(self, form: Erased) -> tuple[int, ...]:
        return tuple(form.picture.pixels.shape)

    def collate(self, forms: Sequence[Erased]) -> dict[str, Tensor]:
        layout = self.grid(forms[0].picture)[0]
        pixels = torch.stack([form.picture.pixels for form in forms])
        fill = torch.stack([self._filled(form) for form in forms])
        present = torch.from_numpy(np.stack([form.present for form in forms])).unsqueeze(-1)
        kept = layout.whole(present.expand(-1, -1, layout.features)).to(pixels.device)
        return {self.argument: torch.where(kept, pixels, fill)}

    def _filled(self, form: Erased) -> Tensor:
        """What stands in the place of what is not there, worked out once for each image."""
        asked = (form.picture, form.blank)
        if self._fill is None or self._fill[0] is not asked[0] or self._fill[1] != asked[1]:
            self._fill = (*asked, _filled(form.picture.pixels, form.blank))
        return self._fill[2]


def _filled(pixels: Tensor, blank: str | int | None) -> Tensor:
    """What erased pixels become: zero (the mean colour, once normalised), the mean, or a blur."""
    if blank == "mean":
        return pixels.mean((1, 2), keepdim=True).expand_as(pixels)
    return _blurred(pixels) if blank == "blur" else torch.zeros_like(pixels)


def _blurred(pixels: Tensor, share: float = 0.125) -> Tensor:
    """A Gaussian blur as wide as an eighth of the image."""
    sigma = max(1.0, share * min(pixels.shape[1:]))
    reach = int(3 * sigma)
    steps = torch.arange(-reach, reach + 1, device=pixels.device, dtype=pixels.dtype)
    weights = torch.exp(-(steps**2) / (2 * sigma**2))
    weights = weights / weights.sum()
    for axis in (1, 2):
        size = pixels.shape[axis]
        places = (torch.arange(size)[:, None] + steps.long().cpu()[None, :]).clamp(0, size - 1)
        gathered = pixels.index_select(axis, places.flatten().to(pixels.device))
        shape = (*pixels.shape[:axis], size, len(steps), *pixels.shape[axis + 1 :])
        lined = weights.reshape(1, *(1,) * (axis), -1, *(1,) * (2 - axis))
        pixels = (gathered.reshape(shape) * lined).sum(axis + 1)
    return pixels


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


def beside_texts(tokenizer: Any, texts: Sequence[str]) -> Forward:
    """Runs a model that holds images against texts, with these for its classes."""
    if tokenizer is None:
        raise InputError("texts to hold images against need a tokenizer: Explainer(model, …).")
    found = tokenizer(list(texts), return_tensors="pt", padding=True)
    names = [name for name in ("input_ids", "attention_mask") if name in found]

    def forward(model: nn.Module, tensors: Mapping[str, Tensor]) -> Any:
        device = tensors["pixel_values"].device
        return model(**tensors, **{name: found[name].to(device) for name in names})

    return forward
