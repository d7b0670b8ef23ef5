"""What programs get of an answer: a record of each sentence with its passages, and warnings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from wherefrom.answers.answer import Answer

IMPROBABLE = 0.1
"""Below this mean probability of its tokens, an answer is called improbable."""


def sentence_records(
    answer: Answer, ids: Mapping[str, str] | None = None, first: int = 0, last: int | None = None
) -> list[dict[str, Any]]:
    """The sentences `first` to `last` − 1 with their passages, the most relevant first.

    `ids` are the caller's names of passages; `start` and `end` count characters of the answer.
    """
    passages = {part.name: part.title for part in answer.parts if part.kind == "passage"}
    return [
        {
            "text": sentence.text,
            "start": sentence.start,
            "end": sentence.end,
            "passages": [
                {
                    "passage": source.name,
                    "id": (ids or {}).get(source.name),
                    "title": passages[source.name],
                    "share": source.share,
                    "relevance": source.relevance,
                }
                for source in answer.sources("passage", sentence)
                if source.name in passages
            ],
        }
        for sentence in answer.sentences()[first:last]
    ]


def answer_record(answer: Answer, ids: Mapping[str, str] | None = None) -> dict[str, Any]:
    """An answer that came from elsewhere: its sentences, its probability, and warnings."""
    doubt = improbable(answer)
    return {
        "text": answer.text,
        "sentences": sentence_records(answer, ids),
        "probability": probability(answer),
        "warnings": [] if doubt is None else [doubt],
    }


def probability(answer: Answer) -> float:
    """The geometric mean of the probabilities of the answer's tokens."""
    return math.exp(float(answer.measured.log_probabilities.mean()))


def improbable(answer: Answer) -> str | None:
    """A warning if the model would hardly have given this answer; else None."""
    mean = probability(answer)
    if mean >= IMPROBABLE:
        return None
    others = sum(token.probability < token.other_probability for token in answer.tokens)
    return (
        f"{answer.model} finds this answer improbable: its tokens have a probability of {mean:.2g} "
        f"(geometric mean), and {others} of {len(answer)} are not the most likely ones. The "
        "passages are what this model would take the answer from, not the model that wrote it."
    )
