"""The content of text files: gzip or not, UTF-8 with or without a byte order mark."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

from wherefrom.errors import FileError

MAX_RATIO = 100
"""Text unpacks to a few times its size; an archive that unpacks to more is most likely a trap."""
FREE_SIZE = 64 << 20
"""Up to so many bytes any ratio is fine."""
_CHUNK = 1 << 20
_WIDE = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}  # by their byte order marks


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, unpacked if its name ends in .gz."""
    try:
        if path.name.lower().endswith(".gz"):
            return _unpacked(path)
        return path.read_bytes()
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}.") from error
    except FileError:
        raise
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileError(f"cannot read {path}: damaged gzip data ({error}).") from error
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(f"cannot read {path}: {reason}.") from error


def _unpacked(path: Path) -> bytes:
    limit = max(FREE_SIZE, MAX_RATIO * path.stat().st_size)
    content = bytearray()
    with gzip.open(path) as file:
        while chunk := file.read(_CHUNK):
            content += chunk
            if len(content) > limit:
                raise FileError(
                    f"{path} unpacks to more than {MAX_RATIO} times its size, "
                    f"{limit >> 20:,} MB: it may be made to fill the memory. If you trust it, "
                    "unpack it and pass the file inside."
                )
    return bytes(content)


def decoded(path: Path, content: bytes) -> str:
    """Bytes as text, without a byte order mark; an error names the line that is not UTF-8."""
    check_encoding(path, content)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FileError(f"{path}, line {line} is not UTF-8: {bad_byte(error)}.") from error


def check_encoding(path: Path | str, content: bytes) -> None:
    """Refuses a file whose byte order mark is not that of UTF-8."""
    if content[:2] in _WIDE:
        raise FileError(f"{path} is {_WIDE[content[:2]]}: save it as UTF-8.")


def bad_byte(error: UnicodeDecodeError) -> str:
    """The first byte that could not be decoded."""
    return f"byte 0x{error.object[error.start]:02x}"


def lines_of(text: str) -> list[str]:
    r"""The lines of a file: U+2028 and the like, at which `splitlines` cuts, belong to a text.

    >>> lines_of("a\u2028b\r\nc\n")
    ['a\u2028b', 'c', '']
    """
    return re.split(r"\r\n|\n|\r", text)
