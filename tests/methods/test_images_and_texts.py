"""A model that compares images with texts, and rows of numbers under evaluation."""

import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import CLIPConfig, CLIPModel

import wherefrom
from tests.modules import Vision
from wherefrom.errors import TargetError
from wherefrom.inputs import image as images

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip


def letters(texts, **options):
    """A tokenizer of sorts: a number for each of the first letters."""
    rows = [[60, *(3 + ord(letter) % 50 for letter in text[:6]), 63] for text in texts]
    width = max(map(len, rows))
    ids = torch.tensor([row + [1] * (width - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != 1).long()}


@pytest.fixture(scope="module")
def clip():
    torch.manual_seed(0)
    words = {"vocab_size": 64, "max_position_embeddings": 16, "eos_token_id": 63,
             "bos_token_id": 60, "pad_token_id": 1}  # fmt: skip
    config = CLIPConfig(
        text_config=SIZES | words,
        vision_config=SIZES | {"image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    model = CLIPModel(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.fixture
def pixels():
    torch.manual_seed(1)
    return torch.randn(2, 3, 32, 32, dtype=torch.float64)


@pytest.mark.parametrize("method", ["lrp", "gae", "integrated_gradients", "attention_rollout"])
def test_an_image_is_explained_for_one_text_against_another(clip, pixels, method):
    explainer = wherefrom.Explainer(clip, letters)
    found = explainer(pixels, method, target="a cat", against="a dog")
    with torch.no_grad():
        logits = clip(pixel_values=pixels, **letters(["a cat", "a dog"])).logits_per_image
    for each, row in zip(found, logits, strict=True):
        assert len(each) == 16
        assert str(each.target) == "a cat − a dog"
        assert each.output == pytest.approx(float(row[0] - row[1]), rel=1e-9)
    if method == "lrp":
        assert max(each.ledger.relative for each in found) < 1e-9


def test_without_texts_it_says_what_is_wanted(clip, pixels):
    explainer = wherefrom.Explainer(clip, letters)
    for ask in (explainer, lambda given: wherefrom.evaluate(explainer, list(given), ["lrp"])):
        with pytest.raises(TargetError, match="compares images with texts"):
            ask(pixels)


def test_patches_are_found_once_for_the_same_texts(clip, pixels, monkeypatch):
    asked = []
    find = images.find_patches
    monkeypatch.setattr(images, "find_patches", lambda *args: asked.append(1) or find(*args))
    explainer = wherefrom.Explainer(clip, letters)
    for method in ("lrp", "gae", "gradient"):
        explainer(pixels, method, target="a cat", against="a dog")
    assert asked == [1]


def test_explainers_for_texts_are_kept_in_a_bounded_number(clip, pixels):
    explainer = wherefrom.Explainer(clip, letters)
    first = explainer._with_text_classes(["a cat"])
    assert explainer._with_text_classes(["a cat"]) is first
    forgotten = weakref.ref(explainer._with_text_classes(["a dog"]))
    for number in range(30):
        explainer._with_text_classes([f"text {number}"])
        assert explainer._with_text_classes(["a cat"]) is first  # cached
    gc.collect()
    assert forgotten() is None
    assert len(explainer._by_class_texts) == 8


class SlowlyRead(dict):
    """Other threads run between the start of a loop over it and the first step."""

    def __iter__(self):
        keys = super().__iter__()
        time.sleep(0.001)
        return keys


def test_threads_may_ask_for_texts_of_their_own_at_once(clip):
    explainer = wherefrom.Explainer(clip, letters)
    explainer._by_class_texts = SlowlyRead()
    asked = [(f"text {number % 11}",) for number in range(66)]
    with ThreadPoolExecutor(6) as pool:
        answered = list(pool.map(explainer._with_text_classes, asked))
    assert [tuple(each.labels()) for each in answered] == asked
    assert len(explainer._by_class_texts) == 8


def test_rows_of_numbers_can_be_evaluated():
    explainer = wherefrom.Explainer(Vision(5))
    rows = list(torch.randn(3, 5, 6, dtype=torch.float64, generator=torch.manual_seed(0)))
    found = wherefrom.evaluate(explainer, rows, ["lrp", "random"], ["activation", "conservation"])
    assert max(found.values["lrp"]["conservation"]) < 1e-9
    ends = [curve[-1] for curve in found.series["lrp"]["activation"]]
    assert ends == pytest.approx([explainer(row).probability for row in rows], rel=1e-5)
