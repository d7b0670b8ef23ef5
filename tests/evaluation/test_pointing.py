"""Segmentation scores against loops over pixels and thresholds."""

import numpy as np
import pytest

from wherefrom.errors import InputError
from wherefrom.evaluation.pointing import average_precision, pixel_map, pointing
from wherefrom.explanation import Explanation, TargetInfo, Unit


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


def slow_precision(heat, truth):
    total, before = 0.0, 0.0
    for threshold in sorted(set(heat.ravel().tolist()), reverse=True):
        said = heat >= threshold
        recall = (said & truth).sum() / truth.sum()
        total += (recall - before) * (said & truth).sum() / said.sum()
        before = recall
    return total


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_is_the_sum_over_thresholds(ties):
    chance = np.random.default_rng(3)
    heat = chance.normal(size=(6, 5))
    heat = heat.round(0) if ties else heat
    truth = chance.random((6, 5)) < 0.4
    np.testing.assert_allclose(average_precision(heat, truth), slow_precision(heat, truth))


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
    heat = np.kron(scores.astype(np.float32), np.ones((2, 2)))
    np.testing.assert_allclose(pixel_map(explained(scores), smooth=False), heat)
    found = pointing(explained(scores), mask, smooth=False)
    said = heat > heat.mean()
    same = sum(bool(said[i, j]) == bool(mask[i, j]) for i in range(6) for j in range(8))
    assert found.accuracy == pytest.approx(same / 48)
    shares = []
    for kind in (True, False):
        both = sum(said[i, j] == kind == mask[i, j] for i in range(6) for j in range(8))
        either = sum(kind in (said[i, j], mask[i, j]) for i in range(6) for j in range(8))
        shares.append(both / either)
    assert found.mean_iou == pytest.approx(np.mean(shares))
    two = [slow_precision(heat, mask), slow_precision(-heat, ~mask)]
    assert found.mean_precision == pytest.approx(np.mean(two))


def test_a_smooth_map_keeps_its_size_and_lies_between():
    heat = pixel_map(explained([[0.0, 1.0], [0.0, 1.0]], size=4))
    assert heat.shape == (8, 8)
    assert (np.diff(heat, axis=1) >= 0).all()
    assert (heat.min(), heat.max()) == (0, 1)


@pytest.mark.parametrize(
    ("mask", "words"),
    [(np.ones((2, 2), bool), "the mask has"), (np.ones((4, 4), bool), "not all of it")],
)
def test_a_mask_of_no_use_is_refused(mask, words):
    with pytest.raises(InputError, match=words):
        pointing(explained([[1, 2], [3, 4]]), mask)
