"""Finds the patches of an image by running the model, whatever its architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wherefrom.core.runner import Layout, ModelRunner
from wherefrom.core.scope import restores_state
from wherefrom.errors import InputError, ModelError, first_line
from wherefrom.tracing.catalogue import Kind, TorchCall
from wherefrom.tracing.tags import Tag, set_tag, tag_of
from wherefrom.tracing.tracer import CallMode

EXTRA_TOKENS = 16  # class tokens and registers: at most this many queries are not patches
_IMAGE_TAG = Tag(stream=0)
_PRODUCTS = (Kind.LINEAR, Kind.CONTRACTION, Kind.ADDED_CONTRACTION, Kind.EINSUM)


class _AttentionReached(Exception):
    """Ends the forward pass: the first attention call was reached."""


class _Watch(CallMode):
    """Records how the image is processed up to the first attention, and may end the pass there.

    `grids` are the output sizes of the convolutions. `rows` is the first matrix after them that is
    multiplied with weights: its rows are the patches in the model's order.
    """

    def __init__(self, stops: bool = False) -> None:
        super().__init__()
        self.stops = stops
        self.grids: list[tuple[int, int]] = []
        self.rows: Tensor | None = None
        self.queries: int | None = None

    def on_call(self, call: TorchCall) -> Any:
        out, kind = call.run(), call.kind
        image = next((t for t in call.tensors() if tag_of(t) is _IMAGE_TAG), None)
        if self.queries is not None or image is None:
            return out
        # the output depends on the image too; x[i] = y returns None
        set_tag(call.args[0] if out is None else out, _IMAGE_TAG)
        if kind is Kind.BATCH_NORM:  # its backward pass is wrong for channels-last gradients
            out.grad_fn.register_prehook(lambda grads: (grads[0].contiguous(), *grads[1:]))
        elif kind is Kind.CONVOLUTION and call.name == "conv2d" and out.ndim == 4:
            self.grids.append((out.shape[2], out.shape[3]))
            self.rows = None
        elif kind in _PRODUCTS and self.rows is None and image.ndim >= 2:
            self.rows = image
        elif kind is Kind.MULTI_HEAD:  # the sequence axis comes first
            self.rows = image.transpose(0, 1) if self.rows is None else self.rows
            self.queries = image.shape[0]
        elif kind is Kind.ATTENTION or (kind is Kind.SOFTMAX and image.ndim >= 3):
            self.queries = image.shape[-2]
        if self.stops and self.queries is not None:
            raise _AttentionReached
        return out


def try_image(
    runner: ModelRunner, name: str, pixels: Tensor, others: Mapping[str, Tensor] | None = None
) -> None:
    """Runs the model on images (…, C, H, W); raises InputError if it does not take them."""
    try:
        runner.run({**(others or {}), name: pixels})
    except _AttentionReached:
        return
    except (RuntimeError, ValueError, TypeError, ModelError) as error:
        if (
            isinstance(error, ModelError) and error.__cause__ is None
        ):  # not caused by the forward pass
            raise
        reason = first_line(error.__cause__ or error)
        raise InputError(
            f"{runner.name} does not take an image of shape {tuple(pixels.shape[-3:])}: {reason}"
        ) from error


@restores_state
def find_patches(runner: ModelRunner, name: str, image: Tensor) -> Tensor:
    """The index of each pixel's patch, (H, W), for an image (C, H, W)."""
    return _patch_owners(runner, name, image.unsqueeze(0), {})


@restores_state
def find_layout(
    runner: ModelRunner, name: str, pixels: Tensor, others: Mapping[str, Tensor]
) -> Layout:
    """The layout of a tensor of images (…, C, H, W), or of rows, passed with other tensors.

    Each of rows (…, units, features) is a unit. All images are cut into the same patches.
    """
    if pixels.ndim < 4:
        count, features = pixels.numel() // pixels.shape[-1], pixels.shape[-1]
        places = torch.arange(pixels.numel())
        return Layout(tuple(pixels.shape), count, features, places, stacked=False)
    owners = _patch_owners(runner, name, pixels, others)
    one = layout_of(owners.expand(pixels.shape[-3:]))
    images = pixels.numel() // len(one.places)
    starts = torch.arange(images).unsqueeze(1) * one.units * one.features
    places = (starts + one.places).flatten()
    return Layout(tuple(pixels.shape), images * one.units, one.features, places, stacked=False)


def _patch_owners(
    runner: ModelRunner, name: str, images: Tensor, others: Mapping[str, Tensor]
) -> Tensor:
    """The index of each pixel's patch, (H, W), for images (…, C, H, W) of one size."""
    with runner.evaluating():
        pixels = images.detach().clone().requires_grad_()
        with _Watch(stops=bool(others)) as watch:
            try_image(runner, name, set_tag(pixels.clone(), _IMAGE_TAG), others)
        single = pixels.shape[:-3].numel() == 1
        owners = _owners(watch.rows, pixels) if watch.rows is not None and single else None
    height, width = images.shape[-2:]
    if watch.grids:
        grid = _chosen(watch.grids, watch.queries)
        # the rows may belong to another grid, to windows or to overlapping patches
        is_one_image = watch.rows is not None and len(watch.rows) == 1
        if owners is None or not is_one_image or int(owners.max()) + 1 != grid[0] * grid[1]:
            return cells(height, width, *grid)
        return owners
    if owners is None:
        raise ModelError(
            f"cannot find the patches of {runner.name}: no convolution of the image was seen, and "
            "no product with its rows.",
            'Set their size: units=16, or units="pixels".',
            command="Set their size: --units 16, or --units pixels.",
        )
    return owners


def _chosen(grids: Sequence[tuple[int, int]], queries: int | None) -> tuple[int, int]:
    """The last grid whose patches match the queries of attention, else the first grid."""
    fitting = [
        (rows, columns)
        for rows, columns in grids
        if queries is not None and 0 <= queries - rows * columns <= EXTRA_TOKENS
    ]
    return fitting[-1] if fitting else grids[0]


def cells(height: int, width: int, rows: int, columns: int) -> Tensor:
    """The cell of each pixel of an image cut into rows × columns, numbered row by row."""
    down = torch.arange(height) * rows // height
    right = torch.arange(width) * columns // width
    return down[:, None] * columns + right[None, :]


def _owners(rows: Tensor, pixels: Tensor) -> Tensor | None:
    """The row that each pixel enters, by the gradient of the numbered rows; None if several.

    Leading rows without pixels, such as a class token, do not count.
    """
    flat = rows.reshape(-1, rows.shape[-1])
    if len(flat) < 2:
        return None
    generator = torch.Generator().manual_seed(0)  # after a norm, a plain sum has no gradient
    weights = torch.randn(rows.shape[-1], generator=generator, dtype=torch.float64).to(flat)
    numbers = torch.arange(1, len(flat) + 1).to(flat)
    projected = flat @ weights
    plain, numbered = (
        torch.autograd.grad(total, pixels, retain_graph=True)[0].flatten(0, -4)[0]  # (C, H, W)
        for total in (projected.sum(), (projected * numbers).sum())
    )
    sizes = plain.abs().sum(0)
    read = sizes > 1e-6 * sizes.max()
    index = (numbered.abs().sum(0) / sizes.where(read, torch.ones_like(sizes))).round()
    gap = (numbered - plain * index).abs().sum(0)
    if not bool(read.any()) or bool((gap > 0.1 * sizes)[read].any()):
        return None
    # pixels beyond the last patch, which the model ignores, count as part of it
    down, right = (
        torch.arange(len(used)).clamp_max(int(used.nonzero().max()))
        for used in (read.any(1).cpu(), read.any(0).cpu())
    )
    owners = index.long().cpu()[down[:, None], right[None, :]]
    owners = owners - owners.min()
    is_complete = bool(read.cpu()[down[:, None], right[None, :]].all())
    return owners if is_complete and len(owners.unique()) == int(owners.max()) + 1 else None


def layout_of(owners: Tensor, cut: bool = True) -> Layout:
    """The layout of a tensor, from the unit that each of its values belongs to."""
    flat = owners.flatten()
    count = int(flat.max()) + 1
    sizes = torch.bincount(flat, minlength=count)
    most = int(sizes.max())
    order = flat.argsort(stable=True)
    starts = sizes.cumsum(0) - sizes
    rank = torch.empty_like(flat)  # the index of a value within its unit
    rank[order] = torch.arange(len(flat)) - starts[flat[order]]
    return Layout(tuple(owners.shape), count, most, flat * most + rank, cut)
