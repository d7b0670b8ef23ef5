"""Atomic files, locked folders, and the cache folder."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from wherefrom.errors import FileError

if TYPE_CHECKING:
    from filelock import FileLock

_SUFFIX = ".partial"
_LOCK = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file that replaces `path` when the block ends without an error.

    If the file cannot be written (no space, no permission), `path` keeps its content. Pipes and
    devices such as /dev/stdout are written to directly.
    """
    try:
        target = Path(os.path.realpath(path))  # a link stays a link
    except ValueError as error:  # a null character
        raise FileError(f"cannot write {path}: {error}.") from error
    if target.exists() and not target.is_file():
        with _clear_errors(path), target.open("wb") as file:
            yield file
        return
    partial = target.with_name(f".{secrets.token_hex(8)}{_SUFFIX}")
    try:
        with _clear_errors(path):
            with partial.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                partial.chmod(target.stat().st_mode)
            os.replace(partial, target)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Writes a text as UTF-8; a lone surrogate becomes an escape, as in JSON."""
    with replacing(Path(path)) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def remove_partial_files(folder: Path) -> None:
    """Removes the unfinished files of killed processes from a folder."""
    for path in folder.glob(f".*{_SUFFIX}"):
        path.unlink(missing_ok=True)


@contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        unchanged = " The file keeps its earlier content." if path.is_file() else ""
        raise FileError(f"cannot write {path}: {reason(error)}.{unchanged}") from error


def reason(error: Exception) -> str:
    """The message of an operating system error, without its number and the path."""
    return getattr(error, "strerror", None) or str(error)


@contextmanager
def locked(folder: Path | None) -> Iterator[None]:
    """Creates the folder and holds its lock; raises FileError if another process holds it.

    The operating system releases the lock when its process ends, even by kill -9; a remaining lock
    file has no effect. Without a folder nothing is locked.
    """
    if folder is None:
        yield
        return
    lock = _acquired(folder)
    try:
        remove_partial_files(folder)
        with suppress(OSError):  # the process id is only for the error message of other processes
            (folder / _LOCK).write_text(str(os.getpid()), "ascii")
        yield
    finally:
        if lock is not None:
            lock.release()


def _acquired(folder: Path) -> FileLock | None:
    """Acquires the lock of a folder; None if the file system has no locks."""
    from filelock import FileLock, Timeout

    path = folder / _LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, timeout=0)
        lock.acquire()
    except Timeout as error:
        owner = ""
        with suppress(OSError):
            owner = path.read_text("ascii", "replace")
        process = f" (process {owner})" if owner.isdecimal() else ""
        raise FileError(
            f"another run{process} is writing to {folder}. Wait for it, or choose another folder."
        ) from error
    except (OSError, ValueError, NotImplementedError) as error:
        if isinstance(error, NotImplementedError) or getattr(error, "errno", None) in _NO_LOCKS:
            warnings.warn(
                f"the file system of {folder} has no locks: make sure that no other run writes to "
                "this folder",
                stacklevel=4,
            )
            return None
        raise FileError(f"cannot write to {folder}: {reason(error)}.") from error
    return lock


def cache_folder() -> Path:
    """The cache folder: WHEREFROM_CACHE, else in the user's cache folder of the system."""
    chosen = os.environ.get("WHEREFROM_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "wherefrom"


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the cache; if missing, `make` fills it, and it appears when complete.

    If several processes fill it at the same time, the first to finish wins.
    """
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    partial = folder.with_name(f".{secrets.token_hex(8)}{_SUFFIX}")
    try:
        partial.mkdir(parents=True)
        make(partial)
        with suppress(OSError):  # another process was faster
            partial.rename(folder)
    except OSError as error:
        raise FileError(
            f"cannot write to the cache folder {folder.parent}: {reason(error)}. Set "
            "WHEREFROM_CACHE to another folder."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if not folder.is_dir():
        raise FileError(f"cannot write to the cache folder {folder.parent}.")
    return folder
