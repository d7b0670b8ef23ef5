"""The notebooks run, and say what they say that they say."""

import re
from pathlib import Path

import pytest

from tests.notebooks import printed, run, stored
from wherefrom.errors import ModelError
from wherefrom.models.smollm2 import weights

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"


def words(text):
    """A text without its numbers, which differ by processor and version."""
    return re.sub(r"[-+−]?\d[\d.,]*", "#", text).split()


def test_cells_are_run_in_one_namespace(tmp_path):
    (tmp_path / "small.ipynb").write_text(
        """{"cells": [
        {"cell_type": "code", "source": ["a = 3\\n", "print(a)"], "outputs": []},
        {"cell_type": "markdown", "source": ["text"]},
        {"cell_type": "code", "source": ["a + 1"], "outputs": []}]}"""
    )
    first, second = run(tmp_path / "small.ipynb")
    assert printed(first) == "3\n"
    assert second[0]["data"] == {"text/plain": ["4"]}
    (tmp_path / "bad.ipynb").write_text(
        '{"cells": [{"cell_type": "code", "source": ["1 / 0"], "outputs": []}]}'
    )
    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "bad.ipynb")


@pytest.mark.llm
def test_the_notebook_of_passages_prints_what_it_holds():
    try:
        weights()
    except ModelError as error:
        pytest.skip(f"*** NO NOTEBOOK IS RUN: {error} ***")
    path = FOLDER / "passages.ipynb"
    for now, before in zip(run(path), stored(path), strict=True):
        assert words(printed(now)) == words(printed(before))
        assert [out["output_type"] for out in now] == [out["output_type"] for out in before]
