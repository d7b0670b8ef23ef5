"""The content of text files: gzip or not, in UTF-8, in UTF-16, or in another encoding."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import warnings
import zlib
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError, GuessedEncoding

MAX_RATIO = 100
"""Text unpacks to a few times its size; an archive that unpacks to more is most likely a trap."""
FREE_SIZE = 64 << 20
"""Up to so many bytes any ratio is fine."""
_CHUNK = 1 << 20
_MARKS = {  # byte order marks; that of UTF-32 begins like that of UTF-16
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_SEVERAL_BYTES = re.compile(  # a character of UTF-8 beyond ASCII
    rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
)
_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")


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


def decoded(path: Path | str, content: bytes, encoding: str | None = None) -> str:
    """Bytes as text, without a byte order mark; an error names the line that cannot be decoded.

    Without an `encoding` it is found out; where it is guessed, a warning says so.
    """
    name = encoding_of(path, content, encoding)
    try:
        return content.decode(name).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        kind = "UTF-8" if name.startswith("utf-8") else name
        raise FileError(
            f"{path}, line {line} is not {kind}: {bad_byte(error)}.",
            'Pass the encoding that it has (encoding="…"), or save it as UTF-8.',
            command="Pass the encoding that it has (--encoding), or save it as UTF-8.",
        ) from error


def encoding_of(path: Path | str, content: bytes, encoding: str | None = None) -> str:
    """The encoding of a text: as asked for, by its byte order mark, UTF-8, or a guess.

    Text that is not UTF-8 is taken for UTF-16 if every other byte is 0, and for Windows-1252,
    which has the letters of Latin-1, if no character of UTF-8 is in it. Else it is damaged UTF-8.
    """
    if encoding is not None:
        try:
            codec = codecs.lookup(encoding)
            "".encode(codec.name).decode(codec.name)  # some codecs turn no bytes into text
        except (LookupError, TypeError, ValueError):
            raise FileError(
                f'there is no text encoding "{encoding}"; common ones are utf-8, utf-16, latin-1 '
                "and cp1252."
            ) from None
        return "utf-8-sig" if codec.name == "utf-8" else codec.name
    marked = marked_encoding(content)
    if marked is not None:
        return marked
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        guess = _guess(content)
        if guess is None:
            return "utf-8"
        line = content.count(b"\n", 0, error.start) + 1
        warnings.warn(
            GuessedEncoding(
                f"{path} is not UTF-8 ({bad_byte(error)} in line {line}): it is read as {guess}, "
                "which is a guess.",
                'Pass encoding="…" to be sure.',
                command="Pass --encoding to be sure.",
            ),
            stacklevel=3,
        )
        return guess
    return _guess_wide(content) or "utf-8"


def marked_encoding(content: bytes) -> str | None:
    """The encoding that the byte order mark at the beginning of a text stands for."""
    return next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)


def _guess(content: bytes) -> str | None:
    wide = _guess_wide(content)
    if wide is not None:
        return wide
    if _SEVERAL_BYTES.search(content) or _CONTROLS.search(content):
        return None
    try:
        content.decode("cp1252")
    except UnicodeDecodeError:
        return None
    return "cp1252"


def _guess_wide(content: bytes) -> str | None:
    """UTF-16 without a mark: of most characters of many languages one byte is 0."""
    for name, zeros in (("utf-16-le", content[1::2]), ("utf-16-be", content[::2])):
        if (
            len(content) % 2 == 0
            and zeros.count(0) > len(zeros) / 2
            and content.count(0) < len(content)
        ):
            return name
    return None


def bad_byte(error: UnicodeDecodeError) -> str:
    """The first byte that could not be decoded."""
    return f"byte 0x{error.object[error.start]:02x}"


def lines_of(text: str) -> list[str]:
    r"""The lines of a file: U+2028 and the like, at which `splitlines` cuts, belong to a text.

    >>> lines_of("a\u2028b\r\nc\n")
    ['a\u2028b', 'c', '']
    """
    return re.split(r"\r\n|\n|\r", text)


def parsed(text: str, what: str) -> Any:
    """The data of a JSON text; `what` names it in errors.

    >>> parsed('{"a": [1]}', "this")
    {'a': [1]}
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FileError(f"{what} is not JSON: {error.msg}.") from error
    except RecursionError as error:
        raise FileError(f"{what} is nested too deeply.") from error
    except ValueError as error:  # Python reads no integer of more than 4,300 digits
        raise FileError(f"{what} has a number of too many digits.") from error
