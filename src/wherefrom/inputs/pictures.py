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
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")  # some others start programs


def is_image(given: Any) -> bool:
    """Whether something is a picture, or the path of one."""
    if isinstance(given, (str, Path)):
        return Path(given).suffix.lower() in SUFFIXES
    return hasattr(given, "convert") and hasattr(given, "getbands")  # Pillow's, unimported


def decoded(data: bytes, most: int) -> Any:
    """The picture in the bytes of a file, of at most so many pixels."""
    image = _pillow()
    try:
        from PIL.ImageOps import exif_transpose

        with image.open(io.BytesIO(data), formats=_FORMATS) as file:
            if file.width * file.height > most:  # before anything is unpacked
                raise TooLong(
                    f"an image of {file.width} × {file.height} is too large: at most "
                    f"{most:,} pixels are read."
                )
            return exif_transpose(file.copy())
    except TooLong:
        raise
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
        raise InputError("these bytes are no image that can be read.") from error


def opened(given: Any) -> tuple[Any, str | None]:
    """A Pillow image of what was given, and its name."""
    image = _pillow()
    if isinstance(given, (str, Path)):
        try:
            from PIL.ImageOps import exif_transpose

            with image.open(given) as file:
                return exif_transpose(file.copy()), Path(given).name
        except FileNotFoundError as error:
            raise FileError(
                f"this model takes images, and there is no file {given}: give a picture, the path "
                "of one, an array or a tensor."
            ) from error
        except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
            raise FileError(f"cannot read {given} as an image: {error}") from error
    if isinstance(given, Tensor):
        given = given.cpu().numpy()
        given = given.transpose(1, 2, 0) if given.ndim == 3 and given.shape[0] in (1, 3) else given
    if isinstance(given, np.ndarray):
        return image.fromarray(_bytes(given)), None
    if not is_image(given):
        raise InputError(
            f"a {type(given).__name__} is no image: give a picture, a path, an array or a tensor."
        )
    return given, None


def png_of(array: Any) -> str:
    """An array (H, W) or (H, W, channels) as a PNG in base64; all but three channels as grey."""
    shown = array if array.ndim == 2 or array.shape[2] == 3 else array[..., 0]
    made = io.BytesIO()
    _pillow().fromarray(_bytes(shown)).save(made, "PNG")
    return base64.b64encode(made.getvalue()).decode("ascii")


def _bytes(array: Any) -> Any:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.ndim not in (2, 3) or 0 in array.shape or (array.ndim == 3 and array.shape[2] != 3):
        raise InputError(
            f"an image array of shape {array.shape}: give (height, width) or (height, width, 3)."
        )
    if array.dtype == np.uint8:
        return array
    if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
        raise InputError(
            "an image array of numbers must have bytes, or values from 0 to 1; "
            f"this one has {array.min():.3g} to {array.max():.3g}."
        )
    return (array * 255).round().astype(np.uint8)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("Pillow", "vision", "reading images") from error
    return Image
