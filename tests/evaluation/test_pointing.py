"""Segmentation scores equal loops over pixels and thresholds."""

import numpy as np
import pytest

from wherefrom.core.explanation import Explanation, TargetInfo, Unit
from wherefrom.errors import InputError
from wherefrom.evaluation.pointing import average_precision, pixel_map, pointing


def explained(scores, size=2):
    rows, columns = np.shape(scores)
    units = tuple(
        Unit(f"{r},{c}", box=(c * size, r * size, (c + 1) * size, (r + 1) * size))
        for r in range(rows)
        for c in range(columns)
    )
    scene = {"kind": "image", "png": "", "width": columns * size, "height": rows * size}
    flat = np.array(scores, dtype=np.float32).ravel()
    return Explanation(units, flat, TargetInfo(0, "0"), 1.0, None, "lrp", scene=scene)


def slow_precision(heatmap, truth):
    total, before = 0.0, 0.0
    for threshold in sorted(set(heatmap.ravel().tolist()), reverse=True):
        foreground = heatmap >= threshold
        recall = (foreground & truth).sum() / truth.sum()
        total += (recall - before) * (foreground & truth).sum() / foreground.sum()
        before = recall
    return total


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_is_the_sum_over_thresholds(ties):
    chance = np.random.default_rng(3)
    heatmap = chance.normal(size=(6, 5))
    heatmap = heatmap.round(0) if ties else heatmap
    truth = chance.random((6, 5)) < 0.4
    np.testing.assert_allclose(average_precision(heatmap, truth), slow_precision(heatmap, truth))


def test_a_map_that_is_the_mask_is_perfect_and_its_inverse_the_worst():
    mask = np.zeros((6, 8), dtype=bool)
    mask[2:4, 4:8] = True
    scores = [[0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]]
    best = pointing(explained(scores), mask, smooth=False)
    assert (best.accuracy, best.mean_iou, best.mean_precision, best.pointed) == (1, 1, 1, True)
    worst = pointing(explained(-np.array(scores)), mask, smooth=False)
    assert (worst.accuracy, worst.mean_iou, worst.pointed) == (0, 0, False)


def test_scores_are_those_of_loops():
    chance = np.random.default_rng(5)
    scores = chance.normal(size=(3, 4))
    mask = chance.random((6, 8)) < 0.3
    heatmap = np.kron(scores.astype(np.float32), np.ones((2, 2)))
    np.testing.assert_allclose(pixel_map(explained(scores), smooth=False), heatmap)
    scores_of_mask = pointing(explained(scores), mask, smooth=False)
    foreground = heatmap > heatmap.mean()
    same = sum(bool(foreground[i, j]) == bool(mask[i, j]) for i in range(6) for j in range(8))
    assert scores_of_mask.accuracy == pytest.approx(same / 48)
    shares = []
    for kind in (True, False):
        both = sum(foreground[i, j] == kind == mask[i, j] for i in range(6) for j in range(8))
        either = sum(kind in (foreground[i, j], mask[i, j]) for i in range(6) for j in range(8))
        shares.append(both / either)
    assert scores_of_mask.mean_iou == pytest.approx(np.mean(shares))
    precisions = [slow_precision(heatmap, mask), slow_precision(-heatmap, ~mask)]
    assert scores_of_mask.mean_precision == pytest.approx(np.mean(precisions))


def test_a_smooth_map_keeps_its_size_and_lies_between():
    heatmap = pixel_map(explained([[0.0, 1.0], [0.0, 1.0]], size=4))
    assert heatmap.shape == (8, 8)
    assert (np.diff(heatmap, axis=1) >= 0).all()
    assert (heatmap.min(), heatmap.max()) == (0, 1)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.ones((2, 2), bool), "the mask has"),
        (np.ones((4, 4), bool), "not all of it"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask, words):
    with pytest.raises(InputError, match=words):
        pointing(explained([[1, 2], [3, 4]]), mask)
