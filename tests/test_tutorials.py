"""The tutorials run, and print what is stored in them."""

import re
from pathlib import Path

import pytest

from tools.notebooks import markdown, read, run, workplace
from wherefrom.errors import ModelError
from wherefrom.models.packaged import LANGUAGE_MODELS

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
ROUNDING = re.compile(r"residual \S+")  # differs from machine to machine


def printed(outputs):
    """What a cell printed, as words and as numbers."""
    text = "".join(line for output in outputs for line in output.get("text", ()))
    text = ROUNDING.sub("residual", text)
    return NUMBER.sub("#", text), [float(number) for number in NUMBER.findall(text)]


LANGUAGE_MODEL = ("passages", "inside")
NOTEBOOKS = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.llm] * (path.stem in LANGUAGE_MODEL))
    for path in sorted(FOLDER.glob("*.ipynb"))
]


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_a_tutorial_prints_what_is_stored_in_it(path, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    notebook = read(path)
    if path.stem in LANGUAGE_MODEL:
        try:
            LANGUAGE_MODELS["smollm2"].weights()
        except ModelError as error:
            pytest.skip(f"*** A TUTORIAL IS NOT RUN: {error} ***")
    with workplace():
        results = run(notebook, path.name)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) == len(results) > 0
    for cell, outputs in zip(cells, results, strict=True):
        words, numbers = printed(outputs)
        stored_words, stored_numbers = printed(cell["outputs"])
        assert words == stored_words
        assert numbers == pytest.approx(stored_numbers, rel=0.02, abs=0.02)
        assert ["data" in output for output in outputs] == [
            "data" in output for output in cell["outputs"]
        ]


def test_a_notebook_as_markdown_has_its_texts_its_code_and_its_outputs():
    shown = {
        "output_type": "execute_result",
        "data": {"text/html": ["<b>1</b>\n", "\n", "<i>2</i>"]},
    }
    said = {"output_type": "stream", "text": ["a < b\n"]}
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": ["print('a < b')\n", "x"], "outputs": [said, shown]},
    ]
    assert markdown({"cells": cells}).split("\n\n") == [
        "# Title\ntext",
        "```python\nprint('a < b')\nx\n```",
        '<pre class="output"><code>a &lt; b</code></pre>',
        '<div class="output"><b>1</b>\n<i>2</i></div>',
    ]


def test_cells_share_their_names_and_an_error_is_not_swallowed():
    cells = [
        {"cell_type": "code", "source": ["a = 3\n", "print(a)"]},
        {"cell_type": "code", "source": ["a + 1"]},
    ]
    first, second = run({"cells": cells}, "small")
    assert printed(first) == ("#\n", [3.0])
    assert second[0]["data"] == {"text/plain": ["4"]}
    with pytest.raises(ZeroDivisionError):
        run({"cells": [{"cell_type": "code", "source": ["1 / 0"]}]}, "bad")
