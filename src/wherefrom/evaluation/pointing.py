"""Whether an explanation of an image points at what a mask shows: segmentation scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from wherefrom.errors import InputError
from wherefrom.explanation import Explanation

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pointing:
    """How well the map of an explanation finds the pixels of a mask.

    The foreground of the map is where it exceeds its mean (Chefer et al. 2021); mean average
    precision ranks the pixels by the map, once for foreground and once for background.
    """

    accuracy: float
    mean_iou: float
    mean_precision: float
    pointed: bool  # whether the largest value lies in the mask


def pixel_map(explanation: Explanation, smooth: bool = True) -> Floats:
    """The scores as a map over all pixels: between patches bilinear, or constant on each."""
    scene = explanation.scene or {}
    if scene.get("kind") != "image" or any(unit.box is None for unit in explanation.units):
        raise InputError("a map over pixels is for explanations of images.")
    boxes = np.array([unit.box for unit in explanation.units])
    tops, rows = np.unique(boxes[:, 1], return_inverse=True)
    lefts, columns = np.unique(boxes[:, 0], return_inverse=True)
    grid = np.zeros((len(tops), len(lefts)))
    grid[rows, columns] = explanation.scores
    size = (scene["height"], scene["width"])
    if smooth:
        spread = interpolate(torch.from_numpy(grid)[None, None], size, mode="bilinear")
        found: Floats = spread[0, 0].numpy()
        return found
    whole = np.zeros(size)
    for (left, top, right, bottom), score in zip(boxes, explanation.scores, strict=True):
        whole[top:bottom, left:right] = score
    return whole


def pointing(explanation: Explanation, mask: NDArray[np.bool_], smooth: bool = True) -> Pointing:
    """Pixel accuracy, mean IoU, mean average precision and the pointing game against a mask."""
    heat = pixel_map(explanation, smooth)
    truth = np.asarray(mask, dtype=bool)
    if truth.shape != heat.shape:
        raise InputError(f"the mask has {truth.shape} pixels, the image {heat.shape}.")
    if truth.all() or not truth.any():
        raise InputError("the mask must hold some of the image, and not all of it.")
    said = heat > heat.mean()
    shares = [
        (said & truth).sum() / (said | truth).sum(),
        (~said & ~truth).sum() / (~said | ~truth).sum(),
    ]
    precisions = [average_precision(heat, truth), average_precision(-heat, ~truth)]
    return Pointing(
        accuracy=float((said == truth).mean()),
        mean_iou=float(np.mean(shares)),
        mean_precision=float(np.mean(precisions)),
        pointed=bool(truth.flat[int(heat.argmax())]),
    )


def average_precision(heat: Floats, truth: NDArray[np.bool_]) -> float:
    """Σ (recall step) · precision over falling thresholds; equal values count as one threshold."""
    order = np.argsort(-heat, axis=None, kind="stable")
    values, hits = heat.flat[order], truth.flat[order]
    ends = np.append(np.nonzero(np.diff(values))[0], len(values) - 1)
    found = np.cumsum(hits)[ends]
    precision = found / (ends + 1)
    recall = found / hits.sum()
    return float((np.diff(recall, prepend=0.0) * precision).sum())
