"""The explanation of a span of an answer, from its row."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from wherefrom.answers.rows import Row, ledger
from wherefrom.answers.spans import Span
from wherefrom.core.explanation import RUNNERS_UP, Explanation, TargetInfo

if TYPE_CHECKING:
    from wherefrom.answers.answer import Answer


def explanation_of(answer: Answer, span: Span, row: Row) -> Explanation:
    """The explanation of a span's total, over the prompt and the tokens before the span's last."""
    count = answer.start + span.last - 1
    units = answer.units[:count]
    attribution, images = answer.attribution, answer.images
    end = max(unit.end or 0 for unit in units)
    log_probability = float(answer.measured.log_probabilities[span.first : span.last].sum())
    return Explanation(
        units=units,
        scores=row.values[:count].astype(np.float32),
        target=_target(answer, span),
        output=row.output,
        probability=math.exp(log_probability),
        method=attribution.method.name,
        settings={**attribution.method.settings(), "of": answer.explained},
        label=attribution.method.short_label,
        ledger=ledger(row, units, answer.group),
        text=(attribution.prompt.lead + answer.text)[:end],
        scene={"kind": "images", "images": list(images)} if images else None,
        model=answer.model,
        versions=dict(answer.versions),
        warnings=row.warnings,
    )


def _target(answer: Answer, span: Span) -> TargetInfo:
    """What is explained of a span, by name."""
    tokens = answer.tokens[span.first : span.last]
    position = answer.attribution.place + span.first
    label = "".join(token.text for token in tokens)
    if answer.explained != "contrast":
        return TargetInfo(tokens[0].id, label, position=position)
    name = tokens[0].other if len(tokens) == 1 else RUNNERS_UP
    return TargetInfo(tokens[0].id, label, tokens[0].other_id, name, position)
