"""Image files that are easily read wrongly, each with the grey values it shows on white paper."""

import io

import numpy as np
from PIL import Image

# rows from black to white, the same in every file
GREYS = np.repeat(np.linspace(0, 255, 16).round().astype(np.uint8)[:, None], 16, 1)


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def tiff(image, **tags):
    """A TIFF; tags by number."""
    numbered = {int(number.strip("_")): value for number, value in tags.items()}
    return saved(image, "TIFF", tiffinfo=numbered)


def wide(dtype=np.uint16, scale=257):
    return Image.fromarray((GREYS.astype(np.int64) * scale).astype(dtype))


def inverted():
    return Image.fromarray(65535 - GREYS.astype(np.uint16) * 257)


def ink(mode="RGBA"):
    """Black ink whose opacity makes the greys, on a background that is transparent black."""
    pixels = np.zeros((16, 16, 4), np.uint8)
    pixels[..., 3] = 255 - GREYS
    return Image.fromarray(pixels).convert(mode)


def clear_palette():
    """A palette of blacks that are more and more transparent."""
    indices = np.repeat(np.arange(16, dtype=np.uint8)[:, None], 16, 1)
    image = Image.fromarray(indices).convert("P")
    image.putdata(indices.ravel().tolist())
    image.putpalette([0] * 48)
    return saved(image, "PNG", transparency=bytes((255 - GREYS[:, 0]).tolist()))


READ = {
    "8 bits": saved(Image.fromarray(GREYS), "PNG"),
    "PNG of 16 bits": saved(wide(), "PNG"),
    "TIFF of 16 bits": saved(wide(), "TIFF"),
    "TIFF of 16 bits, big-endian": saved(wide(">u2"), "TIFF"),
    "TIFF of 16 bits, white is zero": tiff(inverted(), _262=0),
    "TIFF of 8 bits, white is zero": tiff(Image.fromarray(GREYS), _262=0),
    "TIFF of floats": saved(Image.fromarray(GREYS.astype(np.float32) / 255), "TIFF"),
    "ink on transparency, PNG": saved(ink(), "PNG"),
    "ink on transparency, grey": saved(ink("LA"), "PNG"),
    "ink on transparency, TIFF": saved(ink(), "TIFF"),
    "ink on transparency, WEBP": saved(ink(), "WEBP", lossless=True, exact=True),
    "ink on transparency, palette": clear_palette(),
    "CMYK TIFF": saved(Image.fromarray(GREYS).convert("RGB").convert("CMYK"), "TIFF"),
    "YCbCr TIFF": saved(Image.fromarray(GREYS).convert("RGB").convert("YCbCr"), "TIFF"),
    "RGB BMP": saved(Image.fromarray(GREYS).convert("RGB"), "BMP"),
}

REFUSED = {
    "TIFF of 32 bits": (saved(wide(np.int32, 100), "TIFF"), "signed or have 32 bits, from 0 to"),
    "TIFF of signed 16 bits": (
        tiff(wide(np.uint16, 100), _339=2), "signed or have 32 bits, from 0 to 25500"
    ),
    "TIFF of floats to 255": (
        saved(Image.fromarray(GREYS.astype(np.float32)), "TIFF"), "from 0 to 1, got 0 to 255"
    ),
    "TIFF of floats with NaN": (
        saved(Image.fromarray(np.full((4, 4), np.nan, np.float32)), "TIFF"), "got nan"
    ),
    "LAB TIFF": (saved(Image.new("LAB", (16, 16)), "TIFF"), "colours in LAB"),
    "EPS": (saved(Image.fromarray(GREYS), "EPS"), "PNG, JPEG, BMP, GIF, WEBP or TIFF"),
    "PPM": (saved(Image.fromarray(GREYS), "PPM"), "PNG, JPEG, BMP, GIF, WEBP or TIFF"),
    "SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "PNG, JPEG, BMP, GIF, WEBP or TIFF"),
    "empty": (b"", "PNG, JPEG, BMP, GIF, WEBP or TIFF"),
}  # fmt: skip
