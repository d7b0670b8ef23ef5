"""Serrano & Smith's study of attention, over a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np

from wherefrom.methods.intercept import run
from wherefrom.studies.base import Group, Record, Rows, Study
from wherefrom.studies.erasing import (
    Single,
    attention_rankings,
    chance_of,
    flip_table,
    fraction_to_flip,
    single_weights,
)

_PLACES = 2048  # of the texts that are looked at together


class AttentionErasure(Study):
    """Whether attention weights of the last layer are reasons (Serrano & Smith 2019).

    The highest weight against a random one, and the share of weights erased before the decision
    flips, ranked by chance, by attention, by its gradient, by their product and by each method.
    The latter for texts whose class explained is the one decided: a ranking of reasons for
    another class has no reason to flip it.
    """

    name = "attention_erasure"

    def records(self, group: Group, tick: Callable[[], None]) -> list[Record]:
        found: list[Record] = [{} for _ in range(len(group))]
        for samples in _of_one_length(group):
            for i, record in zip(samples, self._together(group, samples), strict=True):
                found[i] = record
            tick()
        return found

    def _together(self, group: Group, samples: list[int]) -> list[Record]:
        """The records of texts of one length, so that none is padded."""
        inputs, target = group.make(samples), group.asked(samples)
        rankings = attention_rankings(group.subject, inputs, target)
        rankings["random"] = np.stack(
            [chance_of(inputs, at, 1).random(inputs.mask.shape[1]) for at in range(len(samples))]
        )
        for name, explanations in group.found.items():
            if name != "random":
                rankings[name] = np.stack([explanations[i].scores for i in samples]).astype(float)
        likely = target.row(run(group.subject, inputs)).argmax(-1).tolist()
        asked = [group.target(i).index for i in samples]
        decided = [at for at in range(len(samples)) if likely[at] == asked[at]]
        rows = [(name, at) for name in rankings for at in decided]
        shares = fraction_to_flip(
            group.subject,
            inputs,
            [rankings[name][at] for name, at in rows],
            rows=[at for _, at in rows],
        )
        singles: list[Single] = single_weights(group.subject, inputs, target)
        records: list[Record] = [
            {"single": asdict(singles[at]) if singles else None, "to_flip": {}}
            for at in range(len(samples))
        ]
        for (name, at), share in zip(rows, shares, strict=True):
            records[at]["to_flip"][name] = share
        return records

    def summary(self, records: Sequence[Record]) -> Record:
        singles = _singles(records)
        return {
            "samples": len(records),
            "flips": flip_table(singles),
            # where the larger weight matters more, its erasure changes the output more
            "highest_changes_more": sum(s.delta_js > 0 for s in singles) / max(1, len(singles)),
            "to_flip": {
                name: {
                    "mean": float(np.mean(shares)),
                    "median": float(np.median(shares)),
                    "flipped": float(np.mean(np.array(shares) < 1)),
                    "samples": len(shares),
                }
                for name, shares in to_flip(records).items()
            },
        }

    def tables(self, records: Sequence[Record]) -> dict[str, Rows]:
        flips: Rows = [
            {"flipped by": name, "share": share}
            for name, share in flip_table(_singles(records)).items()
        ]
        return {
            "attention_erasure_weights": [asdict(each) for each in _singles(records)],
            "attention_erasure_flips": flips,
            "attention_erasure_to_flip": [
                {"ranking": name, "sample": at, "share": share}
                for name, shares in to_flip(records).items()
                for at, share in enumerate(shares)
            ],
        }


def to_flip(records: Sequence[Record]) -> dict[str, list[float]]:
    """The shares erased before a flip, by ranking."""
    names = dict.fromkeys(name for record in records for name in record["to_flip"])
    return {name: [r["to_flip"][name] for r in records if name in r["to_flip"]] for name in names}


def _singles(records: Sequence[Record]) -> list[Single]:
    return [Single(**record["single"]) for record in records if record["single"] is not None]


def _of_one_length(group: Group) -> list[list[int]]:
    by_length: dict[int, list[int]] = {}
    for i in range(len(group)):
        by_length.setdefault(group.length(i), []).append(i)
    return [
        samples[at : at + max(1, _PLACES // length)]
        for length, samples in sorted(by_length.items())
        for at in range(0, len(samples), max(1, _PLACES // length))
    ]
