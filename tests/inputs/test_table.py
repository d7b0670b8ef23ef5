"""Texts, images and labels read from tables and from folders."""

import csv
import gzip
import io
import json
import tempfile
from pathlib import Path

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from examples.draw import DIGITS, drawn
from wherefrom import read_table
from wherefrom.errors import FileError, GuessedEncoding, InputError
from wherefrom.inputs import table


def test_every_format_gives_the_same_rows(tmp_path):
    rows = [("good, film", 1), ('a "quoted"\nline', 0)]
    text = 'text,label\n"good, film",1\n"a ""quoted""\nline",0\n'
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    lines = "\n".join(json.dumps({"sentence": t, "label": y}) for t, y in rows)
    (tmp_path / "a.jsonl").write_text(lines)
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table({"text": [t for t, _ in rows], "label": [1, 0]}), tmp_path / "a.parquet"
    )
    for name in ("a.csv", "a.csv.gz", "a.jsonl", "a.parquet"):
        read = read_table(tmp_path / name)
        assert read.texts == [text for text, _ in rows], name
        # CSV has only text: the model's labels decide whether "1" is a name or an index
        as_read = str if name.startswith("a.csv") else int
        assert read.labels == [as_read(label) for _, label in rows], name


def test_rows_that_say_nothing_are_counted(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nfilm,1\n  ,0\nmovie,\n")
    rows = read_table(tmp_path / "a.csv")
    assert rows.texts == ["film"]
    assert rows.skipped == {"empty text": 1, "no label": 1}
    assert rows.rejected == {1: "empty text", 2: "no label"}


# content, texts, labels, and a word of the reason for each row that is rejected
DAMAGED = {
    "an unquoted comma": (
        "text,label\nGreat, but too long,1\nfine,0\n", ["fine"], ["0"], {0: "3 fields"},
    ),
    "a quote that is never closed": (
        'text,label\n"never closed,1\n' + "fine,0\n" * 1000, ["fine"] * 1000, ["0"] * 1000,
        {0: "never closed"},
    ),
    "a quote that the next quote closes": (
        'text,label\n"lost,1\n"good, film",0\nbad,1\n', ["good, film", "bad"], ["0", "1"],
        {0: "not CSV"},
    ),
    "a quote that closes at the end of another line": (
        'text,label\n"lost,1\nit is 5"\nbad,1\n', ["bad"], ["1"], {0: "1 field", 1: "no label"},
    ),
    "a header with spaces": ('text, label\n"a, b", 1\nc, 0\n', ["a, b", "c"], ["1", "0"], {}),
    "a line break without quotes": (
        "text,label\nfirst\nsecond,1\n", ["second"], ["1"], {0: "no label"},
    ),
    "one column": ('text\nGreat, but "long"\n"a, b"\n', ['Great, but "long"', "a, b"], None, {}),
    "a byte of another encoding": (
        b"text,label\nd\xc3\xa9j\xc3\xa0,1\nb\xe4d,0\n", ["d\xe9j\xe0"], ["1"],
        {1: "line 3 is not UTF-8: byte 0xe4"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_row_is_rejected_and_the_next_ones_are_read(kind, tmp_path):
    content, texts, labels, reasons = DAMAGED[kind]
    path = tmp_path / "a.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    rows = read_table(path)
    assert (rows.texts, rows.labels) == (texts, labels)
    assert rows.rejected.keys() == reasons.keys()
    for number, reason in reasons.items():
        assert reason in rows.rejected[number]
    assert sum(rows.skipped.values()) == len(reasons)


def test_quotes_in_tsv_are_characters_where_they_enclose_nothing(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"the film" is good\t1\n"open\t0\n"a\tb"\t1\n')
    assert read_table(path).texts == ['"the film" is good', '"open', "a\tb"]


def test_the_first_row_may_lack_a_column(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b", "label": 1}\n')
    rows = read_table(path)
    assert (rows.texts, rows.labels, rows.rejected) == (["b"], [1], {0: "no label"})
    assert read_table([{"text": "a"}, {"text": "b", "label": 1}]).labels == [1]


@pytest.mark.parametrize("content", ["text,label\n{},1\nfine,0\n", 'text,label\n"{}",1\nfine,0\n'])
def test_one_huge_field_is_rejected_by_its_line(content, tmp_path, monkeypatch):
    monkeypatch.setattr(table, "LONGEST", 1000)
    (tmp_path / "a.csv").write_text(content.format("x" * 5000))
    rows = read_table(tmp_path / "a.csv")
    assert rows.texts == ["fine"]
    assert "line 2 is longer than 1,000 characters" in rows.rejected[0]
    (tmp_path / "a.csv").write_text(content.format("line\n" * 500))
    rejected = read_table(tmp_path / "a.csv").rejected
    assert "field larger" in rejected[0] or "no label" in rejected[0]


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("text,text,label,,\na,b,1,,\n")
    with pytest.raises(FileError, match='several columns "text"'):
        read_table(tmp_path / "a.csv")


CELL = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
SIGNS = st.text(st.sampled_from(" ab,;\t|\"'\n\r\u2028é"), max_size=12)


@settings(max_examples=150)
@given(cells=st.lists(st.tuples(CELL | SIGNS, st.sampled_from("01")), min_size=1, max_size=8),
       form=st.sampled_from(["csv", "tsv", "pandas", "jsonl", "parquet"]))  # fmt: skip
def test_every_row_that_other_programs_write_is_read_or_rejected(cells, form):
    if form == "pandas":  # which leaves a carriage return without quotes
        cells = [(text.replace("\r", ""), label) for text, label in cells]
    frame = pandas.DataFrame(cells, columns=["text", "label"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a.{'csv' if form == 'pandas' else form}"
        if form == "pandas":
            frame.to_csv(path, index=False)
        elif form == "jsonl":
            frame.to_json(path, orient="records", lines=True)
        elif form == "parquet":
            frame.to_parquet(path)
        else:
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, delimiter="\t" if form == "tsv" else ",")
                writer.writerows([("text", "label"), *cells])
        expected = [(text, label) for text, label in cells if text.strip()]
        if not expected:
            with pytest.raises(InputError, match="none with a text"):
                read_table(path)
            return
        rows = read_table(path)
    assert list(zip(rows.texts, rows.labels, strict=True)) == expected
    assert list(rows.rejected) == [k for k, (text, _) in enumerate(cells) if not text.strip()]


@settings(max_examples=150)
@given(lines=st.lists(SIGNS.filter(lambda line: "\n" not in line and "\r" not in line), max_size=8))
def test_a_line_is_never_lost(lines):
    marked = [f"{line[:1]}n{k}n{line[1:]}\n" for k, line in enumerate(lines)]
    stream = io.StringIO("text,label\n" + "".join(marked), newline="")
    rows = list(table.text_records("x.csv", stream))
    read = [str(cell) for row in rows if not isinstance(row, FileError) for cell in row.values()]
    rejected = [str(row) for row in rows if isinstance(row, FileError)]
    for k in range(len(lines)):
        is_read = any(f"n{k}n" in cell for cell in read)
        assert is_read or any(f"line {k + 2} " in reason for reason in rejected)


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
    assert "entry 2 is not an object" in read_table(path).rejected[1]
