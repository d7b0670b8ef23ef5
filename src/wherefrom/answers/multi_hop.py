"""Relevance for answer tokens as rows: their sums, ledgers, and hops between tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wherefrom.core.explanation import Ledger, Line, Unit, plural

if TYPE_CHECKING:
    from torch import Tensor

    from wherefrom.methods import Scores

Values = NDArray[np.float64]
LineKey = tuple[str, str]  # label and kind of a line


@dataclass(frozen=True, eq=False)
class RelevanceRow:
    """The contributions to one output: output = Σ values + Σ lines + residual.

    `lines` are None for a method whose scores do not add up. `errors` are the standard errors of
    values that are estimates; hops drop them.
    """

    values: Values  # of all tokens of prompt and answer
    lines: Mapping[LineKey, float] | None
    output: float
    warnings: tuple[str, ...] = field(default=())
    errors: Values | None = None

    @property
    def residual(self) -> float:
        """The part of the output that values and lines do not account for."""
        return self.output - float(self.values.sum()) - sum((self.lines or {}).values())

    @staticmethod
    def of(
        scores: Scores,
        output: float,
        length: int,
        patches: int = 0,
        sample: int = 0,
        mask: NDArray[np.bool_] | None = None,
    ) -> RelevanceRow:
        """The row of a sample of a batch, over `length` units.

        Image patches come last in scores, but first in rows. `mask` is False at padding.
        """

        def of_units(scores: Tensor) -> Values:
            values = np.zeros(length)
            amounts = scores[sample].detach().double().cpu().numpy()
            amounts = np.roll(amounts if mask is None else amounts[mask], patches)
            values[: len(amounts)] = amounts
            return values

        lines = None
        if scores.lines is not None:
            # totals over units repeat the values; other lines of the kind do not
            lines = {
                (label, kind): float(totals[sample])
                for (label, kind), totals in scores.lines.items()
                if kind not in scores.parts or label not in (plural(kind), "embedding norm")
            }
        return RelevanceRow(
            of_units(scores.values),
            lines,
            output,
            scores.warnings[sample] if scores.warnings else (),
            None if scores.errors is None else of_units(scores.errors),
        )


def total(rows: Sequence[RelevanceRow]) -> RelevanceRow:
    """The sum of rows; the sum of their standard errors is an upper bound of its own."""
    lines: dict[LineKey, float] | None = None
    if all(row.lines is not None for row in rows):
        lines = {}
        for row in rows:
            for key, value in (row.lines or {}).items():
                lines[key] = lines.get(key, 0.0) + value
    return RelevanceRow(
        np.sum([row.values for row in rows], axis=0),
        lines,
        float(sum(row.output for row in rows)),
        tuple(dict.fromkeys(warning for row in rows for warning in row.warnings)),
        None
        if any(row.errors is None for row in rows)
        else np.sum([row.errors for row in rows if row.errors is not None], axis=0),
    )


def ledger(row: RelevanceRow, units: Sequence[Unit], group: Callable[[int], str]) -> Ledger | None:
    """The ledger of a row: a line for each group of units, then the lines of the model.

    Groups without relevance have no line, such as a template that equals its root.
    """
    if row.lines is None:
        return None
    groups: dict[str, float] = {}
    for i in range(len(units)):
        name = group(i)
        groups[name] = groups.get(name, 0.0) + float(row.values[i])
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


LARGEST_GAIN = 10.0
"""A token passes relevance on if Σ |its row| is at most this many times its total: a row whose
terms cancel would pass on a multiple of what it received, with both signs."""
_RESIDUAL: LineKey = ("residual of earlier tokens", "residual")


@dataclass(frozen=True, eq=False)
class MultiHop:
    """The rows of all answer tokens, each as shares of its total.

    The relevance r_i of the answer token i is distributed in the proportions of its row:
    r_i · row_i / total_i, including the row's ledger lines and residual. These shares add up to 1,
    so every hop preserves the sum. A row whose terms nearly cancel
    (Σ |terms| > LARGEST_GAIN · |total|) has no meaningful shares: its token keeps its relevance.
    """

    rows: Sequence[RelevanceRow]
    start: int  # number of prompt tokens

    @property
    def gains(self) -> Values:
        """Σ |terms| / |total| of each row; infinite where the total is zero."""
        sizes = [
            float(np.abs(row.values).sum())
            + sum(map(abs, (row.lines or {}).values()))
            + abs(row.residual)
            for row in self.rows
        ]
        totals = [abs(row.output) for row in self.rows]
        return np.array(
            [
                size / amount if amount else np.inf
                for size, amount in zip(sizes, totals, strict=True)
            ]
        )

    @property
    def keeps(self) -> list[int]:
        """The answer tokens that keep their relevance."""
        return np.flatnonzero(self.gains > LARGEST_GAIN).tolist()

    def hop(self, row: RelevanceRow) -> RelevanceRow:
        """One hop: every answer token passes its relevance on."""
        return self._distributed(row, self._passed_on(row.values[self.start :]))

    def all(self, row: RelevanceRow) -> RelevanceRow:
        """All hops: the tokens receive R = r (I − D A)⁻¹, by substitution from the last.

        A is the relevance between answer tokens, strictly lower triangular; D is diagonal with
        1 / total of each row, or 0 for a token that keeps its relevance.
        """
        arriving = row.values[self.start :].copy()
        keeps = set(self.keeps)
        for token in range(len(self.rows) - 1, -1, -1):
            if token not in keeps and arriving[token]:
                source = self.rows[token]
                arriving += arriving[token] / source.output * source.values[self.start :]
        return self._distributed(row, self._passed_on(arriving))

    def after(self, row: RelevanceRow, hops: int | None) -> RelevanceRow:
        """The row after a number of hops; None means all."""
        if hops is None:
            return self.all(row)
        for _ in range(hops):
            row = self.hop(row)
        return row

    def keeping(self, row: RelevanceRow) -> list[int]:
        """The answer tokens that keep relevance in a row."""
        return [i for i in self.keeps if row.values[self.start + i]]

    def _passed_on(self, arriving: Values) -> Values:
        amounts = arriving[: len(self.rows)].copy()
        amounts[self.keeps] = 0.0
        return amounts

    def _distributed(self, row: RelevanceRow, amounts: Values) -> RelevanceRow:
        """The row after its answer tokens passed these amounts on."""
        values = row.values.copy()
        lines = dict(row.lines or {})
        values[self.start : self.start + len(amounts)] -= amounts
        for token, amount in enumerate(amounts):
            if not amount:
                continue
            source = self.rows[token]
            share = float(amount) / source.output
            values += share * source.values
            for key, value in {**(source.lines or {}), _RESIDUAL: source.residual}.items():
                lines[key] = lines.get(key, 0.0) + share * value
        return RelevanceRow(values, lines, row.output, row.warnings)


def kept_message(pieces: Sequence[str]) -> str:
    """The warning about tokens that keep their relevance."""
    names = ", ".join(map(repr, pieces[:5]))
    more = f" and {len(pieces) - 5} more" if len(pieces) > 5 else ""
    return (
        f"{names}{more}: the contributions to these tokens of the answer cancel to nearly "
        "nothing, so they keep their relevance."
    )
