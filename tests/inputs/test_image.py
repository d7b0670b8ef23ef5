"""What may be passed as an image, what may not, and that it is the same in every form."""

import io
import logging
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from benchmarks.tiny import model as tiny
from tests.helpers import ViTProcessor
from tests.modules import Plain
from wherefrom import Explainer, load
from wherefrom.core.runner import ModelRunner
from wherefrom.errors import FileError, InputError, TooLong
from wherefrom.inputs.image import ImageReader
from wherefrom.inputs.pictures import decoded, is_image, opened


@pytest.fixture(scope="module")
def model():
    return tiny("vit", "see").float()


@pytest.fixture(scope="module")
def processor():
    return ViTProcessor(
        size={"height": 32, "width": 32}, image_mean=[0.5] * 3, image_std=[0.25] * 3
    )


@pytest.fixture(scope="module")
def explainer(model, processor):
    return Explainer(model, processor=processor)


@pytest.fixture(scope="module")
def pixels():
    """Bytes (32, 32, 3): no resizing comes between."""
    return np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)


def forms(pixels, folder):
    path = folder / "picture.png"
    Image.fromarray(pixels).save(path)
    bytes_ = torch.from_numpy(pixels).permute(2, 0, 1)
    return {
        "picture": Image.fromarray(pixels),
        "RGBA": Image.fromarray(pixels).convert("RGBA"),
        "path": path,
        "name": str(path),
        "bytes": pixels,
        "numbers": pixels / 255.0,
        "float32": (pixels / 255.0).astype(np.float32),
        "tensor of bytes": bytes_,
        "tensor as the model takes it": (bytes_ / 255 - 0.5) / 0.25,
        "in double precision": (bytes_.double() / 255 - 0.5) / 0.25,
    }


def test_every_form_is_the_same_image(explainer, pixels, tmp_path):
    sources = forms(pixels, tmp_path)
    expected = explainer(sources["picture"])
    assert len(expected) == 16
    for name, source in sources.items():
        explanation = explainer(source)
        np.testing.assert_allclose(
            explanation.scores, expected.scores, rtol=1e-4, atol=1e-6, err_msg=name
        )
        named = "picture.png" if name in ("path", "name") else None
        assert explanation.scene["name"] == named
    together = explainer(list(sources.values()))
    assert len(together) == len(sources)
    for explanation in together:
        np.testing.assert_allclose(explanation.scores, expected.scores, rtol=1e-4, atol=1e-6)


def test_grey_and_palette_pictures_are_read_as_colours(explainer, pixels, tmp_path):
    grey = Image.fromarray(pixels[..., 0])
    same = Image.fromarray(np.repeat(pixels[..., :1], 3, 2))
    expected = explainer(same).scores
    palette = grey.convert("P")
    for sources in (grey, pixels[..., 0], pixels[..., :1], palette, grey.convert("LA")):
        np.testing.assert_array_equal(explainer(sources).scores, expected)


def test_a_batch_tensor_is_a_list(explainer, pixels):
    both = torch.from_numpy(np.stack([pixels, pixels[::-1]])).permute(0, 3, 1, 2)
    explanations = explainer(both)
    assert len(explanations) == 2
    np.testing.assert_allclose(
        explanations[1].scores, explainer(both[1]).scores, rtol=1e-4, atol=1e-6
    )
    assert len(explainer(both.float() / 255)) == 2


def test_large_and_small_pictures_in_one_list(explainer, pixels):
    sizes = [(32, 32), (50, 20), (7, 90)]
    explanations = explainer([Image.fromarray(pixels).resize(size) for size in sizes])
    assert [explanation.scene["width"] for explanation in explanations] == [32, 32, 32]


class AnySize(Plain):
    """Patches of 8 × 8 of an image of any size, one channel, mean of all places."""

    def __init__(self):
        super().__init__()
        self.cut, self.qkv, self.head = nn.Conv2d(1, 6, 8, 8), nn.Linear(6, 18), nn.Linear(6, 3)
        self.shaken()

    def forward(self, pixel_values):
        x = self.cut(pixel_values).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.head((x + (q @ k.mT).softmax(-1) @ v).mean(1))


def test_images_of_several_shapes_in_one_list(rng):
    explainer = Explainer(AnySize())
    shapes = [(16, 32), (32, 16), (16, 32), (24, 24), (64, 8)]  # 8, 8, 8, 9 and 8 patches
    sources = [torch.randn(1, *shape, generator=rng, dtype=torch.float64) for shape in shapes]
    for image, explanation in zip(sources, explainer(sources, target=0), strict=True):
        alone = explainer(image, target=0)
        assert explanation.units == alone.units
        assert (explanation.scene["height"], explanation.scene["width"]) == image.shape[1:]
        np.testing.assert_allclose(explanation.scores, alone.scores, rtol=1e-6)
        assert explanation.ledger.relative < 1e-10
    flat = explainer(sources[0][0], target=0)  # (height, width)
    np.testing.assert_array_equal(flat.scores, explainer(sources[0], target=0).scores)


def test_units_have_their_boxes(explainer, pixels):
    explanation = explainer(pixels)
    assert [unit.box for unit in explanation.units[:5]] == [
        (0, 0, 8, 8), (8, 0, 16, 8), (16, 0, 24, 8), (24, 0, 32, 8), (0, 8, 8, 16),
    ]  # fmt: skip
    assert explainer(pixels, units="pixels").units[33].box == (1, 1, 2, 2)
    tens = explainer(pixels, units=10).units  # the last of a row is what is left
    assert [unit.box for unit in tens[2:5]] == [(20, 0, 30, 10), (30, 0, 32, 10), (0, 10, 10, 20)]
    assert tens[-1].box == (30, 30, 32, 32)
    assert len(explainer(pixels, units=1000)) == 1


BAD = {
    "empty list": ([], InputError, "list of images is empty"),
    "None": (None, InputError, "cannot read a NoneType as an image"),
    "number": (3, InputError, "cannot read a int as an image"),
    "NaN": (torch.full((3, 32, 32), torch.nan), InputError, "NaN"),
    "infinite": (torch.full((3, 32, 32), torch.inf), InputError, "infinite"),
    "NaN in numpy": (np.full((32, 32), np.nan), InputError, "values from 0 to 1"),
    "beyond one": (np.full((32, 32), 2.5), InputError, "values from 0 to 1, got 2.5 to 2.5"),
    "one axis": (torch.zeros(5), InputError, r"shape \(5,\)"),
    "five axes": (torch.zeros(1, 1, 3, 4, 4), InputError, r"shape \(1, 1, 3, 4, 4\)"),
    "nothing": (torch.zeros(3, 0, 4), InputError, r"shape \(3, 0, 4\)"),
    "nothing in numpy": (np.zeros((0, 32)), InputError, r"got shape \(0, 32\)"),
    "no sample": (torch.zeros(0, 3, 32, 32), InputError, "nothing to explain"),
    "four channels": (torch.zeros(4, 32, 32), InputError, r"not take an image .*\(4, 32, 32\)"),
    "wrong size": (torch.zeros(3, 40, 32), InputError, r"not take an image .*\(3, 40, 32\)"),
    "channels first": (np.zeros((3, 32, 32)), InputError, r"must have the shape \(height, width\)"),
    "four in numpy": (np.zeros((32, 32, 4)), InputError, r"must have the shape \(height, width\)"),
    "missing": ("nowhere.png", FileError, 'takes images.*no file "nowhere.png"'),
    "a text": ("hello", FileError, 'takes images.*no file "hello"'),
    "a text in a list": (["hello"], FileError, 'takes images.*no file "hello"'),
    "no text": ("", FileError, "image"),
}


@pytest.mark.parametrize(("sources", "kind", "says"), list(BAD.values()), ids=list(BAD))
def test_what_is_no_image(sources, kind, says, explainer):
    with pytest.raises(kind, match=says):
        explainer(sources)


@pytest.mark.parametrize("units", [4, "pixels"])
@pytest.mark.parametrize("shape", [(4, 32, 32), (3, 40, 32)])
def test_an_image_that_the_model_does_not_take_whatever_the_units(units, shape, explainer):
    with pytest.raises(InputError, match="does not take an image of shape"):
        explainer(torch.zeros(shape), units=units)


def test_files_that_are_no_pictures(explainer, tmp_path):
    text, cut = tmp_path / "text.png", tmp_path / "cut.png"
    text.write_text("hello")
    Image.fromarray(np.zeros((64, 64), np.uint8)).save(cut)
    cut.write_bytes(cut.read_bytes()[:60])
    for path in (text, cut, tmp_path):
        with pytest.raises(FileError, match=r"cannot read .* as an image"):
            explainer(path)


@pytest.mark.parametrize("kind", ["PPM", "ICO", "TGA", "PCX"])
def test_other_formats_are_refused_whatever_the_name(kind, explainer, tmp_path):
    path = tmp_path / "picture.png"
    Image.new("RGB", (32, 32), "red").save(path, kind)
    with pytest.raises(FileError, match=r"cannot read .* in PNG, JPEG, BMP, GIF, WEBP or TIFF"):
        explainer(path)
    with pytest.raises(InputError, match="contain no image in PNG, JPEG"):
        decoded(path.read_bytes(), 1 << 20)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF"])
def test_usual_formats_are_read_alike(kind, tmp_path):
    path = tmp_path / "picture"
    Image.new("RGB", (32, 32), "white").save(path, kind)
    for image in (opened(path)[0], decoded(path.read_bytes(), 32 * 32)):
        assert image.size == (32, 32)
        assert np.asarray(image.convert("L")).min() > 250
    with pytest.raises(TooLong, match="32 × 32 is too large: at most 1,023 pixels"):
        decoded(path.read_bytes(), 32 * 32 - 1)


@pytest.mark.parametrize("units", ["words", 0, 2.5, True, [4]])
def test_units_that_are_none(units, explainer, pixels):
    with pytest.raises(InputError, match='units must be "patches", "pixels" or a positive integer'):
        explainer(pixels, units=units)


def test_a_picture_needs_a_processor(model, pixels):
    with pytest.raises(InputError, match="no image processor"):
        Explainer(model)(pixels)


def test_a_text_model_takes_no_image(bert, wordpiece, pixels, tmp_path):
    reads = Explainer(bert, wordpiece)
    path = tmp_path / "picture.png"
    Image.fromarray(pixels).save(path)
    for sources in (Image.fromarray(pixels), path, [path], [Image.fromarray(pixels)]):
        with pytest.raises(InputError, match="reads texts"):
            reads(sources)
    for sources in (str(path), [str(path)]):
        with pytest.raises(InputError, match=r"reads texts, and .*picture.png is an image"):
            reads(sources)
    assert len(reads("the good picture.png"))  # a text that speaks of one
    with pytest.raises(InputError, match="units apply only to images"):
        reads("good", units="patches")


def test_what_is_told_to_be_an_image(tmp_path):
    assert is_image("a.PNG")
    assert is_image(Path("a.jpeg"))
    assert is_image(Image.new("L", (2, 2)))
    assert not is_image("a.txt")
    assert not is_image(3)


def test_erased_units_become_zero_or_the_mean_or_a_blur(model, pixels):
    reader = ImageReader(ModelRunner(model))
    item = reader.read(torch.from_numpy(pixels).permute(2, 0, 1).float())
    present = np.ones((2, 16), bool)
    present[0, 5] = False
    present[1] = False

    def erased(item, blank):
        return reader.collate(reader.erased(item, present, blank))["pixel_values"]

    for blank in (None, "mean", "blur"):
        changed = (erased(item, blank)[0] != item.pixels).any(0)
        assert changed[8:16, 8:16].float().mean() > 0.9
        assert not changed[:8].any()
        assert not changed[16:].any()
        assert not changed[:, :8].any()
    zero, mean, blur = (erased(item, blank)[1] for blank in ("zero", "mean", "blur"))
    assert not zero.any()
    torch.testing.assert_close(mean[:, 0, 0], item.pixels.mean((1, 2)))
    assert 0 < float(blur.std()) < 0.5 * float(item.pixels.std())
    flat = reader.read(torch.full((3, 32, 32), 0.7))
    torch.testing.assert_close(erased(flat, "blur")[1], flat.pixels)
    with pytest.raises(InputError, match='no replacement "unk"'):
        reader.erased(item, present, "unk")


def test_loading_says_nothing_to_the_user(model, processor, pixels, tmp_path, monkeypatch):
    model.save_pretrained(tmp_path / "vit")
    processor.save_pretrained(tmp_path / "vit")
    shown = io.StringIO()
    for handler in logging.getLogger("transformers").handlers:
        monkeypatch.setattr(handler, "stream", shown, raising=False)
    with redirect_stdout(shown), redirect_stderr(shown):
        explanation = load(tmp_path / "vit")(pixels)
    assert shown.getvalue() == ""
    assert len(explanation) == 16
    assert explanation.ledger.relative < 1e-3


def test_a_photograph_is_turned_as_its_camera_says(tmp_path):
    picture = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4) * 20)
    exif = picture.getexif()
    exif[0x0112] = 6  # to be turned by a quarter
    picture.save(tmp_path / "turned.png", exif=exif)
    image, _ = opened(tmp_path / "turned.png")
    np.testing.assert_array_equal(np.asarray(image), np.rot90(np.asarray(picture), -1))


def test_layouts_of_many_image_sizes_do_not_pile_up(monkeypatch):
    from wherefrom.inputs import image as image_module

    monkeypatch.setattr(image_module, "_GRIDS", 2)
    runner = ModelRunner(nn.Identity(), lambda model, tensors: tensors["pixel_values"].flatten(1))
    reader = image_module.ImageReader(runner, None, 4)
    pictures = [image_module.Picture(torch.zeros(1, size, size)) for size in (4, 8, 12)]
    grids = [reader.grid(picture) for picture in pictures]
    assert [layout.units for layout, _ in grids] == [1, 4, 9]
    assert list(reader._grids) == [(1, 8, 8), (1, 12, 12)]
