"""Files that are written beside their place and renamed: whole, or as they were before."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from wherefrom.errors import FileError

_SUFFIX = ".partial"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the place of `path` when the block ends without an error.

    A file that cannot be written, for want of space or permission, leaves `path` as it was. What
    is no regular file (a pipe, /dev/stdout) is written to directly.
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
    """Writes a text as UTF-8; a lone surrogate becomes its escape, as JSON has it."""
    with replacing(Path(path)) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def remove_partial_files(folder: Path) -> None:
    """Removes what killed processes have left half written in a folder."""
    for path in folder.glob(f".*{_SUFFIX}"):
        path.unlink(missing_ok=True)


@contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        kept = " The file is as it was before." if path.is_file() else ""
        raise FileError(f"cannot write {path}: {reason(error)}.{kept}") from error


def reason(error: Exception) -> str:
    """What an operating system's error says, without its number and the path."""
    return getattr(error, "strerror", None) or str(error)
