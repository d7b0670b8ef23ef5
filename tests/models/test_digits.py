"""The embedded model of digits, on digits that are drawn by strokes."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import wherefrom
from examples.draw import DIGITS, drawn
from wherefrom.cli import app
from wherefrom.models import embedded

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PLACES = [os.environ.get("WHEREFROM_DATA", "data"), "../shared/data"]
MNIST = next((Path(p, "mnist") for p in PLACES if Path(p, "mnist").is_dir()), None)


@pytest.fixture(scope="module")
def digits():
    return wherefrom.load("digits")


def test_the_card_is_true_of_the_files(digits):
    card = embedded.embedded()["digits"]
    assert card.megabytes < 2
    assert card.figures["test"] >= 0.97
    assert card.parameters == sum(p.numel() for p in digits.runner.model.parameters())


@pytest.mark.parametrize("name", DIGITS)
def test_it_reads_drawn_digits_and_says_why(digits, name):
    explanation = digits(drawn(DIGITS[name]))
    assert explanation.target.label == str(NAMES.index(name))
    assert explanation.probability > 0.9
    assert len(explanation) == 49
    assert explanation.ledger.relative < 1e-4
    kinds = {line.kind for line in explanation.ledger.lines}
    assert {"patch", "position", "token", "bias"} <= kinds


def test_the_left_half_of_an_eight_speaks_against_a_three(digits):
    explanation = digits(drawn(DIGITS["eight"]), target=3, against=8)
    left = sum(
        s for u, s in zip(explanation.units, explanation.scores, strict=True) if u.box[2] <= 12
    )
    assert left < 0


def test_the_pictures_in_examples_are_those_that_the_script_draws():
    for name, strokes in DIGITS.items():
        saved = np.asarray(Image.open(f"examples/{name}.png"))
        np.testing.assert_array_equal(saved, drawn(strokes))


def test_the_command_line_explains_and_compares_images(tmp_path):
    run = CliRunner().invoke
    page, picture = tmp_path / "page.html", tmp_path / "picture.png"
    done = run(app, ["explain", "examples/three.png", "--html", str(page), "--plot", str(picture)])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("3  ")
    assert "<rect" in page.read_text(encoding="utf-8")
    assert picture.read_bytes()[:4] == b"\x89PNG"
    command = ["compare", "examples/eight.png", "--methods", "lrp,gae", "--beside", "3"]
    done = run(app, [*command, "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert page.read_text(encoding="utf-8").count("<svg") == 5


@pytest.mark.slow
@pytest.mark.skipif(MNIST is None, reason="MNIST is not here")
def test_accuracy_on_the_test_images_is_what_the_card_says(digits):
    from training.digits import answers, normalised
    from training.mnist import read_images

    images, truth = read_images(MNIST, "test")
    predicted = answers(digits.runner.model, normalised(images)).argmax(1)
    share = float((predicted == truth).float().mean())
    assert share == pytest.approx(embedded.embedded()["digits"].figures["test"], abs=1e-3)
