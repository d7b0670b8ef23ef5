"""Answers of models that see: patches and words in one ledger, whatever the processor returns."""

import copy
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from tests.helpers import assert_unchanged, exactly
from tests.seeing import FAMILIES, picture, seeing
from wherefrom import Explainer, Prompt, load
from wherefrom.answers.answer import Answer
from wherefrom.cli import app
from wherefrom.errors import InputError
from wherefrom.show.explanation_figure import _patch_heat
from wherefrom.show.text_marks import pictures
from wherefrom.testing import snapshot

QUESTION = "what is in the picture ?"
# transformers' own PaliGemmaProcessor makes an array of a tensor in an old way
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
BOUND = 1e-5  # of what is added up; the norms of these language models are float32 within


def explainer(family):
    model, processor = seeing(family)
    return Explainer(model, processor=processor)


def residual(explanation):
    lines = explanation.ledger.lines
    return abs(explanation.ledger.residual) / max(1.0, sum(abs(line.value) for line in lines))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_ledger_closes_on_what_the_model_generates(family):
    """The logits are those of `generate` itself, which reads the answer token by token."""
    model, processor = seeing(family)
    own, text = explainer(family), QUESTION
    answer = own.generate(text, 4, images=[picture()], of="logit")
    inputs = processor(text=answer.prompt, images=[picture()], return_tensors="pt")
    inputs.pop("labels", None)
    inputs["pixel_values"] = inputs["pixel_values"].double()
    with torch.no_grad():
        out = model.generate(
            **inputs, max_new_tokens=4, do_sample=False, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
    ids = [token.id for token in answer.tokens]
    written = out.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    assert ids == written[: len(ids)]
    logits = [float(step[0, number]) for step, number in zip(out.logits, ids, strict=False)]
    for span in (0, slice(0, 2), None):
        explanation, part = answer.of(span), answer.span(span)
        exactly(explanation.output, sum(logits[part.first : part.last]), 1e-5)
        assert residual(explanation) < BOUND
        kinds = {line.kind: line.value for line in explanation.ledger.lines}
        assert kinds["image"]
        assert kinds["prompt"]
    patches = [i for i, unit in enumerate(answer.units) if answer.group(i) == "image"]
    exactly(answer.of().ledger.of("image"), float(answer.row().values[patches].sum()))


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_the_matrix_are_explanations_of_single_tokens(family):
    own = explainer(family)
    matrix = own.answer(QUESTION, "red square on", images=[picture()]).matrix
    for token in range(3):
        single = own.answer(QUESTION, "red square on", images=[picture()]).of(token)
        np.testing.assert_allclose(
            matrix[token, : len(single.scores)], single.scores, rtol=2e-6, atol=2e-6
        )
        assert not matrix[token, len(single.scores) :].any()


@pytest.mark.parametrize("family", FAMILIES)
def test_patches_have_what_autograd_says_of_their_pixels(family):
    """Gradient × input: pixels that autograd alone has multiplied, summed by the box of a patch."""
    model = seeing(family)[0]
    answer = explainer(family).answer(
        QUESTION, "red", images=[picture()], method="gradient_x_input", at="embeddings", of="logit"
    )
    seen = answer.attribution.prompt.encoded_images
    pixels = seen.tensors["pixel_values"].clone().requires_grad_()
    tensors = {**seen.tensors, **seen.types, "pixel_values": pixels}
    ids = torch.tensor([answer.attribution.prompt.ids])
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), **tensors).logits
    (gradient,) = torch.autograd.grad(logits[0, -1, answer.tokens[0].id], pixels)
    products = (gradient * pixels).detach()
    rows = seen.layout.split(products)[0].sum(1)
    exactly(answer.of().scores[: len(rows)], rows.float(), 1e-6)
    if products.ndim >= 4:  # by the layout's own words: squares of 8 × 8, image by image
        images = products.reshape(-1, *products.shape[-3:]).sum(1)
        squares = images.unfold(1, 8, 8).unfold(2, 8, 8).sum((3, 4)).flatten()
    else:
        squares = products.sum(-1).flatten()
    exactly(rows, squares)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_lies_in_the_box_of_a_patch_is_what_the_patch_shows(family):
    """The picture is changed within a box: the patches that change are those that it meets."""
    own, plain = explainer(family), picture(64, 64)  # is not resized, but for tiles
    prompt = own.answer(QUESTION, "red", images=[plain]).attribution.prompt
    before = prompt.encoded_images.layout.split(prompt.encoded_images.tensors["pixel_values"])[0]
    units = prompt.images.units
    assert {unit.field for unit in units} == {"image 1"}
    for box in dict.fromkeys(unit.box for unit in units[:: len(units) // 4]):
        changed = plain.copy()
        changed.paste(Image.new("RGB", (box[2] - box[0], box[3] - box[1]), "white"), box[:2])
        other = own.answer(QUESTION, "red", images=[changed]).attribution.prompt.encoded_images
        after = other.layout.split(other.tensors["pixel_values"])[0]
        moved = ((after - before).abs() > 0.2).any(1)
        inside = [unit.box == box for unit in units]
        near = [
            unit.box[0] < box[2] + 2 and box[0] < unit.box[2] + 2
            and unit.box[1] < box[3] + 2 and box[1] < unit.box[3] + 2
            for unit in units
        ]  # fmt: skip
        assert all(moved[torch.tensor(inside)])
        assert not any(moved[~torch.tensor(near)])


def test_a_cropped_image_has_patches_where_it_was_kept():
    units = explainer("llava").answer(QUESTION, "red", images=[picture(48, 32)]).units
    boxes = [unit.box for unit in units if unit.box is not None]
    expected = [
        (left, top, left + 8, top + 8) for top in range(0, 32, 8) for left in range(8, 40, 8)
    ]
    assert boxes == expected  # 8 columns of pixels at either side are cut off


def test_tiles_lie_side_by_side_and_once_more_as_a_whole():
    units = explainer("idefics3").answer(QUESTION, "red", images=[picture(64, 64)]).units
    boxes = [unit.box for unit in units if unit.box is not None]
    tiles, whole = boxes[:-16], boxes[-16:]
    area = sum((box[2] - box[0]) * (box[3] - box[1]) for box in tiles)
    assert len(tiles) == 64
    assert len(set(tiles)) == 64
    assert area == 64 * 64
    assert whole == [(16 * i, 16 * j, 16 * i + 16, 16 * j + 16) for j in range(4) for i in range(4)]


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "paligemma"])
def test_prompts_with_images_are_read_alike(family):
    """Messages, with the image in them or apart, and named parts make one prompt."""
    own = explainer(family)
    one, other = picture(), picture(seed=1)
    text = {"type": "text", "text": QUESTION}
    inline = [{"type": "image", "image": one}, {"type": "image", "image": other}]
    apart = [{"type": "image"}, {"type": "image"}]
    answers = [
        own.answer([{"role": "user", "content": [*inline, text]}], "red"),
        own.answer([{"role": "user", "content": [*apart, text]}], "red", images=[one, other]),
        own.answer([{"role": "user", "content": QUESTION}], "red", images=[one, other]),
        own.answer(Prompt(QUESTION, images=[one, other]), "red"),
    ]
    for answer in answers[1:]:
        assert answer.attribution.prompt.ids == answers[0].attribution.prompt.ids
        exactly(answer.of().scores, answers[0].of().scores)
    assert [part.name for part in answers[0].parts] == ["image 1", "image 2", "user 1"]
    both = {unit.field for i, unit in enumerate(answers[0].units) if answers[0].group(i) == "image"}
    assert both == {"image 1", "image 2"}
    swapped = own.answer(Prompt(QUESTION, images=[other, one]), "red")
    assert swapped.of().output != pytest.approx(answers[0].of().output, abs=1e-6)


def test_words_stay_words_and_image_tokens_are_of_the_template():
    answer = explainer("qwen2_vl").answer(
        [{"role": "user", "content": f"it is red . {QUESTION}"}], "red", images=[picture()]
    )
    words = [unit.text for i, unit in enumerate(answer.units) if answer.group(i) == "prompt"]
    assert words == f"it is red . {QUESTION}".split()
    places = [i for i, unit in enumerate(answer.units) if unit.text == "<|image_pad|>"]
    assert len(places) == 24
    assert all(answer.group(i) in ("template", "first token") for i in places)
    assert not answer.row().values[places].any()  # the image is put in their place


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_is_as_it_was(family):
    model, processor = seeing(family)
    before, tokenizer = snapshot(model), copy.deepcopy(processor.tokenizer.get_vocab())
    answer = explainer(family).generate(QUESTION, 2, images=[picture()])
    answer.rows()
    assert_unchanged(before, snapshot(model))
    assert processor.tokenizer.get_vocab() == tokenizer


def test_sources_of_images_and_words():
    answer = explainer("llava").answer(
        Prompt(QUESTION, ["a dog .", "a cat ."], images=[picture(), picture(seed=1)]), "red square"
    )
    row = answer.row()
    by_passage = {source.name: source for source in answer.sources()}
    assert set(by_passage) == {"image 1", "image 2", "passage 1", "passage 2", "question"}
    exactly(by_passage["image 2"].relevance, float(row.values[16:32].sum()))
    words = answer.sources("word")
    assert sum(source.box is not None for source in words) == 32
    total = sum(source.relevance for source in words)
    exactly(total, answer.of().ledger.of("image", "prompt"))
    cited = answer.citations(check=True)
    assert [support.drop is not None for support in cited[0].supports] == [True, True]


def test_images_are_kept_in_json(tmp_path):
    answer = explainer("llava").answer(QUESTION, "red square", images=[picture()])
    answer.rows()
    answer.to_json(tmp_path / "answer.json")
    back = Answer.from_json(tmp_path / "answer.json")
    assert back.to_dict() == answer.to_dict()
    assert back.images[0]["width"] == 48
    assert back.units == answer.units
    assert back.group(3) == "image"
    assert back.sources("token") == answer.sources("token")


def test_what_cannot_be_read_is_said():
    own = explainer("llava")
    with pytest.raises(InputError, match=r"2 image placeholders.*1 images"):
        own.answer("<image> <image> what", "red", images=[picture()])
    with pytest.raises(InputError, match="a list of pictures"):
        own.answer("what", "red", images="cat.png")
    with pytest.raises(InputError, match="in the call and in the Prompt"):
        own.answer(Prompt("what", images=[picture()]), "red", images=[picture()])
    with pytest.raises(InputError, match="images apply to a single prompt"):
        own.answer(["what", "is"], ["red", "red"], images=[picture()])
    with pytest.raises(InputError, match="images need a prompt as text"):
        own.answer([5, 6], "red", images=[picture()])
    message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what"}]}]
    with pytest.raises(InputError, match=r"1 image placeholder.*2 images"):
        own.answer(message, "red", images=[picture(), picture()])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    model, processor = seeing("llava")
    path = tmp_path_factory.mktemp("llava")
    model.save_pretrained(path)
    processor.save_pretrained(path)
    picture().save(path / "picture.png")
    return path


def test_a_folder_and_a_command_read_images(folder):
    own = load(folder, dtype="float64")
    messages = [{"role": "user", "content": [
        {"type": "image", "path": str(folder / "picture.png")}, {"type": "text", "text": QUESTION},
    ]}]  # fmt: skip
    answer = own.answer(messages, "red square")
    expected = explainer("llava").answer(messages, "red square")
    exactly(answer.of().scores, expected.of().scores, 1e-6)
    assert answer.parts[0].title == "picture.png"
    html, png = folder / "page.html", folder / "answer.png"
    result = CliRunner().invoke(app, [
        "answer", "-m", str(folder), "--question", QUESTION, "--image", str(folder / "picture.png"),
        "--answer", "red square", "--html", str(html), "--plot", str(png),
    ])  # fmt: skip
    assert result.exit_code == 0, result.exception
    assert "image 1" in result.output
    data = json.loads(re.search(r'id="data">(.*?)</script>', html.read_text(), re.DOTALL)[1])
    assert data["images"][0]["name"] == "picture.png"
    assert sum(unit[4] == "image" for unit in data["units"]) == 16
    with Image.open(png) as drawn:
        assert drawn.width > 300


def test_an_explanation_of_words_and_patches_is_shown_as_both():
    explanation = explainer("llava").answer(QUESTION, "red", images=[picture(), picture()]).of()
    html = explanation.to_html()
    assert html.count("<image ") == 4  # each plain and with its heatmap
    assert html.count("<rect ") > 20  # but for those of nearly no relevance
    words = re.findall(r'<span class="u[^>]*>([^<]*)</span>', html)
    first = words.index("&lt;image&gt;")  # behind the sentence and the legend
    assert words[first : first + len(QUESTION.split()) + 2] == [
        "&lt;image&gt;",
        "&lt;image&gt;",
        *QUESTION.split(),
    ]
    assert "images" in str(explanation)
    assert "0,0" not in str(explanation)


def test_overlapping_patches_are_painted_as_they_add_up():
    """Tiles and the whole image lie on each other: each pixel has its share of every patch."""
    answer = explainer("idefics3").answer(QUESTION, "red", images=[picture(64, 64)])
    (own,) = pictures(answer.of())
    expected = np.zeros((64, 64))
    for unit, score in zip(own.units, own.scores, strict=True):
        left, top, right, bottom = unit.box
        for row in range(top, bottom):
            for column in range(left, right):
                expected[row, column] += score / ((right - left) * (bottom - top))
    exactly(_patch_heat(own), expected / np.abs(expected).max(), 1e-6)
