"""Relevance handed on through generated tokens to what caused them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wherefrom.answers.rows import Key, Row, Values

LARGEST_GAIN = 10.0
"""A token hands relevance on if Σ |its row| is at most so many times its total: a row whose terms
cancel would hand on many times what it has got, once for and once against."""
_RESIDUAL: Key = ("residual of handed-on relevance", "residual")


@dataclass(frozen=True, eq=False)
class MultiHop:
    """The rows of all answer tokens, each as shares of its total.

    Relevance r_i that falls on the answer token i is distributed as the row of i is:
    r_i · row_i / total_i, the row's ledger lines and residual included. The shares of a row add up
    to 1, so the sum stays what it was at every hop. A row whose terms cancel to nearly nothing
    (Σ |terms| > LARGEST_GAIN · |total|) has no meaningful shares: its token keeps its relevance.
    """

    rows: Sequence[Row]
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

    def hop(self, row: Row) -> Row:
        """One hop: every answer token hands on what it has."""
        return self._distributed(row, self._handed(row.values[self.start :]))

    def all(self, row: Row) -> Row:
        """All hops: R = r (I − D A)⁻¹ arrives at the tokens, by substitution from the last.

        A is the matrix of answer by answer, strictly lower triangular; D has 1 / total of each row
        on its diagonal, 0 for a token that keeps its relevance.
        """
        arriving = row.values[self.start :].copy()
        keeps = set(self.keeps)
        for token in range(len(self.rows) - 1, -1, -1):
            if token not in keeps and arriving[token]:
                source = self.rows[token]
                arriving += arriving[token] / source.output * source.values[self.start :]
        return self._distributed(row, self._handed(arriving))

    def handed_on(self, row: Row, hops: int | None) -> Row:
        """So many hops; None: all."""
        if hops is None:
            return self.all(row)
        for _ in range(hops):
            row = self.hop(row)
        return row

    def keeping(self, row: Row) -> list[int]:
        """The answer tokens that have kept relevance of a row."""
        return [place for place in self.keeps if row.values[self.start + place]]

    def _handed(self, arriving: Values) -> Values:
        handed = arriving[: len(self.rows)].copy()
        handed[self.keeps] = 0.0
        return handed

    def _distributed(self, row: Row, handed: Values) -> Row:
        """The row after its answer tokens gave these amounts away as their rows say."""
        values = row.values.copy()
        lines = dict(row.lines or {})
        values[self.start : self.start + len(handed)] -= handed
        for token, amount in enumerate(handed):
            if not amount:
                continue
            source = self.rows[token]
            share = float(amount) / source.output
            values += share * source.values
            for key, value in {**(source.lines or {}), _RESIDUAL: source.residual}.items():
                lines[key] = lines.get(key, 0.0) + share * value
        return Row(values, lines, row.output, row.warnings)


def kept_message(pieces: Sequence[str]) -> str:
    """What is said of tokens that keep their relevance."""
    names = ", ".join(map(repr, pieces[:5]))
    more = f" and {len(pieces) - 5} more" if len(pieces) > 5 else ""
    return (
        f"{names}{more}: the contributions to these tokens of the answer cancel to nearly "
        "nothing, so they keep their relevance."
    )
