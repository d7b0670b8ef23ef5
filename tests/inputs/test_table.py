"""Texts, images and labels read from tables and from folders."""

import gzip
import json

import pytest
from PIL import Image

from examples.draw import DIGITS, drawn
from wherefrom import read_table
from wherefrom.errors import FileError, GuessedEncoding, InputError


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
        ("a.csv", "body,label\nfilm,1\n", {}, InputError, "text_column="),
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


ROWS = [("café, naïve", "1"), ("“très bien” – Zoë", "0")]


def as_csv(separator=","):
    lines = [f"text{separator}label", *(f'"{text}"{separator}{label}' for text, label in ROWS)]
    return "\r\n".join(lines) + "\r\n"


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
)
@pytest.mark.filterwarnings("ignore::wherefrom.errors.GuessedEncoding")  # without a mark
def test_unicode_is_recognised(tmp_path, encoding):
    (tmp_path / "a.csv").write_bytes(as_csv().encode(encoding))
    assert read_table(tmp_path / "a.csv").texts == [text for text, _ in ROWS]


def test_another_encoding_is_guessed_and_said(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(as_csv().encode("cp1252"))
    with pytest.warns(
        GuessedEncoding, match=r"a.csv is not UTF-8 \(byte 0xe9 in line 2\): .*cp1252"
    ):
        assert read_table(path).texts == [text for text, _ in ROWS]
    path.write_bytes(as_csv().encode("cp1250", "replace"))
    assert read_table(path, encoding="cp1250").texts[0] == ROWS[0][0].replace("ï", "?")
    with pytest.raises(FileError, match="line 2 is not ascii: byte 0xe9"):
        read_table(path, encoding="ascii")
    for name in ("klingon", "zlib", "rot13"):
        with pytest.raises(FileError, match=f'no text encoding "{name}"'):
            read_table(path, encoding=name)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_is_found(tmp_path, separator, name):
    path = tmp_path / name
    path.write_text(as_csv(separator), encoding="utf-8", newline="")
    assert read_table(path).texts == [text for text, _ in ROWS]
    assert read_table(path).labels == ["1", "0"]


def test_the_line_of_a_spreadsheet_names_the_separator(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("sep=;\r\n" + as_csv(";"), encoding="utf-8", newline="")
    assert read_table(path).texts == [text for text, _ in ROWS]


def test_one_column_may_hold_any_sign(tmp_path):
    (tmp_path / "a.csv").write_text("text\ngood; bad\n")
    assert read_table(tmp_path / "a.csv").texts == ["good; bad"]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_json_may_be_an_array_or_columns(tmp_path, indent, name):
    path = tmp_path / name
    records = [{"text": text, "label": int(label)} for text, label in ROWS]
    columns = {"text": [text for text, _ in ROWS], "label": [1, 0]}
    for data in (records, columns):
        path.write_text(json.dumps(data, indent=indent))
        assert read_table(path).texts == [text for text, _ in ROWS]
        assert read_table(path).labels == [1, 0]
    path.write_text(json.dumps(records[0], indent=indent))
    assert read_table(path).texts == [ROWS[0][0]]
    path.write_text(json.dumps([{"text": "a"}, 3], indent=indent))
    with pytest.raises(FileError, match="entry 2 is not an object"):
        read_table(path)
