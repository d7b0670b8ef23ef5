"""A file is whole or keeps its earlier content, whatever happens while it is written."""

import os
import stat

import pytest

from tests.helpers import contents, full_disk
from wherefrom.errors import FileError
from wherefrom.storage.writing import remove_partial_files, replacing, write_text


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "a.txt"
    for text in ("first", "naïve ×"):
        write_text(path, text)
        assert contents(tmp_path) == {"a.txt": text.encode()}


def test_on_a_full_disk_the_file_is_as_it_was(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "before")
    with (
        full_disk(1000),
        pytest.raises(FileError, match=r"cannot write .*a.txt.*keeps its earlier content"),
    ):
        write_text(path, "x" * 5000)
    assert contents(tmp_path) == {"a.txt": b"before"}
    with full_disk(1000), pytest.raises(FileError, match=r"cannot write .*new.txt: [^.]*\.$"):
        write_text(tmp_path / "new.txt", "x" * 5000)
    assert contents(tmp_path) == {"a.txt": b"before"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_while_writing_leaves_nothing_half(tmp_path, error):
    path = tmp_path / "a.txt"
    write_text(path, "before")

    def fail():
        with replacing(path) as file:
            file.write(b"half")
            file.flush()
            raise error

    with pytest.raises(error):
        fail()
    assert contents(tmp_path) == {"a.txt": b"before"}


def test_a_link_stays_a_link_and_permissions_stay(tmp_path):
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    write_text(real, "before")
    real.chmod(0o640)
    link.symlink_to(real)
    write_text(link, "after")
    assert link.is_symlink()
    assert real.read_text() == "after"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_device_or_pipe_is_written_to_directly(tmp_path):
    write_text(os.devnull, "gone")
    assert not os.path.isfile(os.devnull)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_device_is_one_clear_error():
    with pytest.raises(FileError, match=r"^cannot write /dev/full: No space left on device\.$"):
        write_text("/dev/full", "x")


@pytest.mark.parametrize("name", ["none/a.txt", "a\0b", "."])
def test_a_path_that_cannot_be_written_is_a_file_error(tmp_path, name):
    with pytest.raises(FileError, match="cannot write"):
        write_text(f"{tmp_path}/{name}", "x")


def test_half_a_character_is_written_as_its_escape(tmp_path):
    write_text(tmp_path / "a.json", '"\udcff"')
    assert (tmp_path / "a.json").read_bytes() == rb'"\udcff"'


def test_what_a_killed_process_left_is_removed(tmp_path):
    write_text(tmp_path / "a.txt", "kept")
    (tmp_path / ".0123.partial").write_text("half")
    remove_partial_files(tmp_path)
    assert contents(tmp_path) == {"a.txt": b"kept"}
