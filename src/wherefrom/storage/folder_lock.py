"""One process at a time writes to a folder; the lock ends with the process, however it ends."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from wherefrom.errors import FileError
from wherefrom.storage.writing import reason, remove_partial_files

NAME = ".lock"
_BUSY = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextmanager
def locked(folder: Path | None, of: str = "") -> Iterator[None]:
    """Makes the folder and holds its lock; an error if another run holds it.

    `of` is the kind of run that writes to the folder; one of another kind is refused from then on.

    The lock is the operating system's, on a file in the folder: it is released when its process
    ends, also by kill -9, and the file that remains locks nothing. Without a folder nothing is
    locked. A file system that has no locks gives a warning.
    """
    if folder is None:
        yield
        return
    path = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot write to {folder}: {reason(error)}.") from error
    try:
        _acquire(number, folder)
        before = _content(number)[1]
        if of and before and of != before:
            raise FileError(
                f"{folder} has results of {before}: choose another folder, or delete it."
            )
        remove_partial_files(folder)
        with suppress(OSError):  # for messages to others only: a full disk does not matter
            os.ftruncate(number, 0)
            os.lseek(number, 0, os.SEEK_SET)
            os.write(number, f"{os.getpid()} {of or before}".encode())
        yield
    finally:
        os.close(number)  # which releases the lock


def _content(number: int) -> tuple[str, str]:
    """The process that wrote the file last, and the kind of its run."""
    os.lseek(number, 0, os.SEEK_SET)
    process, _, of = os.read(number, 80).decode("ascii", "replace").partition(" ")
    return process, of


def _acquire(number: int, folder: Path) -> None:
    try:
        _lock(number)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            warnings.warn(
                f"the file system of {folder} has no locks: make sure that no other run writes "
                "to this folder",
                stacklevel=4,
            )
        elif error.errno in _BUSY:
            owner = _content(number)[0]
            process = f" (process {owner})" if owner.isdecimal() else ""
            raise FileError(
                f"another run{process} is writing to {folder}. Wait for it, or choose another "
                "folder."
            ) from error
        else:
            raise FileError(f"cannot lock {folder}: {reason(error)}.") from error


def _lock(number: int) -> None:
    """An exclusive lock without waiting: `flock`, or Windows' lock of a byte far behind the end."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        os.lseek(number, 1 << 30, os.SEEK_SET)
        msvcrt.locking(number, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    else:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
