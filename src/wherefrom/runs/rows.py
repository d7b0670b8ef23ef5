"""Explanations as rows of a table, with lists of plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.core.explanation import Explanation, Ledger, Line, TargetInfo, Unit

ResultRow = dict[str, Any]
# Lists of plain values, not of records: every engine and table format supports them.
TYPES = {
    "id": "string",
    "text": "string",
    "label": "string",  # the true class, if the data has one
    "target": "string",
    "target_index": "int",
    "against": "string",
    "against_index": "int",
    "output": "double",
    "probability": "double",
    "tokens": "list<string>",
    "token_starts": "list<int>",  # characters of the text; null for special tokens
    "token_ends": "list<int>",
    "token_special": "list<bool>",
    "token_words": "list<int>",
    "scores": "list<float>",  # one for each token
    "words": "list<string>",
    "word_starts": "list<int>",
    "word_ends": "list<int>",
    "word_scores": "list<float>",
    "ledger_labels": "list<string>",
    "ledger_kinds": "list<string>",
    "ledger_values": "list<double>",
    "warnings": "list<string>",
    "model": "string",
    "method": "string",
    "settings": "string",  # of the method, as JSON
    "versions": "string",  # as JSON
}
"""The columns of a result and their types."""
REJECTED = {"id": "string", "text": "string", "reason": "string"}
"""The columns of rejected rows."""
_SPARK = {"string": "string", "int": "bigint", "float": "float", "double": "double"}


def spark_schema() -> str:
    """The schema of `explain_frame` for Spark's `mapInPandas`.

    >>> spark_schema()[:59]
    'id string, text string, label string, target string, target'
    """
    return ", ".join(f"{name} {_spark_type(kind)}" for name, kind in FRAME.items())


FRAME = {**TYPES, "reason": "string"}
"""The columns of a table with explained and rejected rows: `reason` is null for the former."""


def _spark_type(kind: str) -> str:
    if kind.startswith("list<"):
        return f"array<{_spark_type(kind[5:-1])}>"
    return _SPARK.get(kind, "boolean")


def explained_row(id: str, label: str | int | None, explanation: Explanation) -> ResultRow:
    """An explanation as a row."""
    text, units, target = explanation.text or "", explanation.units, explanation.target
    starts, ends, sums = word_sums(explanation)
    lines = explanation.ledger.lines if explanation.ledger else ()
    return {
        "id": id,
        "text": explanation.text,
        "label": None if label is None else str(label),
        "target": target.label,
        "target_index": target.index,
        "against": target.against_label,
        "against_index": target.against,
        "output": explanation.output,
        "probability": explanation.probability,
        "tokens": [unit.text for unit in units],
        "token_starts": [unit.start for unit in units],
        "token_ends": [unit.end for unit in units],
        "token_special": [unit.special for unit in units],
        "token_words": [unit.word for unit in units],
        "scores": explanation.scores,
        "words": [text[a:b] for a, b in zip(starts, ends, strict=True)],
        "word_starts": starts,
        "word_ends": ends,
        "word_scores": sums,
        "ledger_labels": [line.label for line in lines],
        "ledger_kinds": [line.kind for line in lines],
        "ledger_values": [line.value for line in lines],
        "warnings": list(explanation.warnings),
        "model": explanation.model,
        "method": explanation.method,
        "settings": json.dumps(dict(explanation.settings)),
        "versions": json.dumps(dict(explanation.versions)),
    }


def word_sums(explanation: Explanation) -> tuple[list[int], list[int], NDArray[np.float32]]:
    """The starts, ends and summed scores of the words of a text.

    Like `Explanation.words`, but faster, and without special tokens and words without a span.
    """
    starts: list[int] = []
    ends: list[int] = []
    owners: list[int] = []  # the word of each unit; −1 for special tokens
    previous: int | None = None
    for unit in explanation.units:
        continues = unit.word is not None and unit.word == previous and not unit.special
        previous = None if unit.special else unit.word
        if unit.special:
            owners.append(-1)
            continue
        if not continues:
            starts.append(-1)
            ends.append(-1)
        if unit.start is not None and unit.end is not None:
            starts[-1] = unit.start if starts[-1] < 0 else starts[-1]
            ends[-1] = unit.end
        owners.append(len(starts) - 1)
    sums = np.bincount(np.array(owners) + 1, explanation.scores, len(starts) + 1)[1:]
    if -1 in starts:  # some tokenizers make a space a word without a span
        real = [k for k, start in enumerate(starts) if start >= 0]
        starts, ends, sums = [starts[k] for k in real], [ends[k] for k in real], sums[real]
    return starts, ends, sums.astype(np.float32)


def rejected_row(id: str, text: Any, reason: str) -> ResultRow:
    """A rejected row with the reason; a value that is not a text is shown by `repr`."""
    shown = text if isinstance(text, str) or text is None else repr(text)
    return {"id": id, "text": shown, "reason": reason}


def columns(rows: list[ResultRow], types: Mapping[str, str]) -> dict[str, list[Any]]:
    """Rows as the columns of a table; missing values are null."""
    return {name: [row.get(name) for row in rows] for name in types}


def explanation_of(row: Mapping[str, Any]) -> Explanation:
    """Restores the explanation from a row, to print or draw it."""
    units = zip(
        *(row[name] for name in (
            "tokens", "token_starts", "token_ends", "token_special", "token_words",
        )), strict=True,
    )  # fmt: skip
    lines = zip(row["ledger_labels"], row["ledger_kinds"], row["ledger_values"], strict=True)
    return Explanation(
        units=tuple(Unit(*map(_plain, unit)) for unit in units),
        scores=np.array(row["scores"], dtype=np.float32),
        target=TargetInfo(
            *(_plain(row[name]) for name in ("target_index", "target", "against_index", "against"))
        ),
        output=float(row["output"]),
        probability=None if _is_missing(row["probability"]) else float(row["probability"]),
        method=row["method"],
        settings=json.loads(row["settings"]),
        ledger=Ledger(tuple(Line(*line) for line in lines), float(row["output"]))
        if len(row["ledger_values"])
        else None,
        text=row["text"],
        model=row["model"],
        versions=json.loads(row["versions"]),
        warnings=tuple(row["warnings"]),
    )  # fmt: skip


def _is_missing(value: Any) -> bool:
    """None, NaN, or the NA of pandas."""
    return value is None or str(value) in ("nan", "<NA>")


def _plain(value: Any) -> Any:
    """Converts a table value to Python: pandas reads integer columns with gaps as floats."""
    if not isinstance(value, str) and _is_missing(value):
        return None
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value
