"""Progress of long calls: a bar in a terminal, a line of HTML in a notebook, lines in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from html import escape
from typing import Any

from wherefrom.errors import printable

Progress = Callable[[float, int, str], None]  # done, of how many, the current step
PATIENCE = 1.0  # seconds before a bar appears: short calls stay quiet
_SECONDS_OF_A_LINE = 10.0
_PAUSE = 0.2  # seconds between two updates in a notebook


@contextmanager
def shown(what: str, progress: Progress | bool | None = None) -> Iterator[Progress]:
    """What to report progress to: the caller's own function, or a bar where people would see it.

    None and True: a bar, once the call has taken a second, in a terminal or a notebook; False:
    nothing.
    """
    if callable(progress):
        yield progress
    elif progress is False:
        yield lambda done, total, note: None
    elif _in_notebook():
        with _notebook_bar(what) as advance:
            yield advance
    else:
        with terminal_bar(what, PATIENCE) as advance:
            yield advance


@contextmanager
def terminal_bar(what: str, patience: float = 0.0, lines: bool = False) -> Iterator[Progress]:
    """A bar with rate and time left, on stderr if that is a terminal.

    It appears after `patience` seconds: a short call stays quiet, and a long one that does not
    report yet is seen to work. Where stderr is no terminal but a log, there is nothing, or with
    `lines` a line now and then.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("{task.fields[pace]}", markup=False),
    )  # fmt: skip
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line_now_and_then(what) if lines else lambda done, total, note: None
        return
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(what, total=None, pace="")
    clock = _Clock()

    def advance(done: float, total: int, note: str) -> None:
        pace = clock.pace(done, total)
        bar.update(task, completed=done, total=total, pace=printable(f"{pace}  {note}"))

    appears = threading.Timer(patience, bar.start)
    appears.daemon = True
    try:
        if patience:
            appears.start()
        else:
            bar.start()
        yield advance
    finally:
        appears.cancel()
        if patience:
            appears.join()  # a bar that is just appearing would stay
        bar.stop()


def _line_now_and_then(what: str) -> Progress:
    """Reports progress to a log: a line on stderr every few seconds."""
    clock = _Clock()

    def advance(done: float, total: int, note: str) -> None:
        pace = clock.pace(done, total)
        if clock.is_due(_SECONDS_OF_A_LINE):
            print(printable(f"{what}: {done:,.0f} of {total:,}, {pace}"), file=sys.stderr)

    return advance


@contextmanager
def _notebook_bar(what: str) -> Iterator[Progress]:
    """A bar that a notebook draws, without widgets; it is cleared at the end."""
    from IPython.display import HTML, display

    clock = _Clock()
    handles: list[Any] = []

    def show(markup: str) -> None:
        if handles:
            handles[0].update(HTML(markup))
        else:
            handles.append(display(HTML(markup), display_id=True))

    def advance(done: float, total: int, note: str) -> None:
        pace = clock.pace(done, total)
        if clock.elapsed < PATIENCE or not clock.is_due(_PAUSE):
            return
        words = escape(f"{what}: {done:.0f} of {total}  {pace}  {note}")
        show(f'<progress value="{done}" max="{total}"></progress> {words}')

    try:
        yield advance
    finally:
        if handles:
            show("")


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return running is not None and hasattr(running, "kernel")


class _Clock:
    """The time since the start, and the rate of the work done since then."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self._first: float | None = None  # done by an earlier run: no part of this one's rate

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def pace(self, done: float, total: int) -> str:
        """The rate and the time left; to be asked for at every report, the first one too."""
        if self._first is None:
            self._first = done
        return _pace(done - self._first, total - done, self.elapsed)

    def is_due(self, seconds: float) -> bool:
        """Whether so many seconds have passed since it last was, or since the start."""
        now = time.monotonic()
        due = now - self._last >= seconds
        if due:
            self._last = now
        return due


def _pace(done: float, left: float, seconds: float) -> str:
    """The rate so far and the time left at that rate.

    >>> _pace(30, 60, 20), _pace(1, 9, 100), _pace(0, 5, 1)
    ('1.5/s, 0:00:40 left', '100.0 s each, 0:15:00 left', '')
    """
    if done <= 0 or seconds <= 0:
        return ""
    rate = done / seconds
    shown = f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s each"
    return f"{shown}, {timedelta(seconds=round(left / rate))} left"
