"""Verdicts: whether a passage supports a sentence of an answer, with a calibrated probability."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wherefrom.answers.sources import Support, cited, passages_of, ranked

if TYPE_CHECKING:
    from wherefrom.answers.answer import Answer
    from wherefrom.answers.multi_hop import Values

LEFT_OUT = 2
"""The passages that are left out, one at a time: the first by relevance."""
Kind = Literal["supported", "unsupported", "unclear", "from the model"]
FITTED = Path(__file__).with_name("verdicts.json")


@dataclass(frozen=True)
class Verdict:
    """Whether a passage supports a sentence: `probability` is that of "supported".

    `passages` are the cited ones: without them the log-probability of the sentence drops enough.
    `untrusted` is the share of passages that are marked as untrusted, of all relevance.
    """

    sentence: str
    start: int
    end: int
    verdict: Kind
    passages: tuple[Support, ...]
    probability: float
    signals: Mapping[str, float]
    untrusted: float = 0.0

    @property
    def is_from_untrusted(self) -> bool:
        """Whether untrusted passages have a large share."""
        return self.untrusted >= float(fitted()["untrusted from"])

    def __str__(self) -> str:
        names = " and ".join(support.passage for support in self.passages)
        said = {
            "supported": f"supported by {names or 'the passages together'}",
            "unsupported": "not supported by a passage",
            "unclear": "unclear whether a passage supports it",
            "from the model": "not supported by a passage: the model writes it without them, too",
        }[self.verdict]
        flag = f"; {self.untrusted:.0%} from untrusted passages" if self.is_from_untrusted else ""
        return f"{said} (probability of support {self.probability:.2f}){flag}"


def signals(
    log_probabilities: Values,
    added: Values,
    drops: Mapping[str, Values],
    shares: Mapping[str, float],
) -> dict[str, float]:
    """The signals of a sentence.

    `added`: how far the log-probability of each token drops without any passage; `drops`: without
    each of the passages that were left out. `shares`: of the relevance, by passage.
    """
    first = max(shares, key=lambda name: shares[name])
    sums = {name: float(drop.sum()) for name, drop in drops.items()}
    decisive = max(sums, key=lambda name: sums[name])
    context = float(added.sum())
    weights = added.clip(0) + 1e-9
    return {
        "log-probability": float(log_probabilities.mean()),
        "least likely token": float(log_probabilities.min()),
        "where passages count": float((log_probabilities * weights).sum() / weights.sum()),
        "context": _flat(context),
        "drop": _flat(sums[decisive]),
        "drop of a token": _flat(float(drops[decisive].max())),
        "drop / context": min(max(sums[decisive] / max(context, 1.0), 0.0), 1.0),
        "share": shares[first],
        "agreement": float(first == decisive),
    }


def _flat(nats: float) -> float:
    """log(1 + |x|) with the sign of x: a drop of 20 tells little more than one of 10."""
    return math.copysign(math.log1p(abs(nats)), nats)


@cache
def fitted() -> dict[str, Any]:
    """The coefficients and cut-offs; benchmarks/answers/verdicts.py fits them."""
    model: dict[str, Any] = json.loads(FITTED.read_text(encoding="utf-8"))
    return model


def probability(found: Mapping[str, float]) -> float:
    """The probability that a passage supports a sentence with these signals."""
    model = fitted()
    total = model["intercept"] + sum(c * found[name] for name, c in model["coefficients"].items())
    return 1 / (1 + math.exp(-total))


def kind_of(probability: float, context: float, model: Mapping[str, Any] | None = None) -> Kind:
    """The verdict: an unsupported sentence to which the passages add little is the model's own.

    All are unclear while the probability is not shown to be better than those of the tokens.
    """
    model = fitted() if model is None else model
    if not model["gives verdicts"]:
        return "unclear"
    if probability >= model["supported from"]:
        return "supported"
    if probability > model["unsupported below"]:
        return "unclear"
    return "from the model" if context < model["own below"] else "unsupported"


def verdicts(answer: Answer) -> list[Verdict]:
    """A verdict for each sentence of an answer."""
    found = []
    names = [part.name for part in passages_of(answer)]
    untrusted = {part.name for part in answer.parts if not part.trusted}
    added = answer.drop(*names)
    model = fitted()
    by_probability = answer.explaining("logprob")
    for citation in cited(answer, check=False, multi_hop=False):
        span = citation.sentence
        where = slice(span.first, span.last)
        ranking = ranked(by_probability, "passage", by_probability.row(span))
        shares = {source.name: source.share for source in ranking if source.name in names}
        drops = {name: answer.drop(name)[where] for name in list(shares)[:LEFT_OUT]}
        logs = answer.measured.log_probabilities[where]
        values = signals(logs, added[where], drops, shares)
        chance = probability(values)
        found.append(
            Verdict(
                span.text,
                span.start,
                span.end,
                kind_of(chance, values["context"]),
                tuple(
                    replace(support, drop=float(drops[support.passage].sum()))
                    for support in citation.supports
                    if support.passage in drops
                    and drops[support.passage].sum() >= model["cited from"]
                ),
                chance,
                values,
                sum(max(share, 0.0) for name, share in shares.items() if name in untrusted),
            )
        )
    return found
