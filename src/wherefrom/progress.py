"""Progress of long calls: a bar in a terminal, a line of HTML in a notebook, else nothing."""

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
    report yet is seen to work. With `lines`, where stderr is no
    terminal but a log, it is a line now and then instead.
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
    started = time.monotonic()
    first: list[float] = []  # work done by an earlier run is not part of this one's rate

    def advance(done: float, total: int, note: str) -> None:
        first[:] = first or [done]
        elapsed = time.monotonic() - started
        pace = _pace(done - first[0], total - done, elapsed)
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
    started = last = time.monotonic()
    first: list[float] = []

    def advance(done: float, total: int, note: str) -> None:
        nonlocal last
        first[:] = first or [done]
        now = time.monotonic()
        if now - last >= _SECONDS_OF_A_LINE:
            last = now
            pace = _pace(done - first[0], total - done, now - started)
            print(printable(f"{what}: {done:,.0f} of {total:,}, {pace}"), file=sys.stderr)

    return advance


@contextmanager
def _notebook_bar(what: str) -> Iterator[Progress]:
    """A bar that a notebook draws, without widgets; it is cleared at the end."""
    from IPython.display import HTML, display

    started = last = time.monotonic()
    handles: list[Any] = []
    first: list[float] = []

    def show(markup: str) -> None:
        if handles:
            handles[0].update(HTML(markup))
        else:
            handles.append(display(HTML(markup), display_id=True))

    def advance(done: float, total: int, note: str) -> None:
        nonlocal last
        first[:] = first or [done]
        now = time.monotonic()
        if now - started < PATIENCE or now - last < _PAUSE:
            return
        last = now
        pace = _pace(done - first[0], total - done, now - started)
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
