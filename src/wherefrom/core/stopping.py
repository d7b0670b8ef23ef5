"""Work that can be stopped from outside: loops without torch calls ask here whether to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_check: ContextVar[Callable[[], None] | None] = ContextVar("_check", default=None)


@contextmanager
def stopped_by(check: Callable[[], None]) -> Iterator[None]:
    """Within this context, `stop_if_late` calls `check`, which may raise."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def stop_if_late() -> None:
    """Raises what the surrounding `stopped_by` raises; does nothing without one."""
    check = _check.get()
    if check is not None:
        check()
