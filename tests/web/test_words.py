"""The library's messages on the page: without Python, and with advice that the page can follow."""

import ast
import re
from pathlib import Path

import pytest

import wherefrom
from wherefrom.errors import NotEnoughMemory
from wherefrom.web import words
from wherefrom.web.words import REPLACED, page_words


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            "9 tokens, and the model takes 4. Shorten it, or pass truncate=True to explain its "
            "start.",
            "9 tokens, and the model takes 4. Shorten it, or explain its beginning only.",
        ),
        ('no attention. Try method="lrp".', "no attention. Try the method lrp."),
        (
            "It has 3 positions. Say which to explain with position= (0 is the first).",
            "It has 3 positions. The library and the command line have more settings for this.",
        ),
        (
            'no method can tell them apart. Try method="lrp", or leave out units= if you gave it.',
            "no method can tell them apart. Try the method lrp.",
        ),
        (
            'The path is rough. Take more steps, set tolerance=, or use method="lrp".',
            "The path is rough. Use the method lrp.",
        ),
        (
            "It needs a target. Pass --target, or the index of a class.",
            "It needs a target. The library and the command line have more settings for this.",
        ),
        (
            "units= is for images.",
            "units= is for images. The library and the command line have more settings for this.",
        ),
        ("Plain words stay.", "Plain words stay."),
    ],
)
def test_errors_are_in_the_words_of_the_page(message, shown):
    assert page_words(message) == shown


def test_a_lack_of_memory_is_told_with_what_the_page_can_do():
    shown = page_words(str(NotEnoughMemory(5 << 30, 1 << 30)))
    assert shown.startswith("this pass needs about 5")
    assert shown.endswith("Explain a shorter input, use a smaller number type for the model.")


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in REPLACED])
def test_every_replaced_wording_is_that_of_a_message(pattern):
    sources = [path for path in Path(wherefrom.__file__).parent.rglob("*.py")
               if path != Path(words.__file__)]  # fmt: skip
    nodes = (node for path in sources for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    texts = (node.value for node in nodes if isinstance(node, ast.Constant))
    assert any(isinstance(text, str) and re.search(pattern, text) for text in texts)
