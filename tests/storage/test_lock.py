"""A folder is for one process at a time, and free again when that process is gone."""

import errno
import os
import signal
import subprocess
import sys

import filelock
import pytest

from wherefrom.errors import FileError
from wherefrom.storage.writing import locked

HOLDER = """
import sys
from pathlib import Path
from wherefrom.storage.writing import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()  # until it is killed
"""


def test_a_folder_is_locked_once_and_free_after(tmp_path):
    folder = tmp_path / "new" / "folder"
    with locked(folder):
        message = rf"another run \(process {os.getpid()}\) is writing to .*folder"
        with pytest.raises(FileError, match=message), locked(folder):
            pass
    with locked(folder):
        pass


def test_an_error_inside_frees_the_folder(tmp_path):
    with pytest.raises(KeyboardInterrupt), locked(tmp_path):
        raise KeyboardInterrupt
    with locked(tmp_path):
        pass


def test_a_killed_process_holds_no_lock(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with holder:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(FileError, match=rf"process {holder.pid}\)"), locked(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
    assert holder.returncode == -signal.SIGKILL
    assert (tmp_path / ".lock").exists()
    with locked(tmp_path):
        pass


def test_without_a_folder_nothing_is_locked():
    with locked(None), locked(None):
        pass


def refusing(error):
    """A lock that the file system refuses with this error."""

    def refuse(*args):
        raise error

    return refuse


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOLCK, "No locks available"), NotImplementedError("no flock")]
)
def test_a_file_system_without_locks_gives_a_warning(tmp_path, monkeypatch, error):
    monkeypatch.setattr(filelock.FileLock, "acquire", refusing(error))
    with pytest.warns(UserWarning, match="has no locks: make sure"), locked(tmp_path):
        pass


def test_another_error_of_the_lock_names_the_folder(tmp_path, monkeypatch):
    failure = OSError(errno.EIO, "Input/output error")
    monkeypatch.setattr(filelock.FileLock, "acquire", refusing(failure))
    with pytest.raises(FileError, match=r"cannot write to .*Input/output error"), locked(tmp_path):
        pass


def test_a_folder_that_is_a_file_cannot_be_locked(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(FileError, match="cannot write to"), locked(tmp_path / "taken"):
        pass
