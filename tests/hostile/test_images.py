"""An image is read as it looks, or refused by name: never as something else in silence."""

import io
import random
import subprocess
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from tests.hostile.images import GREYS, READ, REFUSED, ink, saved, wide
from wherefrom import load
from wherefrom.errors import FileError, InputError, WherefromError
from wherefrom.inputs.graph import Graph
from wherefrom.inputs.pictures import decoded, opened

MANY = 1 << 20


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def check_greys(image):
    assert image.mode in ("L", "RGB")
    levels = np.asarray(image.convert("L")).astype(int)
    assert np.abs(levels - GREYS).max() <= 1  # rounding


@pytest.mark.parametrize("name", READ)
def test_an_image_is_read_as_it_looks(name, tmp_path):
    path = tmp_path / "picture.png"  # whatever its name says
    path.write_bytes(READ[name])
    check_greys(opened(path)[0])
    check_greys(decoded(READ[name], MANY))
    with Image.open(path) as picture:
        check_greys(opened(picture)[0])


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_rightly_is_refused_by_name(name, tmp_path, monkeypatch):
    content, message = REFUSED[name]
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    for program in ("Popen", "run", "check_call", "check_output"):
        monkeypatch.setattr(subprocess, program, lambda *a, **k: pytest.fail("a program started"))
    with pytest.raises(WherefromError, match=message) as error:
        opened(path)
    assert "picture.png" in str(error.value)
    with pytest.raises(InputError, match=message):
        decoded(content, MANY)


def test_a_picture_of_another_format_is_refused_before_it_is_decoded(monkeypatch):
    with Image.open(io.BytesIO(REFUSED["EPS"][0])) as picture:
        monkeypatch.setattr(type(picture), "load", lambda *a, **k: pytest.fail("it is decoded"))
        with pytest.raises(InputError, match="EPS file; only PNG"):
            opened(picture)


@pytest.mark.parametrize("mode", ["I", "HSV", "LAB"])
def test_a_picture_without_fixed_black_and_white_is_refused(mode):
    picture = Image.new(mode, (4, 4), 300 if mode == "I" else None)
    with pytest.raises(InputError, match="from 300 to 300" if mode == "I" else f"in {mode}"):
        opened(picture)


def test_pictures_in_memory_are_read_as_they_look():
    for picture in (wide(), ink(), ink("LA"), ink("RGBa")):
        check_greys(opened(picture)[0])
    check_greys(opened(Image.fromarray(GREYS.astype(np.float32) / 255))[0])
    black_and_white = np.asarray(opened(Image.fromarray(GREYS > 127))[0])
    np.testing.assert_array_equal(black_and_white, (GREYS > 127) * 255)


def test_a_grey_of_16_bits_may_mean_transparent():
    content = saved(wide(), "PNG", transparency=0)
    expected = np.where(GREYS == 0, 255, GREYS)
    np.testing.assert_array_equal(np.asarray(decoded(content, MANY)), expected)


ARRAYS = {
    "uint8": GREYS,
    "uint16": GREYS.astype(np.uint16) * 257,
    "float16": (GREYS / 255).astype(np.float16),
    "float32": (GREYS / 255).astype(np.float32),
    "float64": GREYS / 255,
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_scaled_by_its_type(name):
    check_greys(opened(ARRAYS[name])[0])


def test_tensors_of_integers_are_scaled_by_their_type(digits):
    expected = digits(np.kron(GREYS, np.ones((2, 2), np.uint8))).scores
    bytes_ = torch.from_numpy(np.kron(GREYS, np.ones((2, 2), np.uint8)))[None]
    np.testing.assert_array_equal(digits(bytes_).scores, expected)
    np.testing.assert_array_equal(digits((bytes_.int() * 257).to(torch.uint16)).scores, expected)
    with pytest.raises(InputError, match="got int64 from 0 to 255"):
        digits(bytes_.long())


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (GREYS.astype(np.int32), r"got int32 from 0 to 255.*astype\(np.uint8\)"),
        (GREYS.astype(np.int64) // 255, "got int64 from 0 to 1"),
        (GREYS.astype(np.uint32), "got uint32 from 0 to 255"),
        (GREYS.astype(np.float32), "from 0 to 1, got 0 to 255. If they go to 255, divide"),
        (GREYS / 255 - 0.1, "from 0 to 1, got -0.1 to 0.9"),
        (np.full((4, 4), np.nan), "from 0 to 1, got nan"),
        (GREYS.astype(complex), "got complex128"),
        (GREYS.astype(object), "one axis, got shape"),
        (GREYS.astype("U3"), "one axis, got shape"),
    ],
)
def test_an_array_of_unclear_scale_is_refused(array, message, digits):
    with pytest.raises(InputError, match=message):
        digits(array)


def test_bytes_as_floats_are_not_taken_as_normalised_pixels(digits):
    pixels = torch.full((1, 28, 28), 200.0)
    with pytest.raises(InputError, match=r"normalised to at most .*, got 200\. .* uint8"):
        digits(pixels)
    assert len(digits(pixels / 100)) > 1


def test_superpixels_of_ink_on_transparency_show_the_ink():
    image, _ = opened(ink())
    graph = Graph.superpixels(np.asarray(image.convert("L")), 8)
    assert graph.x[:, 0].max() - graph.x[:, 0].min() > 0.5


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF"])
def test_a_damaged_file_is_an_image_or_an_error_of_the_library(kind, tmp_path):
    content = saved(Image.fromarray(GREYS).convert("RGB"), kind)
    chance = random.Random(kind)
    path, messages = tmp_path / "picture", set()
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        del damaged[chance.choice([len(damaged), chance.randrange(len(damaged))]) :]
        path.write_bytes(damaged)
        for read in (partial(opened, path), partial(decoded, bytes(damaged), MANY)):
            try:
                image = read()
            except (FileError, InputError) as error:
                messages.add(str(error))
            else:
                image = image[0] if isinstance(image, tuple) else image
                assert image.mode in ("L", "RGB")
    assert any(str(path) in message for message in messages)
