"""Rows that end their process: found by what was in work when a process died, noted on disk.

A part whose process died twice is worked on in groups of rows; a group that was in work when it
died again, row by row. A row that was alone in work at two deaths is given up, with the reason. One
death says little of a row: machines are lost, and processes are killed for the memory of others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import isqrt
from typing import TypeVar

from wherefrom.runs.store import ResultsFolder

Result = TypeVar("Result")
_DEATHS = 2  # with all rows of a part in work, or with one row
REASON = (
    f"the process ended {_DEATHS} times while it explained this row alone: out of memory, or a "
    "crash in native code."
)


@dataclass
class Attempts:
    """How often rows of a part were in work in processes that died; rows 0 to 44 are "0-45"."""

    results_folder: ResultsFolder
    part: str
    deaths: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def at(folder: ResultsFolder, part: str) -> Attempts:
        """What earlier processes of this run have noted of a part."""
        return Attempts(folder, part, Counter(folder.attempts(part)))

    def results(
        self, size: int, work: Callable[[slice], Result]
    ) -> Iterator[tuple[slice, Result | str]]:
        """What `work` gives for all rows, in one piece or several; the reason for a row given up.

        `work` must have loaded its model before: what dies while that is read is no row.
        """
        units = list(self._units(size))
        for rows in units:
            if rows.stop - rows.start == 1 and self.deaths[_key(rows)] >= _DEATHS:
                yield rows, REASON
            else:
                yield rows, self._noted(rows, work)
        if len(units) > 1:  # else the note of all rows at once says nothing of one
            self._write()

    def _units(self, size: int) -> Iterator[slice]:
        whole = slice(0, size)
        if self.deaths[_key(whole)] < _DEATHS:
            yield whole
            return
        for group in _cut(whole, isqrt(size)):
            yield from _cut(group, 1) if self.deaths[_key(group)] else [group]

    def _noted(self, rows: slice, work: Callable[[slice], Result]) -> Result:
        """Counts a death before the work, and takes it back after: what dies cannot write."""
        self.deaths[_key(rows)] += 1
        self._write()
        try:
            result = work(rows)
        except BaseException:  # an error or Ctrl-C is no death
            self.deaths[_key(rows)] -= 1
            self._write()
            raise
        self.deaths[_key(rows)] -= 1  # on disk with the next note
        return result

    def _write(self) -> None:
        self.results_folder.note_attempts(self.part, +self.deaths)


def _key(rows: slice) -> str:
    return f"{rows.start}-{rows.stop}"


def _cut(rows: slice, size: int) -> list[slice]:
    """Rows in groups of this size; the last may be smaller.

    >>> _cut(slice(4, 9), 2)
    [slice(4, 6, None), slice(6, 8, None), slice(8, 9, None)]
    """
    starts = range(rows.start, rows.stop, size)
    return [slice(start, min(start + size, rows.stop)) for start in starts]
