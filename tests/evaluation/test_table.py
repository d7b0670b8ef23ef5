import gzip
import json

import pytest

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
        found = read_table(tmp_path / name)
        assert found.texts == [text for text, _ in rows], name
        # CSV has only text: the model's labels decide whether "1" is a name or an index
        as_read = str if name.startswith("a.csv") else int
        assert found.labels == [as_read(label) for _, label in rows], name


def test_rows_that_say_nothing_are_counted(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nfilm,1\n  ,0\nmovie,\n")
    found = read_table(tmp_path / "a.csv")
    assert found.texts == ["film"]
    assert found.skipped == {"empty text": 1, "no label": 1}


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
