"""A second, slow version of the statistics of a corpus: one text, one word, one draw at a time."""

import itertools
import math
from statistics import fmean, median

import numpy as np


def relevance_of(explanation, start, end):
    """The scores of all tokens that overlap a span."""
    return math.fsum(
        float(score)
        for unit, score in zip(explanation.units, explanation.scores, strict=True)
        if unit.start is not None and unit.start < end and unit.end > start
    )


def value_of_name(occurrences):
    """The median over texts of the mean in each, from pairs (text, relevance)."""
    texts = sorted({text for text, _ in occurrences})
    return median(fmean(v for text, v in occurrences if text == one) for one in texts)


def mann_whitney_exact(a, b):
    """The two-sided p-value by counting all divisions of the pooled values."""
    pooled = [*a, *b]

    def above(first):
        second = [v for i, v in enumerate(pooled) if i not in first]
        return sum((pooled[i] > v) + 0.5 * (pooled[i] == v) for i in first for v in second)

    middle = len(a) * len(b) / 2
    observed = abs(above(range(len(a))) - middle)
    ways = list(itertools.combinations(range(len(pooled)), len(a)))
    return sum(abs(above(way) - middle) >= observed - 1e-12 for way in ways) / len(ways)


def interval_of_medians(a, b, draws, seed):
    """The percentile interval of the difference of medians, names drawn with replacement."""
    chance = np.random.default_rng(seed)
    drawn_a = chance.integers(0, len(a), (draws, len(a)))
    drawn_b = chance.integers(0, len(b), (draws, len(b)))
    differences = [
        median([a[i] for i in first]) - median([b[i] for i in second])
        for first, second in zip(drawn_a.tolist(), drawn_b.tolist(), strict=True)
    ]
    return tuple(np.quantile(differences, [0.025, 0.975]).tolist())


def pearson(x, y):
    """The correlation, written out."""
    x, y = np.array(x, dtype=float), np.array(y, dtype=float)
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum()))


def word_statistics(texts, min_count, predicted=None, only=None):
    """For each word in at least `min_count` texts: occurrences, texts, mean, total, Σ |·|, share.

    A text is a list of pairs (word, relevance); with `only`, those predicted as this class count.
    """
    if only is not None:
        texts = [text for text, index in zip(texts, predicted, strict=True) if index == only]
    table = {}
    for word in {word for text in texts for word, _ in text}:
        values = [value for text in texts for other, value in text if other == word]
        inside = sum(any(other == word for other, _ in text) for text in texts)
        if inside >= min_count:
            positive = sum(value > 0 for value in values) / len(values)
            total, impact = math.fsum(values), math.fsum(map(abs, values))
            table[word] = (len(values), inside, total / len(values), total, impact, positive)
    return table


def misleading_words(texts, labels, predicted, target, against):
    """Σ relevance for the wrong class, texts, and texts in which the word has the most of it.

    Relevance speaks for `target` and against `against`, and says nothing about a third class.
    """
    table = {}
    for text, label, index in zip(texts, labels, predicted, strict=True):
        if label is None or label == index or index not in (target, against):
            continue
        sign = 1 if index == target else -1
        strongest = max(sign * value for _, value in text)
        for word in {word for word, value in text if sign * value > 0}:
            values = [sign * value for other, value in text if other == word]
            total, inside, first = table.get(word, (0.0, 0, 0))
            total += math.fsum(value for value in values if value > 0)
            table[word] = (total, inside + 1, first + (max(values) == strongest))
    return table


def contextual_words(texts, min_count):
    """Σ above zero, Σ below zero, weaker / stronger, weaker / occurrences of mixed words."""
    table = {}
    for word in word_statistics(texts, min_count):
        values = [value for text in texts for other, value in text if other == word]
        above = math.fsum(value for value in values if value > 0)
        below = math.fsum(value for value in values if value < 0)
        if above and below:
            weaker, stronger = min(above, -below), max(above, -below)
            table[word] = (above, below, weaker / stronger, weaker / len(values))
    return table
