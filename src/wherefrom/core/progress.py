"""Shows the progress of long calls, as a bar, a line of HTML or log lines; and stops them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from html import escape
from typing import Any

from wherefrom.errors import printable

Progress = Callable[[float, int, str], None]  # done, total, the current step
PATIENCE = 1.0  # seconds before a bar appears: short calls stay quiet
_SECONDS_PER_LINE = 10.0
_PAUSE = 0.2  # seconds between two updates in a notebook
_check: ContextVar[Callable[[], None] | None] = ContextVar("_check", default=None)


@contextmanager
def shown(what: str, progress: Progress | bool | None = None) -> Iterator[Progress]:
    """The function to report progress to: the caller's, or that of a bar.

    None and True: a bar in a terminal or a notebook, once the call has taken a second; False:
    nothing.
    """
    if callable(progress):
        yield progress
    elif progress is False:
        yield _ignored
    elif _in_notebook():
        with _notebook_bar(what) as advance:
            yield advance
    else:
        with terminal_bar(what, PATIENCE) as advance:
            yield advance


@contextmanager
def terminal_bar(what: str, patience: float = 0.0, lines: bool = False) -> Iterator[Progress]:
    """A bar with rate and time left, on stderr if that is a terminal.

    It appears after `patience` seconds, even before the first report. If stderr is not a terminal,
    nothing is shown, or with `lines` a line every few seconds.
    """
    bar, advance = _bar(what)
    if not bar.console.is_terminal:
        yield _throttled(_SECONDS_PER_LINE, bar, advance, _print_line) if lines else _ignored
        return
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
            appears.join()  # a bar that is about to appear would stay
        bar.stop()


@contextmanager
def _notebook_bar(what: str) -> Iterator[Progress]:
    """A bar as HTML, which needs no widgets; it is cleared at the end."""
    from IPython.display import HTML, display

    handles: list[Any] = []
    started = time.monotonic()

    def show(markup: str) -> None:
        if handles:
            handles[0].update(HTML(markup))
        elif time.monotonic() - started >= PATIENCE:
            handles.append(display(HTML(markup), display_id=True))

    def show_task(task: Any) -> None:
        text = f"{what}: {task.completed:.0f} of {task.total}  {task.fields['pace']}"
        bar = f'<progress value="{task.completed}" max="{task.total}"></progress>'
        show(f"{bar} {escape(text)}")

    try:
        yield _throttled(_PAUSE, *_bar(what), show_task)
    finally:
        if handles:
            show("")


def _bar(what: str) -> tuple[Any, Progress]:
    """A rich progress bar, not shown yet, and the function that updates it."""
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"), progress.BarColumn(),
        progress.MofNCompleteColumn(), progress.TimeElapsedColumn(),
        progress.TextColumn("{task.fields[pace]}", markup=False),
    )  # fmt: skip
    bar = progress.Progress(*columns, console=Console(stderr=True), transient=True)
    task_id = bar.add_task(what, total=None, pace="")

    def advance(done: float, total: int, note: str) -> None:
        bar.update(task_id, completed=done, total=total)
        task = bar.tasks[0]
        pace = _pace(task.speed, task.time_remaining)
        bar.update(task_id, pace=printable(f"{pace}  {note}".strip()))

    return bar, advance


def _throttled(
    seconds: float, bar: Any, advance: Progress, show: Callable[[Any], None]
) -> Progress:
    """Calls `advance`, and then `show` if some seconds have passed since the last time."""
    last = time.monotonic()

    def report(done: float, total: int, note: str) -> None:
        nonlocal last
        advance(done, total, note)
        if time.monotonic() - last >= seconds:
            last = time.monotonic()
            show(bar.tasks[0])

    return report


def _print_line(task: Any) -> None:
    text = f"{task.description}: {task.completed:,.0f} of {task.total:,}, {task.fields['pace']}"
    print(printable(text), file=sys.stderr)


def _ignored(done: float, total: int, note: str) -> None:
    """Reports nothing."""


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return running is not None and hasattr(running, "kernel")


def _pace(rate: float | None, seconds_left: float | None) -> str:
    """The rate and the time left.

    >>> _pace(1.5, 40), _pace(0.01, 900), _pace(None, None)
    ('1.5/s, 0:00:40 left', '100.0 s each, 0:15:00 left', '')
    """
    if not rate or seconds_left is None:
        return ""
    pace = f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s each"
    return f"{pace}, {timedelta(seconds=round(seconds_left))} left"


@contextmanager
def stopped_by(check: Callable[[], None]) -> Iterator[None]:
    """Within this context, `stop_if_late` calls `check`, which may raise an error."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def stop_if_late() -> None:
    """Calls the `check` of the surrounding `stopped_by`; for loops without torch calls."""
    check = _check.get()
    if check is not None:
        check()
