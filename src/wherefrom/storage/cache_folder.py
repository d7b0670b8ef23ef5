"""The user's cache folder, and folders in it that are made once."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from wherefrom.errors import FileError
from wherefrom.storage.writing import reason


def cache_folder() -> Path:
    """Where files are kept that can be made again: WHEREFROM_CACHE, else the system's place."""
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
    """A folder of the cache; if it is not there, `make` fills it, and it appears when it is whole.

    Of several processes that make it at once, the first one to finish wins.
    """
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    partial = folder.with_name(f".{secrets.token_hex(8)}.partial")
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
