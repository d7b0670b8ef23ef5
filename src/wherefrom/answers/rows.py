"""Relevance of answer tokens as plain numbers: a row for each, and how rows add up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wherefrom.core.explanation import Ledger, Line, Unit, plural

if TYPE_CHECKING:
    from wherefrom.methods import Scores

Values = NDArray[np.float64]
Key = tuple[str, str]  # label and kind of a line


@dataclass(frozen=True, eq=False)
class Row:
    """What units and constants contributed to one number: output = Σ values + Σ lines + residual.

    `lines` are None for a method whose scores add up to nothing.
    """

    values: Values  # of prompt and answer tokens, as many as there are
    lines: Mapping[Key, float] | None
    output: float
    warnings: tuple[str, ...] = field(default=())

    @property
    def residual(self) -> float:
        """What is accounted for by nothing."""
        return self.output - float(self.values.sum()) - sum((self.lines or {}).values())

    @staticmethod
    def of(
        scores: Scores,
        output: float,
        length: int,
        patches: int = 0,
        sample: int = 0,
        mask: NDArray[np.bool_] | None = None,
    ) -> Row:
        """The row of a sample of a batch, over `length` units.

        Scores have patches of images at their end, rows in front. `mask` tells units from padding.
        """
        values = np.zeros(length)
        own = scores.values[sample].detach().double().cpu().numpy()
        own = np.roll(own if mask is None else own[mask], patches)
        values[: len(own)] = own
        lines = None
        if scores.lines is not None:
            # totals over units are the values' own; the same kind may come from no unit as well
            lines = {
                (label, kind): float(amounts[sample])
                for (label, kind), amounts in scores.lines.items()
                if kind not in scores.parts or label not in (plural(kind), "embedding norm")
            }
        return Row(values, lines, output, scores.warnings[sample] if scores.warnings else ())


def total(rows: Sequence[Row]) -> Row:
    """The sum of some rows."""
    lines: dict[Key, float] | None = None
    if all(row.lines is not None for row in rows):
        lines = {}
        for row in rows:
            for key, value in (row.lines or {}).items():
                lines[key] = lines.get(key, 0.0) + value
    return Row(
        np.sum([row.values for row in rows], axis=0),
        lines,
        float(sum(row.output for row in rows)),
        tuple(dict.fromkeys(warning for row in rows for warning in row.warnings)),
    )


def ledger(row: Row, units: Sequence[Unit], group: Callable[[int], str]) -> Ledger | None:
    """The ledger of a row: a line for each group of units, then those of the model.

    Groups without relevance, such as a template that is the same at the root, have no line.
    """
    if row.lines is None:
        return None
    groups: dict[str, float] = {}
    for number in range(len(units)):
        name = group(number)
        groups[name] = groups.get(name, 0.0) + float(row.values[number])
    lines = [
        Line(_LABELS[name], name, value)
        for name, value in groups.items()
        if value or name == "prompt"
    ]
    lines += [Line(label, kind, value) for (label, kind), value in row.lines.items()]
    return Ledger(tuple(lines), row.output)


_LABELS = {
    "image": "the patches of images",
    "prompt": "the prompt's parts",
    "first token": "first token",
    "template": "template",
    "answer": "earlier tokens of the answer",
}
