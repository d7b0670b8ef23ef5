"""Finds the patches of an image by what the model does with it, not by what it is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from whence.errors import InputError, ModelError
from whence.subject import Layout, Subject

_EXTRA_TOKENS = 16  # class tokens, registers: a map has at most so many places beside the patches


class _Watch(TorchFunctionMode):
    """Notes what is made of the image until attention first looks at it.

    `grids` are the sizes of what convolutions gave, `rows` the first matrix whose rows are the
    patches of a model that cuts the image up itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.grids: list[tuple[int, int]] = []
        self.rows: Tensor | None = None
        self.queries: int | None = None

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        given = args[0] if args and isinstance(args[0], Tensor) else None
        if self.queries is not None or given is None or not given.requires_grad:
            return out
        if name == "conv2d" and out.ndim == 4:
            self.grids.append((out.shape[2], out.shape[3]))
        elif name == "linear" and not self.grids and self.rows is None and given.ndim >= 2:
            self.rows = given
        elif name == "scaled_dot_product_attention" or (name == "softmax" and given.ndim >= 3):
            self.queries = given.shape[-2]
        return out


def find_patches(subject: Subject, name: str, image: Tensor) -> Tensor:
    """The number of the patch that each pixel of an image (C, H, W) belongs to, (H, W)."""
    height, width = image.shape[1:]
    with subject.steady():
        pixels = image.detach().clone().unsqueeze(0).requires_grad_()
        watch = _Watch()
        try:
            with watch:
                subject.run({name: pixels * 1})
        except (RuntimeError, ValueError, TypeError) as error:
            raise InputError(
                f"{subject.name} does not take an image of shape {tuple(image.shape)}: {error}"
            ) from error
        if watch.grids:
            return cells(height, width, *_chosen(watch.grids, watch.queries))
        owners = None if watch.rows is None else _owners(watch.rows, pixels)
    if owners is None:
        raise ModelError(
            f"it was not seen where {subject.name} cuts an image into patches (no convolution of "
            "it, no product with rows of it). Say how large they are: units=16, or "
            'units="pixels".'
        )
    return owners


def _chosen(grids: Sequence[tuple[int, int]], queries: int | None) -> tuple[int, int]:
    """The last grid that attention sees place by place; else the first there was."""
    fitting = [
        (rows, columns)
        for rows, columns in grids
        if queries is not None and 0 <= queries - rows * columns <= _EXTRA_TOKENS
    ]
    return fitting[-1] if fitting else grids[0]


def cells(height: int, width: int, rows: int, columns: int) -> Tensor:
    """An image of so many pixels cut into so many cells, numbered row by row."""
    down = torch.arange(height) * rows // height
    right = torch.arange(width) * columns // width
    return down[:, None] * columns + right[None, :]


def _owners(rows: Tensor, pixels: Tensor) -> Tensor | None:
    """Which row each pixel went into, by the gradient of the numbered rows."""
    flat = rows.reshape(-1, rows.shape[-1])
    if len(flat) < 2:
        return None
    numbers = torch.arange(1, len(flat) + 1, dtype=rows.dtype, device=rows.device)
    each = flat.sum(1)
    (plain,) = torch.autograd.grad(each.sum(), pixels, retain_graph=True)
    (numbered,) = torch.autograd.grad((each * numbers).sum(), pixels)
    owner = (numbered / plain)[0].mean(0)  # (H, W): all channels of a pixel go the same way
    found = owner.round()
    exact = bool(torch.isfinite(owner).all()) and bool((owner - found).abs().max() < 1e-3)
    return found.long() - 1 if exact else None


def layout_of(owners: Tensor, channels: int) -> Layout:
    """The layout of an image whose pixels belong to these units: all channels of all pixels."""
    height, width = owners.shape
    flat = owners.flatten()
    count = int(flat.max()) + 1
    sizes = torch.bincount(flat, minlength=count)
    most = int(sizes.max())
    order = flat.argsort(stable=True)
    starts = sizes.cumsum(0) - sizes
    rank = torch.empty_like(flat)  # the number of a pixel within its unit
    rank[order] = torch.arange(len(flat)) - starts[flat[order]]
    pixel = flat * most * channels + rank
    places = (torch.arange(channels)[:, None] * most + pixel[None, :]).flatten()
    return Layout((channels, height, width), count, most * channels, places)
