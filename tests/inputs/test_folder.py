"""Images in folders and in tables, for evaluation."""

import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from examples.draw import DIGITS, drawn
from wherefrom.cli import app
from wherefrom.errors import FileError
from wherefrom.inputs.table import read_table


@pytest.fixture
def folder(tmp_path):
    for label, name in (("3", "three"), ("7", "seven")):
        (tmp_path / "digits" / label).mkdir(parents=True)
        Image.fromarray(drawn(DIGITS[name])).save(tmp_path / "digits" / label / "a.png")
    (tmp_path / "digits" / "3" / "notes.txt").write_text("no image")
    return tmp_path / "digits"


def test_folders_are_labels(folder):
    rows = read_table(folder)
    assert rows.labels == ["3", "7"]
    assert [text.endswith("a.png") for text in rows.texts] == [True, True]
    assert read_table(folder / "3").labels is None


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(FileError, match="has no images"):
        read_table(tmp_path)


def test_a_table_names_images_from_where_it_lies(folder):
    table = folder / "table.csv"
    table.write_text("image,label\n3/a.png,3\n7/a.png,7\n", encoding="utf-8")
    rows = read_table(table)
    assert rows.texts == [str(folder / "3" / "a.png"), str(folder / "7" / "a.png")]


def test_images_are_evaluated_from_the_command_line(folder, tmp_path):
    command = ["evaluate", str(folder), "--out", str(tmp_path / "out"), "--methods", "lrp,random"]
    done = CliRunner().invoke(app, [*command, "--metrics", "positive,insertion,conservation"])
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "out" / "evaluation.json").read_text(encoding="utf-8"))
    assert data["model"] == "digits"
    assert max(data["values"]["lrp"]["conservation"]) < 1e-4
    assert (tmp_path / "out" / "report.html").exists()
