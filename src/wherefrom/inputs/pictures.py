"""Pictures from files, bytes and arrays, by Pillow."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from wherefrom.errors import FileError, InputError, MissingExtra, TooLong

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"))
# Pillow reads many others: some run programs, and all are code that a file can attack
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")


def is_image(source: Any) -> bool:
    """Whether something is a picture, or is named like a file of one."""
    if isinstance(source, (str, Path)):
        return Path(source).suffix.lower() in SUFFIXES
    return hasattr(source, "convert") and hasattr(source, "getbands")  # Pillow's, unimported


def decoded(data: bytes, max_pixels: int) -> Any:
    """The picture in the bytes of a file, of at most so many pixels."""
    try:
        return _read(io.BytesIO(data), max_pixels)
    except TooLong:
        raise
    except _unreadable() as error:
        raise InputError(f"these bytes contain no image in {_ALLOWED}.") from error


def opened(source: Any) -> tuple[Any, str | None]:
    """A Pillow image of a picture, the path of one, an array or a tensor; and its file name."""
    if isinstance(source, (str, Path)):
        try:
            return _read(source), Path(source).name
        except FileNotFoundError as error:
            raise FileError(
                f"this model takes images, and there is no file {source}: pass a picture, the "
                "path of one, an array or a tensor."
            ) from error
        except _unreadable() as error:
            raise FileError(f"cannot read {source} as an image in {_ALLOWED}: {error}") from error
    if isinstance(source, Tensor):
        array = source.cpu().numpy()
        channels_first = array.ndim == 3 and array.shape[0] in (1, 3)
        source = array.transpose(1, 2, 0) if channels_first else array
    if isinstance(source, np.ndarray):
        return _pillow().fromarray(_as_bytes(source)), None
    if not is_image(source):
        raise InputError(
            f"cannot read a {type(source).__name__} as an image: pass a picture, a path, an "
            "array or a tensor."
        )
    return source, None


_ALLOWED = ", ".join(FORMATS[:-1]) + f" or {FORMATS[-1]}"


def _read(source: Any, max_pixels: int | None = None) -> Any:
    image = _pillow()
    from PIL.ImageOps import exif_transpose

    with image.open(source, formats=FORMATS) as file:
        if max_pixels is not None and file.width * file.height > max_pixels:  # not yet unpacked
            raise TooLong(
                f"an image of {file.width} × {file.height} is too large: at most "
                f"{max_pixels:,} pixels are read."
            )
        return exif_transpose(file.copy())


def _unreadable() -> tuple[type[Exception], ...]:
    """What Pillow raises for a file that it cannot read."""
    return (OSError, SyntaxError, ValueError, _pillow().DecompressionBombError)


def png_of(array: Any) -> str:
    """An array (H, W) or (H, W, channels) as a PNG in base64; all but three channels as grey."""
    shown = array if array.ndim == 2 or array.shape[2] == 3 else array[..., 0]
    file = io.BytesIO()
    _pillow().fromarray(_as_bytes(shown)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def _as_bytes(array: Any) -> Any:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.ndim not in (2, 3) or 0 in array.shape or (array.ndim == 3 and array.shape[2] != 3):
        raise InputError(
            "an image array must have the shape (height, width) or (height, width, 3), "
            f"got shape {array.shape}."
        )
    if array.dtype == np.uint8:
        return array
    if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
        raise InputError(
            "an image array must hold bytes, or values from 0 to 1, "
            f"got {array.min():.3g} to {array.max():.3g}."
        )
    return (array * 255).round().astype(np.uint8)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("Pillow", "vision", "reading images") from error
    return Image
