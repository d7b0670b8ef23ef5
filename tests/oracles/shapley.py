"""Shapley values by their formula over all subsets, one model call for each subset."""

import itertools
import math


def by_subsets(value, players):
    """Σ over the subsets S without i of |S|! (n − |S| − 1)! / n! · (v(S ∪ i) − v(S)).

    `value` takes a set of the numbers of players and returns a float.
    """
    everyone = frozenset(range(players))
    known = {
        frozenset(subset): float(value(frozenset(subset)))
        for size in range(players + 1)
        for subset in itertools.combinations(everyone, size)
    }
    return [
        sum(
            math.factorial(len(subset))
            * math.factorial(players - len(subset) - 1)
            / math.factorial(players)
            * (known[subset | {i}] - output)
            for subset, output in known.items()
            if i not in subset
        )
        for i in range(players)
    ]
