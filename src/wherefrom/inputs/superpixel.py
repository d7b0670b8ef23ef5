"""Images as graphs of superpixels, by SLIC (Achanta et al. 2012) of scikit-image."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wherefrom.errors import InputError, MissingExtra, TooLong
from wherefrom.inputs.graph import Graph

COMPACTNESS = 0.25  # n = 75 gives close to 75 regions on images of 28 × 28
WAVES = 6
MOST_PIXELS = 1 << 20


def superpixels(image: ArrayLike, n: int = 75, nearest: int | None = None) -> Graph:
    """About `n` regions with their mean intensity and position as node features.

    A position is the centre (across, down) in [0, 1] and the sines and cosines of its multiples
    by π: from the two coordinates alone, a linear layer cannot distinguish positions.

    SLIC chooses the exact number. Regions are joined where they touch, or each to its `nearest`
    others if that number is set.
    """
    pixels = np.asarray(image)
    if pixels.ndim not in (2, 3) or min(pixels.shape[:2], default=0) < 2:
        raise InputError(
            "an image must have the shape (height, width) or (height, width, channels), "
            f"got shape {pixels.shape}."
        )
    height, width = pixels.shape[:2]
    if height * width > MOST_PIXELS:
        raise TooLong(
            f"an image of {height} × {width} is too large for superpixels: at most "
            f"{MOST_PIXELS:,} pixels are split. Make it smaller."
        )
    scale = 255.0 if pixels.dtype == np.uint8 else 1.0
    values = pixels.reshape(*pixels.shape[:2], -1) / scale
    if not np.isfinite(values).all() or values.min() < 0 or values.max() > 1:
        raise InputError("an image must have uint8 values, or values from 0 to 1.")
    return of_regions(values, segment(values, n), nearest, pixels)


def segment(values: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """The region index of each pixel of an image (height, width, channels)."""
    try:
        from skimage.segmentation import slic
    except ImportError as error:
        raise MissingExtra("scikit-image", "graph", "superpixels") from error
    colour = values.shape[2] == 3
    regions = slic(
        values if values.shape[2] > 1 else values[..., 0],
        n_segments=n,
        compactness=COMPACTNESS * (100 if colour else 1),  # Lab lightness goes to 100
        channel_axis=-1 if values.shape[2] > 1 else None,
        start_label=0,
    )
    return np.unique(regions, return_inverse=True)[1].reshape(regions.shape)


def of_regions(
    values: NDArray[np.float64],
    regions: NDArray[np.int64],
    nearest: int | None = None,
    image: NDArray[np.generic] | None = None,
) -> Graph:
    """The graph of an image that is already split into regions."""
    height, width, channels = values.shape
    flat, count = regions.reshape(-1), int(regions.max()) + 1
    size = np.bincount(flat, minlength=count)
    down, across = (np.indices((height, width)).reshape(2, -1) + 0.5) / [[height], [width]]
    columns = [*values.reshape(-1, channels).T, across, down]
    x = np.stack([np.bincount(flat, column, count) / size for column in columns], axis=1)
    centres = x[:, -2:]
    return Graph(
        np.concatenate([x, waves(centres)], axis=1).astype(np.float32),
        _touching(regions) if nearest is None else _nearest(centres, nearest),
        positions=centres.astype(np.float32),
        source=image,
        regions=regions,
    )


def waves(centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """sin kπc and cos kπc of each coordinate c, (nodes, 2), for k up to `WAVES`."""
    angles = np.pi * np.arange(1, WAVES + 1)[:, None] * centres[:, None, :]
    both = np.stack([np.sin(angles), np.cos(angles)], axis=2)  # (nodes, waves, 2, coordinates)
    return both.reshape(len(centres), -1)


def _touching(regions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pairs of regions with adjacent pixels."""
    across = np.stack([regions[:, :-1], regions[:, 1:]], axis=-1).reshape(-1, 2)
    down = np.stack([regions[:-1], regions[1:]], axis=-1).reshape(-1, 2)
    pairs = np.concatenate([across, down])
    borders: NDArray[np.int64] = pairs[pairs[:, 0] != pairs[:, 1]]
    return borders


def _nearest(centres: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """Pairs of each region with the `k` regions whose centres are nearest."""
    distances = np.linalg.norm(centres[:, None] - centres[None], axis=-1)
    np.fill_diagonal(distances, np.inf)
    near = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.stack([np.repeat(np.arange(len(near)), near.shape[1]), near.ravel()], axis=1)
