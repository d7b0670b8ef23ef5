"""Finds rows that crash their process, by saving which rows are in progress.

A part whose process died twice is explained in groups of rows; a group whose process died again,
row by row. A row whose process died twice while it was explained alone is rejected. One death
proves nothing: machines fail, and processes are killed when others use up the memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import isqrt
from typing import TypeVar

from wherefrom.storage.store import Store

Result = TypeVar("Result")
_DEATHS = 2  # with all rows of a part in progress, or with one row
REASON = (
    f"the process ended {_DEATHS} times while it explained this row alone: out of memory, or a "
    "crash in native code."
)


@dataclass
class Attempts:
    """How often a process died for each range of rows in progress; rows 0 to 44 are "0-45"."""

    store: Store
    part: str
    deaths: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def at(store: Store, part: str) -> Attempts:
        """The attempts at a part that earlier processes of this run saved."""
        return Attempts(store, part, Counter(store.attempts(part)))

    def results(
        self, size: int, work: Callable[[slice], Result]
    ) -> Iterator[tuple[slice, Result | str]]:
        """The results of `work` for all rows, in one or several calls; rejected rows give a reason.

        `work` must have loaded its model before, so that a death during loading counts for no row.
        """
        units = list(self._units(size))
        for rows in units:
            if rows.stop - rows.start == 1 and self.deaths[_key(rows)] >= _DEATHS:
                yield rows, REASON
            else:
                yield rows, self._with_death_noted(rows, work)
        if len(units) > 1:  # after a single unit, the caller removes the file
            self._write()

    def _units(self, size: int) -> Iterator[slice]:
        whole = slice(0, size)
        if self.deaths[_key(whole)] < _DEATHS:
            yield whole
            return
        for group in _cut(whole, isqrt(size)):
            yield from _cut(group, 1) if self.deaths[_key(group)] else [group]

    def _with_death_noted(self, rows: slice, work: Callable[[slice], Result]) -> Result:
        """Counts a death before the work and uncounts it after: a dead process cannot write."""
        self.deaths[_key(rows)] += 1
        self._write()
        try:
            result = work(rows)
        except BaseException:  # errors and Ctrl-C are not deaths
            self.deaths[_key(rows)] -= 1
            self._write()
            raise
        self.deaths[_key(rows)] -= 1  # saved with the next attempt
        return result

    def _write(self) -> None:
        self.store.note_attempts(self.part, +self.deaths)


def _key(rows: slice) -> str:
    return f"{rows.start}-{rows.stop}"


def _cut(rows: slice, size: int) -> list[slice]:
    """Splits rows into groups of this size; the last may be smaller.

    >>> _cut(slice(4, 9), 2)
    [slice(4, 6, None), slice(6, 8, None), slice(8, 9, None)]
    """
    starts = range(rows.start, rows.stop, size)
    return [slice(start, min(start + size, rows.stop)) for start in starts]
