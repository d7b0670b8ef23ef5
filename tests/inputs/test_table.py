"""Texts, images and labels read from tables and from folders."""

import gzip
import json

import pytest
from PIL import Image

from examples.draw import DIGITS, drawn
from wherefrom import read_table
from wherefrom.errors import FileError, InputError


def test_every_format_gives_the_same_rows(tmp_path):
    rows = [("good, film", 1), ('a "quoted"\nline', 0)]
    csv = 'text,label\n"good, film",1\n"a ""quoted""\nline",0\n'
    (tmp_path / "a.csv").write_text(csv)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(csv.encode()))
    lines = "\n".join(json.dumps({"sentence": t, "label": y}) for t, y in rows)
    (tmp_path / "a.jsonl").write_text(lines)
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table({"text": [t for t, _ in rows], "label": [1, 0]}), tmp_path / "a.parquet"
    )
    for name in ("a.csv", "a.csv.gz", "a.jsonl", "a.parquet"):
        table = read_table(tmp_path / name)
        assert table.texts == [text for text, _ in rows], name
        # CSV has only text: the model's labels decide whether "1" is a name or an index
        as_read = str if name.startswith("a.csv") else int
        assert table.labels == [as_read(label) for _, label in rows], name


def test_rows_that_say_nothing_are_counted(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nfilm,1\n  ,0\nmovie,\n")
    table = read_table(tmp_path / "a.csv")
    assert table.texts == ["film"]
    assert table.skipped == {"empty text": 1, "no label": 1}


@pytest.mark.parametrize(
    ("name", "content", "options", "error", "words"),
    [
        ("a.csv", "text,label\nfilm,1\n", {"text_column": "txt"}, InputError, 'mean "text"'),
        ("a.csv", "body,label\nfilm,1\n", {}, InputError, "--text-column"),
        ("a.csv", "text\n", {}, FileError, "no rows"),
        ("a.csv", "text\n''\n", {"label_column": "label"}, InputError, 'no column "label"'),
        ("a.jsonl", "{", {}, FileError, "line 1 is not JSON"),
        ("a.jsonl", "[1]", {}, FileError, "not an object"),
        ("a.xls", "x", {}, FileError, "must end in .csv"),
        ("a.csv.gz", "not gzip", {}, FileError, "cannot read"),
        ("a.parquet", "not parquet", {}, FileError, "cannot read"),
    ],
)
def test_files_that_cannot_be_read_are_refused_with_the_reason(
    tmp_path, name, content, options, error, words
):
    (tmp_path / name).write_text(content)
    with pytest.raises(error, match=words):
        read_table(tmp_path / name, **options)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileError, match=r"no file .*none\.csv"):
        read_table(tmp_path / "none.csv")


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
    path = folder / "table.csv"
    path.write_text("image,label\n3/a.png,3\n7/a.png,7\n", encoding="utf-8")
    rows = read_table(path)
    assert rows.texts == [str(folder / "3" / "a.png"), str(folder / "7" / "a.png")]
