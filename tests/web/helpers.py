"""What the tests of the page share: request bodies, images, errors, and where the browser is."""

import base64
import io
import shutil

import pytest
from PIL import Image

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
BROWSER = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="*** NO BROWSER TEST WAS RUN: install chromium and chromium-driver ***",
    ),
]
"""The marks of a module whose tests need a browser."""

HOME = "http://127.0.0.1:8765"
TEXT = "a gorgeous, witty but dull film."
JSON = {"content-type": "application/json"}

# Written out, not imported: a header that gets lost must make a test fail.
PAGE_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
}


def body(**changes):
    """The body of a request about a sentence."""
    return {"model": "sentiment", "text": TEXT, **changes}


def bar_image(size=(28, 28), kind="PNG"):
    """The base64 content of an image file that shows a bar."""
    image = Image.new("L", size, 0)
    image.paste(255, (size[0] // 3, 2, size[0] // 2, size[1] - 2))
    file = io.BytesIO()
    image.save(file, kind)
    return base64.b64encode(file.getvalue()).decode("ascii")


def error_kind(response, status, *words):
    """The kind of an error response, once its status and its message are checked."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"kind", "message"}
    assert all(word in error["message"] for word in words), error["message"]
    return error["kind"]
