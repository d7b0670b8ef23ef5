"""The evaluation protocols, one model call at a time, straight from their definitions."""

import itertools
import math

import numpy as np
import torch


def outputs(model, ids):
    """The logits of one sequence."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([list(ids)])).logits[0].double().numpy()


def chance(logits, index):
    """The softmax probability of one class."""
    powers = [math.exp(value - max(logits)) for value in logits]
    return powers[index] / sum(powers)


def trapezoid(values):
    """The area under values at even steps from 0 to 1."""
    step = 1 / (len(values) - 1)
    return sum(step * (a + b) / 2 for a, b in itertools.pairwise(values))


def auac(model, ids, scores, index, blank):
    """Put tokens back by descending score; the area under the class's probability."""
    order = sorted(range(len(ids)), key=lambda i: -scores[i])
    curve = []
    for tenth in range(11):
        held = set(order[: math.ceil(tenth * len(ids) / 10)])
        curve.append(
            chance(outputs(model, [t if i in held else blank for i, t in enumerate(ids)]), index)
        )
    return trapezoid(curve), curve


def au_mse(model, ids, scores, blank):
    """Take tokens away by ascending absolute score; the area under the logits' squared change."""
    order = sorted(range(len(ids)), key=lambda i: abs(scores[i]))
    whole = outputs(model, ids)
    curve = []
    for tenth in range(11):
        gone = set(order[: math.ceil(tenth * len(ids) / 10)])
        now = outputs(model, [blank if i in gone else t for i, t in enumerate(ids)])
        curve.append(float(((whole - now) ** 2).sum()))
    return trapezoid(curve), curve


def to_flip(model, ids, scores, blank):
    """The share of tokens taken away, best first, before the decision changes."""
    order = sorted(range(len(ids)), key=lambda i: -scores[i])
    first = outputs(model, ids).argmax()
    for count in range(1, len(ids) + 1):
        gone = set(order[:count])
        now = outputs(model, [blank if i in gone else t for i, t in enumerate(ids)])
        if now.argmax() != first:
            return count / len(ids)
    return 1.0


def rank_correlation(a, b):
    """Pearson's correlation of mean ranks."""

    def ranks(values):
        return np.array(
            [
                np.mean([v < x for v in values]) + np.mean([v == x for v in values]) / 2
                for x in values
            ]
        )

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])
