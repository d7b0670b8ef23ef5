"""Data in parts: every format and place gives the same rows, and bad rows stop nothing."""

import gzip
import json
import subprocess
import sys

import pytest

from wherefrom.errors import FileError, GuessedEncoding, InputError
from wherefrom.inputs.table import read_table
from wherefrom.runs.parts import ColumnNames, Location, open_source
from wherefrom.storage.arrow import find_files

parquet = pytest.importorskip("pyarrow.parquet")
pyarrow = pytest.importorskip("pyarrow")
filesystems = pytest.importorskip("pyarrow.fs")

TEXTS = ["a good film", 'it said "no"\nthen left', "", "naïve, no?", "third\u2028line"]
LABELS = ["1", "0", "1", "0", ""]


def write(path):
    name = path.name
    if ".parquet" in name:
        parquet.write_table(pyarrow.table({"text": TEXTS, "label": LABELS}), path)
        return path
    if ".jsonl" in name:
        rows = zip(TEXTS, LABELS, strict=True)
        content = "".join(json.dumps({"text": t, "label": label}) + "\n" for t, label in rows)
    else:
        mark = "\t" if ".tsv" in name else ","
        quoted = ('"' + text.replace('"', '""') + '"' for text in TEXTS)
        lines = [f"{text}{mark}{label}" for text, label in zip(quoted, LABELS, strict=True)]
        content = "\r\n".join([f"text{mark}label", *lines])
    data = content.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def parts_of(data, rows=2, columns=ColumnNames(), **options):  # noqa: B008
    return [part for piece in open_source(data, columns, rows, **options).pieces for part in piece]


def all_of(parts, name):
    return [value for part in parts for value in getattr(part, name)]


@pytest.mark.parametrize(
    "name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet", "a.csv.gz", "a.jsonl.gz"]
)
def test_every_format_gives_the_same_rows(tmp_path, name):
    path = write(tmp_path / name)
    parts = parts_of(path)
    assert [len(part.ids) for part in parts] == [2, 2, 1]
    assert all_of(parts, "texts") == TEXTS
    assert all_of(parts, "labels") == ["1", "0", "1", "0", None]
    assert all_of(parts, "ids") == [f"{path.name}:{row}" for row in range(5)]
    assert [part.name for part in parts] == [f"part-00000-00000{k}" for k in range(3)]
    assert sum(part.size for part in parts) == path.stat().st_size
    table = read_table(path)  # the same but for the rows that it skips
    rows = zip(TEXTS, LABELS, strict=True)
    assert table.texts == [text for text, label in rows if text and label]


def test_files_folders_and_patterns(tmp_path):
    for name in ("x/b.csv", "x/a.jsonl", "y/c.parquet", "y/.hidden.csv", "_old/d.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name)
    (tmp_path / "x" / "notes.txt").write_text("no data")

    def files(*data):
        return list(
            dict.fromkeys(id.partition(":")[0] for id in all_of(parts_of(list(data)), "ids"))
        )

    assert files(tmp_path) == ["x/a.jsonl", "x/b.csv", "y/c.parquet"]
    assert files(tmp_path / "x") == ["a.jsonl", "b.csv"]
    assert files(Location(f"{tmp_path}/x/*.csv")) == ["b.csv"]
    assert files(Location(f"{tmp_path}/?/*")) == ["x/a.jsonl", "x/b.csv", "y/c.parquet"]
    assert files(Location(f"file://{tmp_path}/*/b.csv")) == ["b.csv"]
    assert files(tmp_path / "x" / "b.csv", tmp_path / "y") == ["x/b.csv", "y/c.parquet"]
    assert len(all_of(parts_of([tmp_path / "x" / "b.csv", tmp_path / "x"]), "ids")) == 10
    for nothing in ("x/*.gz", "z", "x/b.txt"):
        with pytest.raises(FileError, match=r"no file"):
            files(Location(f"{tmp_path}/{nothing}"))
    with pytest.raises(FileError, match=r"cannot read .*notes.txt"):
        files(tmp_path / "x" / "notes.txt")


def test_any_file_system_of_pyarrow_is_read(tmp_path):
    write(tmp_path / "a.csv")
    inside = filesystems.SubTreeFileSystem(str(tmp_path), filesystems.LocalFileSystem())
    assert all_of(parts_of(Location("a.csv"), filesystem=inside), "texts") == TEXTS
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/2026/a.csv", (tmp_path / "a.csv").read_bytes())
    wrapped = filesystems.PyFileSystem(filesystems.FSSpecHandler(memory))
    parts = parts_of(Location("/bucket/*/a.csv"), filesystem=wrapped)
    assert all_of(parts, "texts") == TEXTS
    memory.rm("/bucket", recursive=True)


def test_a_row_that_cannot_be_read_is_an_error_in_its_place(tmp_path):
    path = tmp_path / "a.jsonl"
    good = '{"text": "schön"}\n'.encode()  # so the file is damaged UTF-8, no other encoding
    path.write_bytes(b"not json\n" + good + b'{"text": "b\xe4d"}\n[1]\n{"text": 3.5}\n')
    texts = all_of(parts_of(path), "texts")
    assert "line 1 is not JSON" in str(texts[0])
    assert texts[1] == "schön"
    assert "line 3 is not UTF-8: byte 0xe4" in str(texts[2])
    assert "line 4 is not an object" in str(texts[3])
    assert texts[4] == 3.5
    path.write_text("nothing\n")
    assert ["not JSON" in str(text) for text in all_of(parts_of(path), "texts")] == [True]
    path.write_text("")  # a file without rows, as Spark writes them, is no reason to stop
    assert parts_of(path) == []
    path.write_bytes('{"text": "schön"}\n'.encode("utf-16"))  # known by its mark
    assert all_of(parts_of(path), "texts") == ["schön"]
    path.write_bytes('{"text": "schön"}\n'.encode("latin-1"))
    with pytest.warns(GuessedEncoding, match="read as cp1252"):
        assert all_of(parts_of(path), "texts") == ["schön"]


def test_a_file_whose_name_has_a_wildcard_is_that_file(tmp_path):
    for name in ("a[1].csv", "a1.csv"):
        (tmp_path / name).write_text(f"text\nof {name}\n")
    assert all_of(parts_of(tmp_path / "a[1].csv"), "texts") == ["of a[1].csv"]
    inside = filesystems.SubTreeFileSystem(str(tmp_path), filesystems.LocalFileSystem())
    (file,) = find_files(["a[1].csv"], (".csv",), inside)
    assert file.path == "a[1].csv"
    (file,) = find_files(["a[0-9].csv"], (".csv",), inside)
    assert file.path == "./a1.csv"


def test_local_files_need_no_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.csv").write_text("text\nfine\n")
    (tmp_path / "_b.csv").write_text("text\nhidden\n")
    for place in (tmp_path, tmp_path / "?.csv", tmp_path / "a.csv"):
        assert all_of(parts_of(place), "texts") == ["fine"]


def test_columns_and_ids(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"id": 7, "body": "one"}, {"id": None, "body": "two"}, {"body": "three", "id": "x"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    parts = parts_of(path, columns=ColumnNames("body", None, "id"))
    assert all_of(parts, "ids") == ["7", "a.jsonl:1", "x"]
    assert all_of(parts, "texts") == ["one", "two", "three"]
    with pytest.raises(InputError, match='no column "number"'):
        parts_of(path, columns=ColumnNames("body", None, "number"))
    with pytest.raises(InputError, match="no column looks like the text"):
        parts_of(path)


def test_rows_in_memory_and_finished_parts():
    source = open_source([("one", "a"), ("two", "b"), ("three", "a")], ColumnNames(), 2)
    parts = [part for piece in source.without(["part-00000-000000"]) for part in piece]
    assert [(part.name, part.ids, part.texts, part.labels) for part in parts] == [
        ("part-00000-000001", ["2"], ["three"], ["a"])
    ]
    assert source.fingerprint != open_source(["one"], ColumnNames(), 2).fingerprint
    with pytest.raises(InputError, match="part_rows"):
        open_source(["one"], ColumnNames(), 0)


def test_a_changed_file_is_other_data(tmp_path):
    path = write(tmp_path / "a.csv")
    before = open_source(path, ColumnNames(), 2).fingerprint
    assert open_source(path, ColumnNames(), 2).fingerprint == before
    path.write_bytes(path.read_bytes() + b"\r\nmore,1")
    assert open_source(path, ColumnNames(), 2).fingerprint != before


def test_reading_and_starting_a_run_import_no_torch():
    code = (
        "import sys\n"
        "from wherefrom.runs.parts import ColumnNames, open_source\n"
        "import wherefrom.runs.engine, wherefrom.runs.engine, wherefrom.runs.run\n"
        "print([part.texts for part in open_source(['a', 'b'], ColumnNames(), 1).pieces[0]])\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[['a'], ['b']]", "False"]


def test_a_folder_that_exists_is_not_a_pattern(tmp_path):
    for name in ("a[1]", "a1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.csv").write_text(f"text\n{name}\n", encoding="utf-8")
    for pattern, expected in (("a[1]/*.csv", "a[1]"), ("a?/*.csv", "a1"), ("a[1]/x.csv", "a[1]")):
        (file,) = find_files([tmp_path / pattern], (".csv",))
        assert file.path == (tmp_path / expected / "x.csv").as_posix()
