"""What a reader leaves out of an input is on record in the explanation, wherever it is shown."""

import io
import json
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.tiny import model as tiny
from tests.helpers import ViTProcessor
from tests.inputs.test_signal import Sound
from wherefrom import Explainer, Explanation, evaluate, load
from wherefrom.inputs.image import _note_on_crop
from wherefrom.inputs.pictures import decoded
from wherefrom.runs.rows import explained_row

FRAMES = [np.full((32, 32, 3), level, dtype=np.uint8) for level in (0, 120, 250)]


@pytest.fixture(scope="module")
def seeing():
    processor = ViTProcessor(
        size={"height": 32, "width": 32}, image_mean=[0.5] * 3, image_std=[0.25] * 3
    )
    return Explainer(tiny("vit", "see").float(), processor=processor)


def animation(kind, count):
    first, *others = [Image.fromarray(frame) for frame in FRAMES[:count]]
    file = io.BytesIO()
    first.save(file, kind, save_all=True, append_images=others)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP", "PNG"])
def test_further_frames_and_pages_are_on_record(seeing, kind, tmp_path):
    path = tmp_path / f"a.{kind.lower()}"
    path.write_bytes(animation(kind, 3))
    sources = [path, decoded(path.read_bytes(), 10_000)]
    with Image.open(path) as opened:
        for explanation in [*map(seeing, sources), seeing(opened)]:
            assert explanation.warnings == (
                "The file has 3 pictures (frames or pages): only one of them is explained.",
            )
    path.write_bytes(animation(kind, 1))
    assert seeing(path).warnings == ()


def test_a_damaged_later_frame_is_no_error(seeing, tmp_path):
    content = animation("GIF", 3)
    (tmp_path / "a.gif").write_bytes(content[: len(content) - 8])
    assert len(seeing(tmp_path / "a.gif")) == 16


CROPS = {  # processor, picture, kept pixels
    "shortest edge": ({"shortest_edge": 32}, (64, 32), 32 * 32 / (64 * 32)),
    "both edges": ({"height": 40, "width": 36}, (500, 10), 32 * 32 / (40 * 36)),
    "square": ({"shortest_edge": 32}, (64, 64), 1),
    "by rounding": ({"shortest_edge": 32}, (101, 100), 1),
}


@pytest.mark.parametrize(("size", "picture", "kept"), list(CROPS.values()), ids=list(CROPS))
def test_what_a_processor_cuts_off_is_on_record(size, picture, kept):
    processor = ViTProcessor(size=size)
    processor.do_center_crop, processor.crop_size = True, {"height": 32, "width": 32}
    notes = _note_on_crop(processor, picture)
    expected = f"{100 * (1 - kept):.0f} % of it are not part"
    assert [expected in note for note in notes] == [True] * (kept < 1)
    processor.do_center_crop = False
    assert _note_on_crop(processor, picture) == ()


class Recorder:
    """A processor of sound that keeps the first second, or pads to it."""

    sampling_rate = 1000

    def __call__(self, wave, **options):
        kept = np.zeros(1000, dtype=np.float32)
        kept[: len(wave)] = wave[:1000]
        return {"input_values": torch.tensor(kept)[None]}


def test_sound_that_a_processor_cuts_is_on_record(rng):
    explainer = Explainer(Sound("x", (1000,)).float(), processor=Recorder())
    for seconds, warned in ((0.9, ()), (1.05, ()), (2.5, ("cut the recording from 2.5 to 1 s",))):
        wave = torch.randn(int(1000 * seconds), generator=rng)
        notes = explainer(wave).warnings
        assert [words in note for words, note in zip(warned, notes, strict=True)] == [True] * len(
            warned
        )


def test_a_text_without_words_and_the_name_of_a_picture():
    explainer = load("sentiment")
    assert "no word in this text" in explainer("\u200b\u2060").warnings[0]
    assert "name of a picture" in explainer("examples/x.png").warnings[0]
    assert not explainer("good film").warnings
    assert not any("picture" in note for note in explainer("see examples/x.png").warnings)


def test_a_cut_text_is_on_record_in_every_form():
    explainer = load("sentiment")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explanation = explainer("good film " * 100, truncate=True)
        result = evaluate(
            explainer, ["good film " * 100, "dull"], ["random"], ["entropy"],
            truncate=True, progress=False,
        )  # fmt: skip
    (words,) = explanation.warnings
    assert words.startswith("The text was cut from 202 to 128 tokens")
    assert words in json.loads(explanation.to_json())["warnings"]
    assert Explanation.from_json(explanation.to_json()).warnings == (words,)
    assert words in explained_row("1", None, explanation)["warnings"]
    assert words in explanation.to_html()
    assert "cut from 202 to 128" in " ".join(str(explanation).split())
    note = "1 of 2 texts cut to the length that the model takes"
    assert note in result.notes
    assert note in str(result)
