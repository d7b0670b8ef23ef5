"""Pictures from files, bytes and arrays, by Pillow: 8 bits of grey or of red, green and blue.

More bits are scaled to 8, and transparent pixels are drawn on white. Pixels without defined black
and white levels (32-bit integers, floats beyond 0 to 1) and profiled colours (LAB) are refused.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wherefrom.core.tensors import is_tensor
from wherefrom.errors import FileError, InputError, MissingExtra, TooLong, WherefromError

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"))
# Pillow has many other decoders; some run programs, and all are attack surface
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")

THUMBNAIL = 40  # pixels of the longer side, in a terminal


def is_image(source: Any) -> bool:
    """Whether the source is a picture, or a path that is named like one."""
    if isinstance(source, (str, Path)):
        return Path(source).suffix.lower() in SUFFIXES
    return hasattr(source, "convert") and hasattr(
        source, "getbands"
    )  # a Pillow image, without importing Pillow


def decoded(data: bytes, max_pixels: int) -> Any:
    """Decodes the bytes of a file with at most `max_pixels`."""
    _pillow()
    try:
        return _read(io.BytesIO(data), max_pixels)
    except WherefromError:
        raise
    except Exception as error:  # decoders of Pillow raise anything
        raise InputError(f"these bytes contain no image in {_ALLOWED}.") from error


def opened(source: Any) -> tuple[Any, str | None]:
    """Opens a picture, a path, an array or a tensor as a Pillow image; also returns a file name."""
    if isinstance(source, (str, Path)):
        _pillow()
        try:
            return _read(source), Path(source).name
        except FileNotFoundError as error:
            raise FileError(
                f'this model takes images, and there is no file "{source}": pass a picture, the '
                "path of one, an array or a tensor."
            ) from error
        except InputError as error:
            raise error.at(str(source)) from error
        except Exception as error:  # decoders of Pillow raise anything
            raise FileError(f"cannot read {source} as an image in {_ALLOWED}: {error}") from error
    if is_tensor(source):
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
    kind = getattr(source, "format", None)  # of an opened file, which may not be decoded yet
    if kind is not None and kind not in _OPENED:
        raise InputError(
            f"this picture is a {kind} file; only {_ALLOWED} files are read.",
            "If you trust it, pass picture.copy().",
            command="If you trust it, convert it.",
            page="Convert it.",
        )
    return _plain(source, _greys(source)), None


_OPENED = (*FORMATS, "MPO")  # a JPEG of several pictures, as phones write it
_ALLOWED = ", ".join(FORMATS[:-1]) + f" or {FORMATS[-1]}"


def _read(source: Any, max_pixels: int | None = None) -> Any:
    image = _pillow()
    from PIL.ImageOps import exif_transpose

    with image.open(source, formats=FORMATS) as file:
        if max_pixels is not None and file.width * file.height > max_pixels:  # not decoded yet
            raise TooLong(
                f"an image of {file.width} × {file.height} is too large: at most "
                f"{max_pixels:,} pixels are read."
            )
        picture = _plain(exif_transpose(file.copy()), _greys(file))
        picture.info[_FRAMES] = _frames(file)
        return picture


def _frames(image: Any) -> int:
    """The number of pictures in a file: frames of an animation, or pages."""
    try:
        return int(getattr(image, "n_frames", 1))
    except Exception:  # decoders of Pillow raise anything; the later pictures are damaged
        return 1


_FRAMES = "wherefrom frames"


def note_on_frames(picture: Any) -> tuple[str, ...]:
    """A caveat about a picture whose file has further ones."""
    frames = picture.info.get(_FRAMES) or _frames(picture)
    if frames == 1:
        return ()
    return (f"The file has {frames} pictures (frames or pages): only one of them is explained.",)


class _Greys(NamedTuple):
    """The encoding of grey values with more than 8 bits."""

    bits: int
    signed: bool = False
    white_is_zero: bool = False


_BITS_PER_SAMPLE, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339


def _greys(image: Any) -> _Greys:
    """The encoding of grey values, from the tags of a TIFF; a PNG has 16 bits."""
    tags = getattr(image, "tag_v2", {})
    bits = 32 if image.mode == "I" and getattr(image, "format", None) != "PNG" else 16
    return _Greys(
        int(tags.get(_BITS_PER_SAMPLE, (bits,))[0]),
        tags.get(_SAMPLE_FORMAT, (1,))[0] != 1,
        tags.get(_PHOTOMETRIC) == 0,
    )


def _plain(image: Any, greys: _Greys) -> Any:
    """Converts a picture of any mode to "L" or "RGB", with transparent pixels white."""
    mode = image.mode
    if mode in ("L", "RGB") and "transparency" not in image.info:
        return image
    if mode.startswith("I;16") or (mode == "I" and greys.bits <= 16 and not greys.signed):
        return _scaled(image, greys)
    if mode == "F":
        return _pillow().fromarray(_as_bytes(np.asarray(image)))
    if mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        if mode == "La":
            image = image.convert("LA")
        return _on_white(image.convert("RGBA"), "L" if mode in ("1", "L", "LA", "La") else "RGB")
    if mode == "1":
        return image.convert("L")
    if mode in ("P", "RGBX", "CMYK", "YCbCr"):
        return image.convert("RGB")
    lowest, highest = image.getextrema() if mode == "I" else (0, 0)
    what = f", from {lowest} to {highest}," if mode == "I" else ""
    raise InputError(
        f"the pixels of this image are {_MODES.get(mode, mode)}{what} and have no defined black "
        "and white levels. Convert it to 8 or 16 bits of grey, or to RGB."
    )


_MODES = {
    "I": "integers that are signed or have 32 bits",
    "LAB": "colours in LAB",
    "HSV": "colours in HSV",
}


def _scaled(image: Any, greys: _Greys) -> Any:
    """Grey values of up to 16 bits scaled to 8; the transparent value becomes white."""
    values = np.asarray(image).astype(np.int64)
    white = (1 << greys.bits) - 1
    if values.max(initial=0) > white:
        raise InputError(
            f"the grey values of this image go up to {values.max()}, beyond its {greys.bits} "
            "bits. Convert it to 8 or 16 bits of grey."
        )
    scaled = (values * 255 + white // 2) // white
    if greys.white_is_zero:
        scaled = 255 - scaled
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        scaled[values == clear] = 255
    return _pillow().fromarray(scaled.astype(np.uint8))


def _on_white(image: Any, mode: str) -> Any:
    white = _pillow().new("RGBA", image.size, "white")
    white.alpha_composite(image)
    return white.convert(mode)


def png_of(array: Any) -> str:
    """An array (H, W) or (H, W, channels) as a PNG in base64; grey unless it has three channels."""
    shown = array if array.ndim == 2 or array.shape[2] == 3 else array[..., 0]
    file = io.BytesIO()
    _pillow().fromarray(_as_bytes(shown)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def thumbnail_of(array: Any) -> dict[str, Any]:
    """A small grey version of an array (H, W) or (H, W, channels), for terminals."""
    image = _pillow()
    grey = image.open(io.BytesIO(base64.b64decode(png_of(array)))).convert("L")
    grey.thumbnail((THUMBNAIL, THUMBNAIL))
    width, height = grey.size
    return {
        "width": width,
        "height": height,
        "grey": base64.b64encode(grey.tobytes()).decode("ascii"),
    }


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
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * 255
    if array.dtype == np.uint16:
        return ((array.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    if not np.issubdtype(array.dtype, np.floating):
        span = (
            f" from {array.min()} to {array.max()}"
            if np.issubdtype(array.dtype, np.integer)
            else ""
        )
        raise InputError(
            f"an image array must be uint8, uint16, bool or float, got {array.dtype}{span}.",
            "If its values are bytes, pass array.astype(np.uint8).",
            command="",
        )
    if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
        raise InputError(
            "an image array of floats must hold values from 0 to 1, "
            f"got {array.min():.3g} to {array.max():.3g}. If they go to 255, divide them by 255."
        )
    return (array.astype(np.float64) * 255).round().astype(np.uint8)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("Pillow", "vision", "reading images") from error
    return Image
