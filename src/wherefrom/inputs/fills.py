"""What pixels become when they are erased: zero, the mean colour, or a blur."""

from __future__ import annotations

import torch
from torch import Tensor

FILLS = ("zero", "mean", "blur")


def filled(pixels: Tensor, fill: str) -> Tensor:
    """An image (C, H, W) without content: zero (the mean colour, once normalised), mean, blur."""
    if fill == "mean":
        return pixels.mean((1, 2), keepdim=True).expand_as(pixels)
    return _blurred(pixels) if fill == "blur" else torch.zeros_like(pixels)


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
        along = weights.reshape(1, *(1,) * (axis), -1, *(1,) * (2 - axis))
        pixels = (gathered.reshape(shape) * along).sum(axis + 1)
    return pixels
