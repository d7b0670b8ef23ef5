"""Segmentation scores: how well the heatmap of an image explanation matches a mask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from wherefrom.core.explanation import Explanation
from wherefrom.errors import InputError
from wherefrom.evaluation.metrics import Floats


@dataclass(frozen=True)
class Pointing:
    """How well the heatmap of an explanation matches a mask.

    The foreground of the heatmap is where it exceeds its mean (Chefer et al. 2021); mean average
    precision ranks the pixels by the heatmap, once for foreground and once for background.
    """

    accuracy: float
    mean_iou: float
    mean_precision: float
    pointed: bool  # whether the largest value is in the mask


def pixel_map(explanation: Explanation, smooth: bool = True) -> Floats:
    """The scores as a heatmap over all pixels: bilinear between patches, or constant on each."""
    scene = explanation.scene or {}
    if scene.get("kind") != "image" or any(unit.box is None for unit in explanation.units):
        raise InputError("a heatmap over pixels needs the explanation of an image.")
    boxes = np.array([unit.box for unit in explanation.units])
    tops, rows = np.unique(boxes[:, 1], return_inverse=True)
    lefts, columns = np.unique(boxes[:, 0], return_inverse=True)
    grid = np.zeros((len(tops), len(lefts)))
    grid[rows, columns] = explanation.scores
    size = (scene["height"], scene["width"])
    if smooth:
        heatmap: Floats = interpolate(torch.from_numpy(grid)[None, None], size, mode="bilinear")[
            0, 0
        ].numpy()
        return heatmap
    blocks = np.zeros(size)
    for (left, top, right, bottom), score in zip(boxes, explanation.scores, strict=True):
        blocks[top:bottom, left:right] = score
    return blocks


def pointing(explanation: Explanation, mask: NDArray[np.bool_], smooth: bool = True) -> Pointing:
    """Pixel accuracy, mean IoU, mean average precision and the pointing game against a mask."""
    heatmap = pixel_map(explanation, smooth)
    truth = np.asarray(mask, dtype=bool)
    if truth.shape != heatmap.shape:
        raise InputError(f"the mask has {truth.shape} pixels, the image {heatmap.shape}.")
    if truth.all() or not truth.any():
        raise InputError("the mask must cover part of the image, but not all of it.")
    foreground = heatmap > heatmap.mean()
    ious = [
        (foreground & truth).sum() / (foreground | truth).sum(),
        (~foreground & ~truth).sum() / (~foreground | ~truth).sum(),
    ]
    precisions = [average_precision(heatmap, truth), average_precision(-heatmap, ~truth)]
    return Pointing(
        accuracy=float((foreground == truth).mean()),
        mean_iou=float(np.mean(ious)),
        mean_precision=float(np.mean(precisions)),
        pointed=bool(truth.flat[int(heatmap.argmax())]),
    )


def average_precision(heatmap: Floats, truth: NDArray[np.bool_]) -> float:
    """Σ (recall step) · precision over descending thresholds; equal values share a threshold."""
    order = np.argsort(-heatmap, axis=None, kind="stable")
    values, hits = heatmap.flat[order], truth.flat[order]
    ends = np.append(np.nonzero(np.diff(values))[0], len(values) - 1)
    true_positives = np.cumsum(hits)[ends]
    precision = true_positives / (ends + 1)
    recall = true_positives / hits.sum()
    return float((np.diff(recall, prepend=0.0) * precision).sum())
