"""The evaluation protocols, one model call at a time, straight from their definitions."""

import itertools
import math
import random

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
        present = set(order[: math.ceil(tenth * len(ids) / 10)])
        curve.append(
            chance(outputs(model, [t if i in present else blank for i, t in enumerate(ids)]), index)
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


def erased_outputs(model, ids, gone):
    """Logits of a one-sequence BERT whose last block pays no attention to some places.

    Every step of the last block is written out; heads are looped over; what is left of a row of
    attention is divided by its sum.
    """
    with torch.no_grad():
        states = model.bert(input_ids=torch.tensor([list(ids)]), output_hidden_states=True)
        x = states.hidden_states[-2][0]
        block = model.bert.encoder.layer[-1]
        attention = block.attention.self
        size = attention.attention_head_size
        parts = []
        for head in range(attention.num_attention_heads):
            at = slice(head * size, (head + 1) * size)
            q, k, v = (f(x)[:, at] for f in (attention.query, attention.key, attention.value))
            weights = (q @ k.T / math.sqrt(size)).exp()
            weights = weights / weights.sum(1, keepdim=True)
            for place in gone:
                weights[:, place] = 0
            for row in weights:
                if row.sum() > 0:
                    row /= row.sum()
            parts.append(weights @ v)
        mixed = block.attention.output(torch.cat(parts, 1), x)
        out = block.output(block.intermediate(mixed), mixed)
        return model.classifier(model.bert.pooler(out[None]))[0].double().numpy()


def attention_to_flip(model, ids, scores):
    """The share of the last block's attention erased, best first, before the decision changes."""
    order = sorted(range(len(ids)), key=lambda i: -scores[i])
    first = erased_outputs(model, ids, []).argmax()
    for count in range(1, len(ids) + 1):
        if erased_outputs(model, ids, order[:count]).argmax() != first:
            return count / len(ids)
    return 1.0


def js(p, q):
    """Jensen and Shannon's divergence, from entropies."""

    def entropy(values):
        return -sum(v * math.log(v) for v in values if v > 0)

    return entropy([(a + b) / 2 for a, b in zip(p, q, strict=True)]) - (entropy(p) + entropy(q)) / 2


def line(pairs):
    """Slope and R² of a least-squares line, and R² to the diagonal, of (total, output)."""
    totals, outputs = np.array(pairs).T
    slope, start = np.polyfit(outputs, totals, 1)
    left = totals - (slope * outputs + start)
    fitted = 1 - left @ left / ((totals - totals.mean()) @ (totals - totals.mean()))
    away = totals - outputs
    return (
        slope,
        fitted,
        1 - away @ away / ((outputs - outputs.mean()) @ (outputs - outputs.mean())),
    )


# Images: one unit is a box (left, top, right, bottom) of pixels.


def image_probabilities(model, image):
    """The softmax probabilities of one image, (C, H, W)."""
    with torch.no_grad():
        logits = model(pixel_values=image[None]).logits[0].double().tolist()
    return [chance(logits, index) for index in range(len(logits))]


def replaced(image, fill, boxes, units):
    """The image with the pixels of some units taken from another one."""
    out = image.clone()
    for unit in units:
        left, top, right, bottom = boxes[unit]
        for row in range(top, bottom):
            for column in range(left, right):
                out[:, row, column] = fill[:, row, column]
    return out


def normalised_area(curve):
    """The area as the authors of RISE compute it: all points, the ends by half, over the steps."""
    return (sum(curve) - curve[0] / 2 - curve[-1] / 2) / (len(curve) - 1)


def insertion(model, image, fill, boxes, scores, index):
    """Petsiuk et al. 2018: from the filling to the image, the highest scores first."""
    order = sorted(range(len(boxes)), key=lambda i: -scores[i])
    curve = []
    for tenth in range(11):
        inserted = order[: math.ceil(tenth * len(boxes) / 10)]
        curve.append(image_probabilities(model, replaced(fill, image, boxes, inserted))[index])
    return normalised_area(curve), curve


def deletion(model, image, fill, boxes, scores, index):
    """Petsiuk et al. 2018: from the image to the filling, the highest scores first."""
    order = sorted(range(len(boxes)), key=lambda i: -scores[i])
    curve = []
    for tenth in range(11):
        deleted = order[: math.ceil(tenth * len(boxes) / 10)]
        curve.append(image_probabilities(model, replaced(image, fill, boxes, deleted))[index])
    return normalised_area(curve), curve


def perturbation(model, image, fill, boxes, scores, index, positive, accuracy):
    """Chefer et al. 2021: 10 to 90 % erased, from the highest score (positive) or the lowest.

    The mean height, over these shares, of the class's probability, or of whether it is predicted.
    """
    order = sorted(range(len(boxes)), key=lambda i: -scores[i] if positive else scores[i])
    curve = []
    for share in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        erased = order[: math.ceil(round(share * len(boxes), 6))]
        odds = image_probabilities(model, replaced(image, fill, boxes, erased))
        curve.append(float(odds.index(max(odds)) == index) if accuracy else odds[index])
    return normalised_area(curve)


def resampled_interval(values, resamples, seed):
    """The 2.5 % and 97.5 % points of the means of resamples, one draw at a time."""
    chance_of = random.Random(seed)
    means = sorted(
        sum(chance_of.choice(values) for _ in values) / len(values) for _ in range(resamples)
    )
    return means[round(0.025 * resamples)], means[round(0.975 * resamples) - 1]


def shapley(value, units):
    """The definition: the mean gain of each unit over all orders; `value` takes a set of units."""
    known = {}

    def output(present):
        if present not in known:
            known[present] = float(value(present))
        return known[present]

    gains = [0.0] * units
    orders = list(itertools.permutations(range(units)))
    for order in orders:
        for step, unit in enumerate(order):
            before = frozenset(order[:step])
            gains[unit] += (output(before | {unit}) - output(before)) / len(orders)
    return gains
