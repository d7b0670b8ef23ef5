"""Reads text files: gzipped or not, in UTF-8, UTF-16 or another encoding."""

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
"""Text unpacks to a few times its size; a higher ratio suggests a decompression bomb."""
FREE_SIZE = 64 << 20
"""Up to this size in bytes, any ratio is accepted."""
_CHUNK = 1 << 20
_MARKS = {  # byte order marks; UTF-32 comes first, since its mark begins like that of UTF-16
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
                    f"{limit >> 20:,} MB: it may be a decompression bomb. If you trust it, "
                    "unpack it and pass the file inside."
                )
    return bytes(content)


def decoded(path: Path | str, content: bytes, encoding: str | None = None) -> str:
    """Bytes as text, without a byte order mark; an error names the line that cannot be decoded.

    Without `encoding` it is detected; a guess gives a warning.
    """
    name = encoding_of(path, content, encoding)
    try:
        return content.decode(name).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        kind = "UTF-8" if name.startswith("utf-8") else name
        raise FileError(
            f"{path}, line {line} is not {kind}: {bad_byte(error)}.",
            'Pass its encoding (encoding="…"), or save it as UTF-8.',
            command="Pass its encoding (--encoding), or save it as UTF-8.",
        ) from error


def encoding_of(path: Path | str, content: bytes, encoding: str | None = None) -> str:
    """The encoding of a text: the requested one, its byte order mark, UTF-8, or a guess.

    Text that is not UTF-8 counts as UTF-16 if most of every other byte is 0, and as Windows-1252, a
    superset of Latin-1, if it has no multi-byte UTF-8 character. Else it counts as damaged UTF-8.
    """
    if encoding is not None:
        try:
            codec = codecs.lookup(encoding)
            # some codecs are not text encodings, or cannot mark invalid bytes
            "a".encode(codec.name).decode(codec.name, "surrogateescape")
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
    """The encoding that a text's byte order mark declares."""
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
    """UTF-16 without a mark: in many languages, one byte of most characters is 0."""
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
    r"""The lines of a file; unlike `splitlines`, does not split at U+2028 and similar characters.

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
    except ValueError as error:  # Python parses no integer of more than 4,300 digits
        raise FileError(f"{what} has a number with too many digits.") from error
